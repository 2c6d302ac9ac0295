"""A tree of processes stopped as a whole, whatever it is at, and let go on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress

from collage_core.background.log import EventLog
from collage_core.clock import Pauses
from collage_core.errors import CollageError
from collage_core.worker.child import GUARDIAN
from collage_core.worker.worker import family

__all__ = ["Tree"]

_STOP_LIMIT_S = 0.05
"""Who has not stopped by then is waiting for the kernel, for a disk mostly. It stops before it goes on."""
_LOOK_EVERY_S = 5e-5
_STOPPED = frozenset("TtZX")
_GONE = (FileNotFoundError, ProcessLookupError)
"""What looking at a process raises that has ended."""


class Tree:
    """A process and all that it and those have started. For one thread at a time.

    root: the process, a child of this one that is not collected before `end`. It may stop and continue the
    others itself. pauses: seen by all of them.

    Guardians (`worker.child`) are left alone: they do nothing, and end what a killed process leaves behind.
    CollageError where the kernel does not tell which processes another one has started.
    """

    def __init__(self, root: int, pauses: Pauses, log: EventLog) -> None:
        if not os.path.exists("/proc/thread-self/children"):
            raise CollageError("this kernel does not tell children of processes, so nobody could stop them")
        self._root: int | None = root
        self._pauses = pauses
        self._log = log
        self._ours: list[int] = []
        """Whom this has stopped, from the top down."""
        self._asked_s: float | None = None
        """Since when they are to stand still."""
        self._since_ns: int | None = None
        self.late = 0
        """How often some had not stopped in time."""

    @property
    def is_stopped(self) -> bool:
        return self._since_ns is not None

    @property
    def paused_s(self) -> float:
        """How long all pauses together have been, the one that lasts included."""
        lasting_ns = 0 if self._since_ns is None else time.monotonic_ns() - self._since_ns
        return (self._pauses.paused_ns + lasting_ns) / 1e9

    def stop(self) -> None:
        """Returns when all have stopped, or 50 ms after the first call: the next one looks once more then."""
        if self._since_ns is not None or self._root is None:
            return
        if self._asked_s is None:
            self._asked_s = time.monotonic()
            self._pauses.begin()
            self._log.add("stop")
        is_done = self._stop_all(self._root, self._asked_s + _STOP_LIMIT_S)
        took_ms = round((time.monotonic() - self._asked_s) * 1e3, 3)
        if is_done:
            self._since_ns = time.monotonic_ns()
        else:
            self.late += 1
        self._log.add("stopped" if is_done else "late", took_ms=took_ms, processes=len(self._ours))

    def resume(self) -> None:
        """Let those go on that `stop` has stopped: who was stopped before stays so."""
        if self._asked_s is not None:
            self._log.add("continue")
            self._resume()

    def end(self) -> None:
        """What it was to do is done, or shall not be: nobody is stopped any more."""
        self._log.add("ended")
        if self._asked_s is not None:
            self._resume()
        self._root = None

    def _resume(self) -> None:
        now_ns = time.monotonic_ns()
        self._pauses.end(0 if self._since_ns is None else now_ns - self._since_ns)
        self._since_ns = self._asked_s = None
        # None of them has been collected, and its number is nobody else's, unless who started it has died.
        if self._root is not None and _is_alive(self._root):
            for pid in reversed(self._ours):
                _send(pid, signal.SIGCONT)
        self._ours.clear()

    def _stop_all(self, root: int, deadline_s: float) -> bool:
        # The root first: nobody is started or continued by it afterwards.
        while not _has_stopped(root) or self._pauses.is_held:
            if not self._pauses.is_held:
                self._halt(root)
            elif root in self._ours:
                self._ours.remove(root)
                _send(root, signal.SIGCONT)
            if not _wait(deadline_s):
                return False
        while running := [pid for pid in family(root) if not _has_stopped(pid)]:
            for pid in running:
                self._halt(pid)
            if not _wait(deadline_s):
                return False
        return True

    def _halt(self, pid: int) -> None:
        if pid not in self._ours:
            self._ours.append(pid)
        _send(pid, signal.SIGSTOP)  # once more, if who started it has continued it meanwhile


def _wait(deadline_s: float) -> bool:
    time.sleep(_LOOK_EVERY_S)
    return time.monotonic() < deadline_s


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _is_alive(child: int) -> bool:
    try:
        return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:  # collected
        return False


def _has_stopped(pid: int) -> bool:
    """Every thread of it, or it is gone, or a guardian. False where nobody can tell."""
    try:
        return all(state in _STOPPED or name == GUARDIAN for name, state in _threads(pid))
    except OSError:  # this process has no descriptor left
        return False


def _threads(pid: int) -> Iterator[tuple[str, str]]:
    """Name and state of each; none of a process that has ended."""
    with suppress(*_GONE):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(*_GONE), open(f"/proc/{pid}/task/{task}/stat", "rb") as file:
                before, _, after = file.read(512).rpartition(b")")
                yield before.partition(b"(")[2].decode(errors="replace"), after[1:2].decode()
