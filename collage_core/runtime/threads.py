"""The threads in which sessions run kernels."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from collage_core.errors import CollageError
from collage_core.serving import MOST_AT_A_TIME, Serving
from collage_core.target import Target

__all__ = ["OwnThreads", "in_a_thread_that_ends", "is_main_thread", "own_threads"]

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

    def answer(self, hand_over: Callable[[_Job[_Result]], object], *, is_awaited: bool = True) -> _Result:
        """Once it is done. Who is interrupted (by Ctrl-C, or whatever a signal's handler raises) has it begun
        no more. is_awaited: what has begun is waited for even then, for it writes into memory of who asked.
        """
        try:
            hand_over(self)
            self._is_done.acquire()
        finally:
            if not self._is_claimed.acquire(blocking=False) and is_awaited:
                self._wait()
        error, self._error = self._error, None
        if error is None:
            return self._result  # type: ignore[return-value]  # it is what the work has returned
        try:
            raise error
        finally:
            del error  # or it would hold itself, by the frames of its traceback

    def _wait(self) -> None:
        """Until it is done, whatever comes meanwhile. That is raised afterwards."""
        later: BaseException | None = None
        while self._work is not None:
            try:
                self._is_done.acquire()
            except BaseException as error:
                later = error
        if later is not None:
            try:
                raise later
            finally:
                self._error = later = None


class OwnThreads:
    """So many, in which all that calls kernels is done. Who asks waits, and its own thread never calls one.

    Libraries keep threads for every thread that has called them. OpenMP's stay as long as that one lives, and
    where those of all are more than there are processors, they wait otherwise (docs/adr/0050). These begin as
    they are needed, and end when nobody holds this any more. The interpreter does not wait for them.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self.begin_anew()

    def begin_anew(self) -> None:
        """With none: a fork has those of its parent no more."""
        self._here = threading.local()
        self._jobs: SimpleQueue[_Job[Any] | None] = SimpleQueue()
        self._seats = threading.Semaphore(self._count)
        self._asked: set[_Job[Any]] = set()
        self._begun = 0

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._jobs.put(None)

    @property
    def is_one(self) -> bool:
        """Whether the thread that asks is one of them."""
        return hasattr(self._here, "is_one")

    def run(self, work: Callable[[], _Result]) -> _Result:
        """Its answer, or what it raises. CollageError where no thread can be started."""
        # To wait for oneself, or for who stands still, would never end.
        if self.is_one or sys.is_finalizing():
            return work()
        # No lock: a signal's handler that interrupts its holder may wait for others who want it. Two who ask
        # at once may begin one too many, which ends at once where there is no seat for it.
        job, asked = _Job(work), self._asked
        try:
            asked.add(job)
            if self._begun < min(len(asked), self._count):
                self._begin()
            return job.answer(self._jobs.put)
        finally:
            asked.discard(job)

    def _begin(self) -> None:
        try:
            _start(_work, self._jobs, self._here, self._seats)
        except CollageError:
            if not self._begun:
                raise
        else:
            self._begun += 1


def _start(target: Callable[..., object], *arguments: object) -> None:
    try:
        threading.Thread(target=target, args=arguments, name=_NAME, daemon=True).start()
    except RuntimeError as error:
        raise CollageError(f"a session needs a thread of its own: {error}") from None


def _work(jobs: SimpleQueue[_Job[Any] | None], here: threading.local, seats: threading.Semaphore) -> None:
    if not seats.acquire(blocking=False):  # another one was begun and not counted, or by two at once
        return
    here.is_one = True
    while (job := jobs.get()) is not None:
        job.do()
        del job  # while this waits for the next one
    jobs.put(None)  # for the next of them


_SHARED: WeakValueDictionary[tuple[int, int], OwnThreads] = WeakValueDictionary()
_LOCK = threading.RLock()


def own_threads(threads: int, most: int = MOST_AT_A_TIME) -> OwnThreads:
    """Those of all sessions in this process whose kernels run on so many threads. As many calls run beside
    each other as there are processors for, and no more than `most`.
    """
    calls = Serving.of(most, threads, Target.default().threads).sessions
    with _LOCK:
        found = _SHARED.get((threads, calls))
        if found is None:
            _SHARED[threads, calls] = found = OwnThreads(calls)
        return found


def _begin_anew() -> None:
    global _LOCK
    _LOCK = threading.RLock()
    for own in [*_SHARED.values()]:
        own.begin_anew()


os.register_at_fork(after_in_child=_begin_anew)


def is_main_thread() -> bool:
    """Whether this is the one in which handlers of signals run, whatever it is at, and may raise."""
    return threading.get_ident() == threading.main_thread().ident


def in_a_thread_that_ends(work: Callable[[], _Result]) -> _Result:
    """As `OwnThreads.run`, in one for this alone. Who is interrupted leaves it to itself."""
    if sys.is_finalizing():
        return work()
    return _Job(work).answer(lambda job: _start(job.do), is_awaited=False)
