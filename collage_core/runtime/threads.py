"""The threads in which sessions run kernels."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Generic, TypeVar
from weakref import WeakSet, WeakValueDictionary

from collage_core.errors import CollageError
from collage_core.serving import MOST_AT_A_TIME, sessions_here

__all__ = ["OwnThreads", "in_a_thread_that_ends", "own_threads"]

_Result = TypeVar("_Result")
_NAME = "collage-session"


class _Job(Generic[_Result]):
    """What one thread asks and another one does."""

    def __init__(self, work: Callable[[], _Result]) -> None:
        self._work: Callable[[], _Result] | None = work
        self._is_claimed, self._is_done = threading.Lock(), threading.Lock()
        self._is_done.acquire()
        self._error: BaseException | None = None
        self._result: _Result | None = None

    def do(self) -> None:
        """Unless who asked wants it no more."""
        if not self._is_claimed.acquire(blocking=False):
            return
        try:
            self._result = self._work()  # type: ignore[misc]  # it is there until it was done
        except BaseException as error:  # it is for who asked
            self._error = error
        self._work = None  # what it holds is of no use any more
        self._is_done.release()

    def answer(self, hand_over: Callable[[_Job[_Result]], object]) -> _Result:
        """Once it is done. Who is interrupted (by Ctrl-C, or whatever a signal's handler raises) does not
        leave before what has begun is done: it writes into memory of who asked. The rest is not begun.
        """
        try:
            hand_over(self)
            self._is_done.acquire()
        finally:
            self._settle()
        error, self._error = self._error, None
        if error is None:
            return self._result  # type: ignore[return-value]  # it is what the work has returned
        try:
            raise error
        finally:
            del error  # or it would hold itself, by the frames of its traceback

    def _settle(self) -> None:
        if self._is_claimed.acquire(blocking=False):
            return
        while self._work is not None:
            with suppress(BaseException):
                self._is_done.acquire()


class OwnThreads:
    """So many, in which all that calls kernels is done. Who asks waits, and its own thread never calls one.

    Libraries keep threads for every thread that has called them. OpenMP's stay as long as that one lives, and
    where those of all are more than there are processors, they wait otherwise (docs/adr/0050). These begin as
    they are needed, and end when nobody holds this any more. The interpreter does not wait for them.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self.begin_anew()
        _ALL.add(self)

    def begin_anew(self) -> None:
        """With none: a fork has those of its parent no more."""
        self._here = threading.local()
        self._jobs: SimpleQueue[_Job[Any] | None] = SimpleQueue()
        self._lock = threading.RLock()  # what is collected meanwhile may ask, too
        self._asked = self._begun = 0

    def __del__(self) -> None:
        for _ in range(self._begun):
            self._jobs.put(None)

    @property
    def is_one(self) -> bool:
        """Whether the thread that asks is one of them."""
        return hasattr(self._here, "is_one")

    def run(self, work: Callable[[], _Result]) -> _Result:
        """Its answer, or what it raises. CollageError where no thread can be started."""
        if self.is_one:  # to wait for oneself would take for ever
            return work()
        with self._lock:
            if self._begun < min(self._asked + 1, self._count):
                self._begin()
            self._asked += 1
        try:
            return _Job(work).answer(self._jobs.put)
        finally:
            with self._lock:
                self._asked -= 1

    def _begin(self) -> None:
        thread = threading.Thread(target=_work, args=(self._jobs, self._here), name=_NAME, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            if not self._begun:
                raise CollageError(f"a session needs a thread of its own: {error}") from None
        else:
            self._begun += 1


def _work(jobs: SimpleQueue[_Job[Any] | None], here: threading.local) -> None:
    here.is_one = True
    while (job := jobs.get()) is not None:
        job.do()
        del job  # while this waits for the next one


_ALL: WeakSet[OwnThreads] = WeakSet()
_SHARED: WeakValueDictionary[tuple[int, int], OwnThreads] = WeakValueDictionary()
_LOCK = threading.RLock()


def own_threads(threads: int, most: int | None = None) -> OwnThreads:
    """Those of all sessions in this process whose kernels run on so many threads. As many calls run beside
    each other as there are processors for, and no more than `most`.
    """
    calls = min(sessions_here(threads), MOST_AT_A_TIME if most is None else most)
    with _LOCK:
        found = _SHARED.get((threads, calls))
        if found is None:
            _SHARED[threads, calls] = found = OwnThreads(calls)
        return found


def _begin_anew() -> None:
    global _LOCK
    _LOCK = threading.RLock()
    for own in [*_ALL]:
        own.begin_anew()


os.register_at_fork(after_in_child=_begin_anew)


def in_a_thread_that_ends(work: Callable[[], _Result]) -> _Result:
    """As `OwnThreads.run`, in one for this alone."""

    def start(job: _Job[_Result]) -> None:
        threading.Thread(target=job.do, name=_NAME, daemon=True).start()

    return _Job(work).answer(start)
