"""Time as it passes for processes that somebody stops and lets go on (SIGSTOP, SIGCONT): while they are
stopped none does.

Whoever stops a tree of processes tells it when in memory that all of them see, which is named in their
environment. Where none is named, this is Python's `time`.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

__all__ = [
    "VARIABLE",
    "Pauses",
    "can_be_paused",
    "monotonic",
    "paused_ns",
    "pauses",
    "perf_counter_ns",
    "unpaused",
]

VARIABLE = "COLLAGE_PAUSES"
"""Environment variable with the file of a `Pauses`."""

_PAGE_BYTES = 4096
_ENDS, _PAUSED_NS, _HELD = 0, 1, 2

_Number = TypeVar("_Number", int, float)


class Pauses:
    """How often a tree of processes has been stopped, and for how long all of these together. descriptor: of
    a file of one page at least, which whoever reads and whoever writes have mapped.

    A pause begins before the first process is stopped. Its time is that from when the last one has stopped to
    when the first one goes on: so nobody sees time go back.
    """

    def __init__(self, descriptor: int) -> None:
        self._words = memoryview(mmap.mmap(descriptor, _PAGE_BYTES)).cast("Q")

    @classmethod
    def anonymous(cls) -> tuple[Pauses, int]:
        """In memory that no folder knows, and the descriptor by which others may open it (`name_of`)."""
        descriptor = os.memfd_create("collage-pauses")
        os.ftruncate(descriptor, _PAGE_BYTES)
        return cls(descriptor), descriptor

    @property
    def ends(self) -> int:
        """How many pauses have begun, and how many have ended, together: another number after whatever was
        stopped by one.
        """
        return self._words[_ENDS]

    @property
    def count(self) -> int:
        """How many have begun."""
        return (self.ends + 1) // 2

    @property
    def paused_ns(self) -> int:
        return self._words[_PAUSED_NS]

    def begin(self) -> None:
        """A pause."""
        self._words[_ENDS] += 1

    def end(self, lasted_ns: int) -> None:
        """The pause, before anybody goes on."""
        self._words[_PAUSED_NS] += lasted_ns
        self._words[_ENDS] += 1

    @property
    def is_held(self) -> bool:
        """Whether a process would rather not be stopped now: see `unpaused`."""
        return self._words[_HELD] != 0

    def hold(self, is_held: bool) -> None:
        """By one thread of the tree at a time."""
        self._words[_HELD] = is_held


def _named() -> Pauses | None:
    with suppress(KeyError, OSError, ValueError):  # whoever stopped this process is gone
        descriptor = os.open(os.environ[VARIABLE], os.O_RDWR)
        try:
            return Pauses(descriptor)
        finally:
            os.close(descriptor)
    return None


_pauses = _named()


def can_be_paused() -> bool:
    """Whether somebody stops this process and all that it has started, and lets them go on."""
    return _pauses is not None


def pauses() -> int:
    """A number that is another one after this process was stopped: what was timed meanwhile is worth nothing
    then.
    """
    return 0 if _pauses is None else _pauses.ends


def paused_ns() -> int:
    """For how long, in nanoseconds, all pauses that have ended together."""
    return 0 if _pauses is None else _pauses.paused_ns


@contextmanager
def unpaused() -> Iterator[None]:
    """For some milliseconds, in which others would wait for what this process holds: whoever stops it lets it
    come to the end first. For one thread of all such processes at a time.
    """
    if _pauses is None:
        yield
        return
    _pauses.hold(True)
    try:
        yield
    finally:
        _pauses.hold(False)


def monotonic() -> float:
    """As `time.monotonic`, less the pauses."""
    return time.monotonic() if _pauses is None else _passed(_pauses, time.monotonic, 1e-9)


def perf_counter_ns() -> int:
    """As `time.perf_counter_ns`, less the pauses."""
    return time.perf_counter_ns() if _pauses is None else _passed(_pauses, time.perf_counter_ns, 1)


def _passed(pauses: Pauses, clock: Callable[[], _Number], unit: _Number) -> _Number:
    """Where it was stopped between two looks at the pauses, it looks again."""
    before_ns = pauses.paused_ns
    while True:
        now = clock()
        if (after_ns := pauses.paused_ns) == before_ns:
            return now - before_ns * unit
        before_ns = after_ns
