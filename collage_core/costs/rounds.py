"""End-to-end comparisons: several contenders, each in its own process, in alternating rounds."""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import count, pairwise
from statistics import median
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import numpy as np

from collage_core.costs.limits import worker_memory_bytes
from collage_core.costs.lock import measuring_lock
from collage_core.costs.processors import PATIENCE, Attempt, Processors
from collage_core.costs.ratio import ratio_of
from collage_core.costs.samples import Samples
from collage_core.costs.sittings import Sitting, Turn
from collage_core.errors import WorkerError
from collage_core.formats import Array
from collage_core.worker import Worker, WorkerTimeout, child_state

__all__ = [
    "MOST_ROUNDS",
    "OPEN_LIMIT_S",
    "TURN_S",
    "Contender",
    "GoOn",
    "Outcome",
    "Runnable",
    "measure_rounds",
    "starting_order",
]

_T = TypeVar("_T")

_CONTENDER = "contender"
_IS_LONG = "its runs are long"

TURN_S = 0.03
"""What a turn lasts, warm-up aside: of short runs three would tell little more than one."""
_MOST_RUNS = 16
"""Of a turn that is not to be longer than that."""

MOST_ROUNDS = 25
"""Of a sitting that may have further ones: five times as many as it has at least (docs/adr/0020)."""

OPEN_LIMIT_S = 600.0
"""A contender may take so long to open, where nobody says otherwise."""

_LONG_RUN_S = 1.0
"""A run of so long warms up for itself, and is enough for a turn."""

GoOn = Callable[[Mapping[str, Sequence[Sitting]]], Collection[str]]
"""Asked after a sitting, with all sittings of those that still take part, who is to have another."""

_AtLeast = tuple[int, float]
"""So many runs, and then more until so many seconds have passed."""


_Sitting: TypeAlias = "tuple[int, list[_Seat]]"
"""How many rounds it has at least, and who takes part."""


class Runnable(Protocol):
    """What a contender opens: see `backend.PeerSession`, which is one."""

    def run(self) -> object:
        """Run once; this call is timed."""

    def outputs(self) -> dict[str, Array]:
        """Copies of the last run's outputs, by name."""


class Divisible(Runnable, Protocol):
    """A `Runnable` that can tell its parts apart."""

    def parts_ms(self) -> Sequence[float]:
        """Run once and return what each part took, always in the same order."""


@dataclass(frozen=True, slots=True)
class Contender:
    """Something to be measured end to end.

    open: picklable; `open(*args)` returns in the contender's worker the thing that runs. environment,
    plugins: see `Worker`. parts: whether to time its parts as well (it is `Divisible` then), in runs of their
    own.
    """

    name: str
    environment: Mapping[str, str]
    open: Callable[..., Runnable]
    args: tuple[Any, ...] = ()
    plugins: tuple[str, ...] = ()
    parts: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a contender has shown: its samples and the outputs of its last run, or the reason why it has none.

    samples: of the rounds that all had, without turns that found the processors moved. open_s: how long it
    took to open in a process that runs already, the longest of the sittings. sittings: every turn, those
    thrown away as well; of a sitting in which it took no part none. parts_ms: what its parts took, where that
    was asked for: means without the longest tenth of the runs. Means add up to what the whole takes; many
    medians to less, since hardly ever nothing is in the way of any of them. unavailable: it has none because
    no process could be started, which is not its fault. timed_out: it has none because it took too long.
    """

    samples: Samples | None
    outputs: Mapping[str, Array] = field(default_factory=dict)
    reason: str | None = None
    open_s: float = 0.0
    sittings: tuple[Sitting, ...] = ()
    parts_ms: tuple[float, ...] = ()
    unavailable: bool = False
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        return self.samples is not None


def measure_rounds(
    contenders: Sequence[Contender],
    rounds: int,
    runs_per_round: int = 1,
    warmup: int = 1,
    *,
    sittings: int = 1,
    most_rounds: int = 0,
    warmup_s: float = 0.02,
    turn_s: float = TURN_S,
    open_limit_s: float | None = OPEN_LIMIT_S,
    run_limit_s: float | None = 60.0,
    hopeless: float = math.inf,
    patience: float = PATIENCE,
    go_on: GoOn | None = None,
    has_time: Callable[[float], bool] = lambda seconds: True,
    first_order: int | None = None,
    on_round: Callable[[int], object] | None = None,
    on_wait: Callable[[str], object] | None = None,
) -> dict[str, Outcome]:
    """Run all contenders in turn, `rounds` times over: at a turn `runs_per_round` timed runs, and more (up to
    16) until `turn_s` have passed, after `warmup` untimed ones or more, that take `warmup_s` at least:
    threads wake and caches fill. Of what takes more than a second a turn is one run.

    The rounds are spread over `sittings`, each in new processes: where a process's memory happens to lie
    makes it some percent faster or slower than another that does just the same, for as long as it lives. The
    second of three runs *as it comes*: nothing is waited for, no turn taken again.

    A sitting goes on, up to `most_rounds`, while its rounds have taken less time than it took to start: where
    rounds are cheap beside that, further ones narrow what is told of two contenders for little. What took
    `hopeless` times as long as another in the first sitting leaves after that. After the last one `go_on` is
    asked who is to have another like it (nobody: that was all), and after that one again. The others have no
    turns in it, and its runs are in nobody's samples: of different minutes, they would not compare.

    Each lives in a worker that is stopped (SIGSTOP) while it is not its turn, so that no idle thread of one
    spins into another's time. Who comes first and the direction change from round to round; who starts first,
    from sitting to sitting (`starting_order`), for that can make a difference (docs/adr/0020-comparisons.md).
    A contender that raises, crashes or takes longer than `open_limit_s` for opening (first runs included) or
    `run_limit_s` for a turn is out, with the reason; the others go on. Holds the machine's measuring lock. A
    turn during which the machine's processors were moved is taken again (`Processors`), and both are told of.

    first_order: of starting, in the first sitting; drawn at random where None, for what is often compared in
    few sittings. on_round: called with the number of rounds done, of those asked for. patience: see
    `Processors`. has_time: asked whether there are so many seconds. No sitting but the first begins unless
    there are as many as the last one took. Once there are none, a sitting ends with its round; the first has
    all that it is to have at least.
    """
    names = [c.name for c in contenders]
    if len(set(names)) != len(names):
        raise ValueError(f"contenders' names must differ: {names}")
    with measuring_lock(on_wait), ExitStack() as stack:
        waiting = Processors(on_wait, patience=patience, time_is_over=lambda: not has_time(0.0))
        processors = stack.enter_context(closing(waiting))
        seats = [_Seat(c, processors) for c in contenders]
        for seat in seats:
            stack.callback(seat.close)
        processors.look()  # its partner's start is not to count as the contenders'
        if first_order is None:
            first_order = random.randrange(2 * max(len(seats), 1))
        numbers = count()
        first = 0
        seated = _in_time(_sittings(seats, rounds, sittings, go_on), has_time)
        for number, (size, playing) in enumerate(seated):
            asked_for = first < rounds
            as_it_comes = _is_as_it_comes(number)
            for seat in seats:
                seat.sit(as_it_comes)
                if seat not in playing:
                    seat.rest(run_limit_s)
            start_s = time.monotonic()
            opening = starting_order(playing, number, first_order)
            for seat in opening:
                seat.start()
            for seat in opening:
                seat.wait(open_limit_s)
            _open_all(opening, max(warmup, 1) + 1, open_limit_s)
            started_s = time.monotonic()
            enough_s = started_s + (started_s - start_s) - processors.waited_s
            for done in range(max(size, most_rounds)):
                if done >= size and time.monotonic() - processors.waited_s >= enough_s:
                    break
                if done >= (1 if number else size) and not has_time(0.0):
                    break
                for seat in _changing_order(playing, next(numbers)):
                    seat.turn((warmup, warmup_s), (runs_per_round, turn_s), run_limit_s, asked_for)
                if on_round is not None and done < size and asked_for:
                    on_round(first + done + 1)
            if number == 0:
                for seat in _hopeless(playing, hopeless):
                    seat.leave()
            first += size
        return {s.contender.name: s.outcome(run_limit_s) for s in seats}


def _sittings(
    seats: list[_Seat],
    rounds: int,
    sittings: int,
    go_on: GoOn | None,
) -> Iterator[_Sitting]:
    """Nobody that has left takes part."""
    bounds = sorted({sitting * rounds // sittings for sitting in range(sittings + 1)})
    size = 0
    for first, end in pairwise(bounds):
        yield (size := end - first), [s for s in seats if s.takes_part]
    if size and go_on is not None:
        while True:
            names = go_on({s.contender.name: s.sittings() for s in seats if s.takes_part})
            invited = [s for s in seats if s.takes_part and s.contender.name in names]
            if not invited:
                return
            yield size, invited


def _in_time(sittings: Iterable[_Sitting], has_time: Callable[[float], bool]) -> Iterator[_Sitting]:
    """The first, and further ones while there is time for one that takes as long as the last."""
    last_s: float | None = None
    for sitting in sittings:
        if last_s is not None and not has_time(last_s):
            return
        begun_s = time.monotonic()
        yield sitting
        last_s = time.monotonic() - begun_s


def _open_all(seats: Sequence[_Seat], first_runs: int, limit_s: float | None) -> None:
    """Several at a time, one for each processor: most of it is one thread's work. Nothing is timed yet."""
    with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)))) as pool:
        for future in [pool.submit(seat.open, first_runs, limit_s) for seat in seats]:
            future.result()


def _changing_order(seats: Sequence[_T], number: int) -> list[_T]:
    """The order of that number: after twice as many as there are seats each has had each place twice."""
    start = number // 2 % max(len(seats), 1)
    order = [*seats[start:], *seats[:start]]
    return order[::-1] if number % 2 else order


def starting_order(seats: Sequence[_T], sitting: int, first_order: int) -> list[_T]:
    """Who starts first in that sitting, and so on. Sittings as they come are counted for themselves: their
    ratio is told for itself. Each kind is balanced after twice as many of its own as there are seats.
    """
    before = sitting // 3 if _is_as_it_comes(sitting) else sitting - (sitting + 1) // 3
    return _changing_order(seats, first_order + before)


def _is_as_it_comes(sitting: int) -> bool:
    return sitting % 3 == 1


def _hopeless(seats: Sequence[_Seat], factor: float) -> list[_Seat]:
    """Those that took `factor` times as long as another (`Ratio.is_beyond`)."""
    sat = {s: s.sittings() for s in seats if s.is_in}
    ratios = {s: [ratio_of(ours, theirs) for theirs in sat.values()] for s, ours in sat.items()}
    return [s for s, found in ratios.items() if any(r is not None and r.is_beyond(factor) for r in found)]


class _Seat:
    """A contender's place in the rounds: its worker, its times, and why it is out."""

    def __init__(self, contender: Contender, processors: Processors) -> None:
        self.contender = contender
        self._processors = processors
        self._worker: Worker | None = None
        self._times_ms: list[float] = []
        self._sittings: list[tuple[bool, list[Turn]]] = []
        self._parts_ms: list[list[float]] = []
        self._reason: str | None = None
        self._has_left = False
        self._unavailable = self._timed_out = False
        self._open_s = 0.0
        self._outputs: dict[str, Array] = {}

    @property
    def is_in(self) -> bool:
        return self._reason is None

    @property
    def takes_part(self) -> bool:
        return self.is_in and not self._has_left

    def leave(self) -> None:
        """For good; what it has shown stays."""
        self._has_left = True

    def sittings(self) -> tuple[Sitting, ...]:
        return tuple(Sitting(tuple(turns), as_it_comes) for as_it_comes, turns in self._sittings)

    def sit(self, as_it_comes: bool) -> None:
        """Begin a sitting, with no turns yet."""
        self._sittings.append((as_it_comes, []))

    def start(self) -> None:
        """A new process, and the one before is gone."""
        self.close()
        if self.is_in:
            c = self.contender
            modules = [__name__, c.open.__module__]
            limit_bytes = worker_memory_bytes()
            try:
                self._worker = Worker(
                    c.environment, plugins=c.plugins, imports=modules, memory_limit_bytes=limit_bytes
                )
            except WorkerError as error:
                self._unavailable = True
                self._out(error)

    def wait(self, limit_s: float | None) -> None:
        """Until it has imported what it needs: nothing is opened beside processes that are starting."""
        if self._worker is not None and self.is_in:
            try:
                self._worker.call(_nothing, timeout_s=limit_s)
            except WorkerError as error:
                self._out(error)

    def open(self, first_runs: int, limit_s: float | None) -> None:
        if not self.is_in:
            return
        c = self.contender
        start = time.monotonic()
        self._asking(lambda worker: worker.call(_open, c.open, c.args, first_runs, timeout_s=limit_s))
        self._open_s = max(self._open_s, time.monotonic() - start)

    def turn(self, warmup: _AtLeast, timed: _AtLeast, limit_s: float | None, is_everybodys: bool) -> None:
        """Again where the processors have been moved meanwhile, unless it is to be as it comes.
        is_everybodys: whether all have that turn.
        """
        as_it_comes, turns = self._sittings[-1]

        def run(worker: Worker) -> None:
            taken: list[tuple[Attempt, float]] = []
            for attempt in self._processors.attempts(worker, as_it_comes=as_it_comes):
                times_ms, parts_ms = worker.call(_run, warmup, timed, self.contender.parts, timeout_s=limit_s)
                taken.append((attempt, median(times_ms)))
            if is_everybodys and not (as_it_comes and attempt.moved):
                self._times_ms += _alike(times_ms, timed[0])
                self._parts_ms += parts_ms
            turns.extend(Turn(ms, a.before, a.after, a.waited_s, a.moved, a.taken_again) for a, ms in taken)

        self._asking(run)

    def rest(self, limit_s: float | None) -> None:
        """Answer for what it has run, and go."""
        self._fetch(limit_s)
        self.close()

    def _fetch(self, limit_s: float | None) -> None:
        def fetch(worker: Worker) -> None:
            worker.resume()
            self._outputs = worker.call(_outputs, timeout_s=limit_s)

        self._asking(fetch)

    def outcome(self, limit_s: float | None) -> Outcome:
        self._fetch(limit_s)
        if not self.is_in or not self._times_ms:
            reason = self._reason or "it was not run"
            return Outcome(
                None,
                reason=reason,
                open_s=self._open_s,
                unavailable=self._unavailable,
                timed_out=self._timed_out,
            )
        parts_ms = tuple(_additive(self._parts_ms)) if self._parts_ms else ()
        samples = Samples(tuple(self._times_ms))
        return Outcome(samples, self._outputs, None, self._open_s, self.sittings(), parts_ms)

    def _asking(self, ask: Callable[[Worker], object]) -> None:
        """Do it unless the contender is out, and stop its process afterwards; if it fails, the contender is
        out.
        """
        if self._worker is None or not self.is_in:
            return
        try:
            ask(self._worker)
            self._worker.pause()
        except WorkerError as error:
            self._out(error)

    def _out(self, error: WorkerError) -> None:
        self._reason, self._timed_out = str(error), isinstance(error, WorkerTimeout)
        self.close()

    def close(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None


def _alike(times_ms: Sequence[float], count: int) -> list[float]:
    """So many times for all of a turn's runs: quantiles, spread evenly. Each turn is to count as much as
    another. In a bad state there are fewer runs, and what all of them say would be too good.
    """
    if len(times_ms) <= count:
        return list(times_ms)
    times: list[float] = np.quantile(times_ms, (np.arange(count) + 0.5) / count).tolist()
    return times


def _additive(runs_ms: Sequence[Sequence[float]]) -> list[float]:
    """Of each part the mean over all runs but the longest tenth, which say more of the machine."""
    kept = max(1, len(runs_ms) - len(runs_ms) // 10)
    means: list[float] = np.sort(runs_ms, axis=0)[:kept].mean(axis=0).tolist()
    return means


def _nothing() -> None:
    return None


def _open(open: Callable[..., Runnable], args: tuple[Any, ...], first_runs: int) -> None:
    contender = open(*args)
    child_state[_IS_LONG] = False
    took_ms = _repeat(contender, (first_runs, 0.0))
    child_state[_CONTENDER] = contender
    child_state[_IS_LONG] = min(took_ms) > _LONG_RUN_S * 1e3


def _run(warmup: _AtLeast, timed: _AtLeast, parts: bool) -> tuple[list[float], list[list[float]]]:
    """Milliseconds of each timed run; then, with `parts`, of the parts of as many more."""
    contender: Runnable = child_state[_CONTENDER]
    if not child_state[_IS_LONG]:
        _repeat(contender, warmup)
    times_ms = _repeat(contender, timed, most=_MOST_RUNS)
    if not parts:
        return times_ms, []
    divisible = cast(Divisible, contender)
    return times_ms, [list(divisible.parts_ms()) for _ in times_ms]


def _repeat(contender: Runnable, at_least: _AtLeast, most: float = math.inf) -> list[float]:
    """Milliseconds of each run: so many at least, and then up to `most` until so many seconds have passed;
    no further one after a long one.
    """
    runs, seconds = at_least
    times_ms: list[float] = []
    start_s = time.perf_counter()
    while len(times_ms) < runs or (len(times_ms) < most and time.perf_counter() - start_s < seconds):
        before = time.perf_counter_ns()
        contender.run()
        times_ms.append((time.perf_counter_ns() - before) / 1e6)
        if times_ms[-1] > _LONG_RUN_S * 1e3:
            break
    return times_ms


def _outputs() -> dict[str, Array]:
    contender: Runnable = child_state[_CONTENDER]
    return contender.outputs()
