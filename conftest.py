"""What all tests share: a library that they compare with reports nothing to its vendor; and a test that is
marked `alone` runs beside no other.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

os.environ["ORT_DISABLE_TELEMETRY"] = "1"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Fixtures are made and ended within, for they may be what is timed."""
    cache: pytest.Cache | None = getattr(item.config, "cache", None)
    if cache is None:  # -p no:cacheprovider
        return (yield)
    alone = item.get_closest_marker("alone") is not None
    with _admitted(Path(cache.mkdir("alone")), fcntl.LOCK_EX if alone else fcntl.LOCK_SH):
        return (yield)


@contextmanager
def _admitted(folder: Path, kind: int) -> Iterator[None]:
    """Together with others (LOCK_SH) or alone (LOCK_EX) among all processes that test this working tree."""
    with (folder / "door").open("w") as door, (folder / "room").open("w") as room:
        fcntl.flock(door, kind)  # whoever waits to be alone lets nobody in meanwhile
        fcntl.flock(room, kind)
        fcntl.flock(door, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(room, fcntl.LOCK_UN)  # a process that the test forked has the file open as well
