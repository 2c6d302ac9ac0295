"""Where a virtual machine's processors are at the moment: whether they share a core, or are far apart."""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import NamedTuple

from collage_core import clock
from collage_core.costs.limits import settling_limit_s
from collage_core.errors import WorkerError
from collage_core.worker import Worker

__all__ = ["PATIENCE", "Attempt", "Look", "Processors", "Usual"]

PATIENCE = 0.5
"""Of the time, what may go by in waiting."""

_PAGE_BYTES = 4096
_QUESTION, _ANSWER = 0, 512
"""Offsets that share no cache line, nor a pair of lines that a processor fetches together."""

_MOST_PROCESSORS = 16
_PARTS, _EXCHANGES = 15, 20
_PATIENCE = 1_000_000
"""So often an answer is looked for, some 30 ms: the partner may have no processor to itself."""
_LOOPS, _TURNS = 8, 500

_SHARED = 1.35
"""One thread of a core slows the other's loop down by 1.5 to 1.9 on Zen 4; another core by nothing."""
_APART = 2.0
"""Of the least time for an exchange: on Zen 4 97 to 174 ns within a group of cores that share a cache (most
of it is the interpreter's), 275 to 340 between two of them.
"""
_EVERY_S = 0.02
"""While nothing runs: a processor that wakes is often put elsewhere, one that works stays for seconds."""
_ACQUAINTANCE_S = 1.0

_TELL_AFTER_S = 2.0
_MOST_RETAKEN = 3
_MOST_PAUSED = 20
"""So often a measurement is taken again that was stopped meanwhile: where requests come so often it ends."""
_LONGEST_RETAKEN_S = 2.0
_START_LIMIT_S = 60.0

_WAITING = (
    "this machine's processors have been moved (they share a core, or are far from each other); waiting "
    "until they are together again"
)
_ACCEPTED = "this machine's processors stay where they are: what is measured now may be slower than usual"


class Look(NamedTuple):
    """What two processors were to each other at a moment; of more than two, the worst of the first one's.

    exchange_ns: half of what it takes until a number written by one has been seen by the other and answered,
    the interpreter's share included. slowdown: how much longer a loop takes on one while the other works.
    """

    exchange_ns: float
    slowdown: float

    @property
    def shares_core(self) -> bool:
        """Whether they looked like the two threads of one core."""
        return self.slowdown >= _SHARED


@dataclass(slots=True)
class Attempt:
    """One measurement, and what the processors did meanwhile; complete once the next one is asked for.

    number: 0 for the first. before, after: looks at its ends, None where nothing can be told. waited_s:
    before it. moved: whether they were not together at one of its ends, or this process was stopped meanwhile
    (`clock`). taken_again: whether another follows.
    """

    number: int
    before: Look | None = None
    after: Look | None = None
    waited_s: float = 0.0
    moved: bool = False
    taken_again: bool = False


@dataclass(slots=True)
class Usual:
    """What may be expected of this machine's processors, learnt from looks at them."""

    exchange_ns: float = inf
    slowdown: float = 1.0
    known: bool = False

    def learn(self, look: Look) -> None:
        if not look.shares_core:  # cores of their own: the nearest of these is the best there is
            self.slowdown = 1.0
            self.exchange_ns = min(self.exchange_ns, look.exchange_ns)

    def accept(self, look: Look) -> None:
        """What lasts is how the machine is."""
        self.slowdown = max(self.slowdown, look.slowdown)
        if not look.shares_core:
            self.exchange_ns = max(self.exchange_ns, look.exchange_ns)

    def agrees(self, look: Look) -> bool:
        return look.exchange_ns < _APART * self.exchange_ns and look.slowdown < _SHARED * self.slowdown


_usual = Usual()
"""Of this process: what one measurement has learnt serves the next."""


class Processors:
    """Tells when this machine's processors are together as usual, and waits for it.

    The host of a virtual machine moves its processors from core to core: for seconds two of them are the two
    threads of one core, and whatever computes takes twice as long; for others they have no cache in common,
    and whatever hands data from thread to thread takes twice as long, while the rest does not. The system
    within sees nothing of it, and counts no time as stolen. What was timed in different states does not
    compare.

    A partner process answers to what this one writes into memory that both see; it is stopped (SIGSTOP) but
    for the look, half a millisecond for each other processor. Not looked at where there is one core or more
    than 16, or where $COLLAGE_SETTLING_LIMIT_S is 0; all is as usual then. To be closed; used by
    one thread.

    on_wait: called with a line for the user, once where measuring has to wait for some seconds, once where
    that was in vain. patience: the share of the time that may go by in waiting. waited_s: how long all waits
    together were. time_is_over: once it says so nothing is waited for or repeated any more.
    """

    def __init__(
        self,
        on_wait: Callable[[str], object] | None = None,
        usual: Usual | None = None,
        patience: float = PATIENCE,
        time_is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._patience = patience
        self._time_is_over = time_is_over
        self._on_wait = on_wait
        self._told: set[str] = set()
        self._usual = _usual if usual is None else usual
        self._limit_s = settling_limit_s()
        self._numbers = _one_of_each_core(sorted(os.sched_getaffinity(0)))
        self._partner: _Partner | None = None
        self._begun_s = clock.monotonic()
        self.waited_s = 0.0
        self._watched = self.unwatched is None

    @property
    def unwatched(self) -> str | None:
        """Why nothing is looked at here; None where something is."""
        if not self._limit_s:
            return "COLLAGE_SETTLING_LIMIT_S is 0"
        if len(self._numbers) == 1:
            return "there is one core, and nothing to compare it with"
        if len(self._numbers) > _MOST_PROCESSORS:
            return f"there are more than {_MOST_PROCESSORS} cores"
        return None

    def attempts(self, worker: Worker, *, as_it_comes: bool = False) -> Iterator[Attempt]:
        """The loop's body shall measure in `worker`: once, and again if the processors are not together when
        it has, three times at most; and again where it was stopped meanwhile (`clock`), be it to come as it
        comes. What takes more than 2 seconds is not to be repeated.

        Each begins when the processors are together. After $COLLAGE_SETTLING_LIMIT_S (120) seconds of waiting
        what there is counts as usual; sooner if more than the share `patience` of the time since the first
        has gone by in waiting. as_it_comes: nothing is waited for or repeated; the looks are the same.

        The worker is stopped but for the body, so that none of its threads spins beside a look; in the end as
        well, unless the loop is left.
        """
        worker.pause()
        moves = stops = 0
        while True:
            attempt = Attempt(moves + stops)
            if as_it_comes:
                attempt.before = self.look()
            else:
                attempt.before, attempt.waited_s = self._settled()
            start_s, pauses = clock.monotonic(), clock.pauses()
            worker.resume()
            yield attempt
            worker.pause()
            took_s = clock.monotonic() - start_s
            attempt.after = self.look()
            was_stopped = clock.pauses() != pauses
            attempt.moved = self._is_unusual(attempt.before) or self._is_unusual(attempt.after) or was_stopped
            is_last = stops == _MOST_PAUSED if was_stopped else as_it_comes or moves == _MOST_RETAKEN
            # A long one has seen several states, and can tell the usual one by its median.
            is_last |= took_s > _LONGEST_RETAKEN_S or self._time_is_over()
            attempt.taken_again = attempt.moved and not is_last
            if not attempt.taken_again:
                return
            stops, moves = stops + was_stopped, moves + (not was_stopped)

    def _settled(self) -> tuple[Look | None, float]:
        """The look that finds them together, or is accepted, and the seconds until then."""
        start_s = clock.monotonic()
        while self._is_unusual(look := self.look()):
            assert look is not None
            if self._time_is_over():
                break
            now_s = clock.monotonic()
            waited_s = now_s - start_s
            # Where the nearest is seen now and then only, each sight of it would make all wait anew.
            # At first as long as the limit allows half of the time, less with less patience.
            most_s = self._patience * (2 * self._patience * self._limit_s + now_s - self._begun_s)
            if waited_s > self._limit_s or self.waited_s + waited_s > most_s:
                self._usual.accept(look)
                self._tell(_ACCEPTED)
                break
            if waited_s > _TELL_AFTER_S:
                self._tell(_WAITING)
            time.sleep(_EVERY_S)
        waited_s = clock.monotonic() - start_s
        self.waited_s += waited_s
        return look, waited_s

    def _tell(self, line: str) -> None:
        if self._on_wait is not None and line not in self._told:
            self._told.add(line)
            self._on_wait(line)

    def _is_unusual(self, look: Look | None) -> bool:
        return look is not None and not self._usual.agrees(look)

    def look(self) -> Look | None:
        """None where nothing can be told."""
        if not self._watched:
            return None
        try:
            if self._partner is None:
                self._partner = _Partner(self._numbers)
                self._get_acquainted(self._partner)
            look = self._partner.look()
        except (OSError, WorkerError):  # no process, or no /proc: nothing is worth less for it
            self._watched = False
            return None
        if look is not None:
            self._usual.learn(look)
        return look

    def _get_acquainted(self, partner: _Partner) -> None:
        """Look around for a second, once per process: a single look may find anything."""
        end_s = clock.monotonic() + _ACQUAINTANCE_S
        while not self._usual.known and clock.monotonic() < end_s:
            if (look := partner.look()) is not None:
                self._usual.learn(look)
            time.sleep(_EVERY_S)
        self._usual.known = True

    def close(self) -> None:
        if self._partner is not None:
            self._partner.close()
            self._partner = None


def _one_of_each_core(numbers: list[int]) -> list[int]:
    """Of processors that the system knows to be threads of one core, the first: these are no surprise."""
    cores: dict[str, int] = {}
    for number in numbers:
        path = Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list")
        try:
            cores.setdefault(path.read_text(), number)
        except OSError:
            cores[str(number)] = number
    return list(cores.values())


class _Partner:
    """The process on the other processor, and the memory through which it answers."""

    def __init__(self, numbers: list[int]) -> None:
        self._first, *self._others = numbers
        descriptor = os.memfd_create("collage-processors")
        try:
            os.ftruncate(descriptor, _PAGE_BYTES)
            self._memory = memoryview(mmap.mmap(descriptor, _PAGE_BYTES))
            self._worker = Worker()
            self._thread: int = self._worker.call(_answer, os.getpid(), descriptor, timeout_s=_START_LIMIT_S)
        finally:
            os.close(descriptor)
        self._worker.pause()

    def look(self) -> Look | None:
        """None where the partner did not come to answer, on a processor that is not free."""
        allowed = os.sched_getaffinity(0)
        try:  # at once: an interrupt shall find no gap in which this thread stays where it is
            os.sched_setaffinity(0, {self._first})
            alone_ns = _loop_ns()
            try:
                self._worker.resume()
                looks = [self._beside(other, alone_ns) for other in self._others]
            finally:
                self._worker.pause()
        finally:
            os.sched_setaffinity(0, allowed)
        told = [look for look in looks if look is not None]
        if len(told) < len(looks):
            return None
        return Look(max(look.exchange_ns for look in told), max(look.slowdown for look in told))

    def _beside(self, other: int, alone_ns: float) -> Look | None:
        os.sched_setaffinity(self._thread, {other})
        exchange_ns = self._exchange_ns()
        return None if exchange_ns is None else Look(exchange_ns, _loop_ns() / alone_ns)

    def _exchange_ns(self) -> float | None:
        """The fastest part's mean: somebody else may take either processor for a while."""
        memory, parts_ns = self._memory, []
        for _ in range(_PARTS):
            before_ns = time.perf_counter_ns()
            for number in range(1, _EXCHANGES + 1):
                memory[_QUESTION] = number
                for _ in range(_PATIENCE):
                    if memory[_ANSWER] == number:
                        break
                else:
                    return None
            parts_ns.append((time.perf_counter_ns() - before_ns) / _EXCHANGES / 2)
        return min(parts_ns)

    def close(self) -> None:
        self._worker.kill()


def _answer(asker: int, descriptor: int) -> int:
    """In the partner: answer for ever, in a thread whose number is returned."""
    with open(f"/proc/{asker}/fd/{descriptor}", "r+b", buffering=0) as file:
        memory = memoryview(mmap.mmap(file.fileno(), _PAGE_BYTES))

    def answer() -> None:
        answered = 0
        while True:
            if (number := memory[_QUESTION]) != answered:
                memory[_ANSWER] = answered = number

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    assert thread.native_id is not None  # of a thread that has been started
    return thread.native_id


def _loop_ns() -> float:
    """What nothing but the interpreter takes, undisturbed."""
    times_ns = []
    for _ in range(_LOOPS):
        before_ns = time.perf_counter_ns()
        for _ in range(_TURNS):
            pass
        times_ns.append(time.perf_counter_ns() - before_ns)
    return min(times_ns)
