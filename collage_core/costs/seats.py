"""A contender's place in an end-to-end comparison: its process, its runs, and why it is out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol, cast

import numpy as np

from collage_core import clock
from collage_core.costs.limits import worker_memory_bytes
from collage_core.costs.processors import Attempt, Processors
from collage_core.costs.samples import Samples
from collage_core.costs.sittings import Sitting, Turn
from collage_core.errors import WorkerError
from collage_core.formats import Array
from collage_core.worker import Worker, WorkerTimeout, child_state

__all__ = ["Contender", "Outcome", "Runnable", "Seat"]

_CONTENDER = "contender"
_IS_LONG = "its runs are long"

_MOST_RUNS = 16
"""Of a turn that is not to be longer than that."""

_LONG_RUN_S = 1.0
"""A run of so long warms up for itself, and is enough for a turn."""

_AtLeast = tuple[int, float]
"""So many runs, and then more until so many seconds have passed."""


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
    own. shares: among how many the time of a run, which may answer several requests, is shared out.
    """

    name: str
    environment: Mapping[str, str]
    open: Callable[..., Runnable]
    args: tuple[Any, ...] = ()
    plugins: tuple[str, ...] = ()
    parts: bool = False
    shares: float = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a contender has shown: its samples and the outputs of its last run, or the reason why it has none.

    samples: of the rounds that all had, without turns that found the processors moved. open_s: how long it
    took to open in a process that runs already, in its last sitting: the first may find nothing kept.
    sittings: every turn, those thrown away as well; of a sitting in which it took no part none. parts_ms:
    what its parts took, where that was asked for: means without the longest tenth of the runs. Means add up
    to what the whole takes; many medians to less, since hardly ever nothing is in the way of any of them.
    unavailable: it has none because no process could be started, which is not its fault. timed_out: it has
    none because it took too long.
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


class Seat:
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
        start = clock.monotonic()
        self._asking(lambda worker: worker.call(_open, c.open, c.args, first_runs, timeout_s=limit_s))
        self._open_s = clock.monotonic() - start

    def turn(self, warmup: _AtLeast, timed: _AtLeast, limit_s: float | None, is_everybodys: bool) -> None:
        """Again where the processors have been moved meanwhile, unless it is to be as it comes.
        is_everybodys: whether all have that turn.
        """
        as_it_comes, turns = self._sittings[-1]

        def run(worker: Worker) -> None:
            taken: list[tuple[Attempt, float]] = []
            for attempt in self._processors.attempts(worker, as_it_comes=as_it_comes):
                runs_ms, parts_ms = worker.call(_run, warmup, timed, self.contender.parts, timeout_s=limit_s)
                times_ms = [ms / self.contender.shares for ms in runs_ms]
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
    start_s = clock.monotonic()
    while len(times_ms) < runs or (len(times_ms) < most and clock.monotonic() - start_s < seconds):
        before = clock.perf_counter_ns()
        contender.run()
        times_ms.append((clock.perf_counter_ns() - before) / 1e6)
        if times_ms[-1] > _LONG_RUN_S * 1e3:
            break
    return times_ms


def _outputs() -> dict[str, Array]:
    contender: Runnable = child_state[_CONTENDER]
    return contender.outputs()
