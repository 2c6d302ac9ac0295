"""What all tests share: a library that they compare with reports nothing to its vendor, nothing waits for
processors, and a test that is marked `alone` runs beside no other.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import settings

os.environ["ORT_DISABLE_TELEMETRY"] = "1"
os.environ["COLLAGE_SETTLING_LIMIT_S"] = "0"  # beside other tests no processor is ever free for a look

# What takes how long is not what examples are about. The same ones every time: new ones are for the nightly
# session, where a rare one that fails is in nobody's way.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("exploring", deadline=None)
settings.load_profile("repeatable")

_TREE = Path(__file__).parent
_MOST_PROCESSES = 4
"""Many tests start processes, which have threads of their own."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    return min(len(os.sched_getaffinity(0)), _MOST_PROCESSES)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Fixtures are made and ended within, for they may be what is timed."""
    alone = item.get_closest_marker("alone") is not None
    with _admitted(fcntl.LOCK_EX if alone else fcntl.LOCK_SH):
        return (yield)


@contextmanager
def _admitted(kind: int) -> Iterator[None]:
    """Together with others (LOCK_SH) or alone (LOCK_EX) among all processes that test this working tree.

    The folders themselves are locked: nothing has to be written, and nobody removes them (not on NFS,
    where a lock wants a file open for writing). A test that starts pytest here would wait for itself.
    """
    with _opened(_TREE / "tests") as door, _opened(_TREE) as room:
        fcntl.flock(door, kind)  # whoever waits to be alone lets nobody in meanwhile
        fcntl.flock(room, kind)
        fcntl.flock(door, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(room, fcntl.LOCK_UN)  # a process that the test forked has the folder open as well


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
