"""What the tests of this plugin share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "support"))

from collage_core.target import Target


@pytest.fixture(scope="session")
def target() -> Target:
    return Target("cpu", 1, accelerators=("cuda",))
