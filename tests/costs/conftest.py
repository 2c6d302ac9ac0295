"""Makes the plugins of these tests importable here and, as workers get this process's path, in workers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "plugins"))


@pytest.fixture(autouse=True)
def _own_lock(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A measuring lock of the tests' own, so that they do not wait for whatever else is measured on this
    machine.
    """
    monkeypatch.setenv("COLLAGE_LOCK", str(tmp_path_factory.getbasetemp() / "measuring.lock"))
