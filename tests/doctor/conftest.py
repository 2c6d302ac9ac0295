"""A machine whose /proc and /sys are ordinary files."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_machine import FakeMachine


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path / "machine")
