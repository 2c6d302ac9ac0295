"""End-to-end comparisons: several contenders, each in its own process, in alternating rounds."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import count, pairwise
from typing import TypeAlias, TypeVar

from collage_core import clock
from collage_core.costs.lock import measuring_lock
from collage_core.costs.processors import PATIENCE, Processors
from collage_core.costs.ratio import ratio_of
from collage_core.costs.seats import Contender, Outcome, Seat
from collage_core.costs.sittings import Sitting

__all__ = [
    "MOST_ROUNDS",
    "OPEN_LIMIT_S",
    "TURN_S",
    "GoOn",
    "Limits",
    "Rounds",
    "Turns",
    "measure_rounds",
    "starting_order",
]

_T = TypeVar("_T")

TURN_S = 0.03
"""What a turn lasts, warm-up aside: of short runs three would tell little more than one."""

MOST_ROUNDS = 25
"""Of a sitting that may have further ones: five times as many as it has at least (docs/adr/0020)."""

OPEN_LIMIT_S = 600.0
"""A contender may take so long to open, where nobody says otherwise."""

GoOn = Callable[[Mapping[str, Sequence[Sitting]]], Collection[str]]
"""Asked after a sitting, with all sittings of those that still take part, who is to have another."""

_Sitting: TypeAlias = "tuple[int, list[Seat]]"
"""How many rounds it has at least, and who takes part."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """How often each contender has its turn, and in how many processes.

    Where a process's memory happens to lie makes it some percent faster or slower than another that does just
    the same, for as long as it lives.
    """

    count: int
    """Of all sittings that are asked for together."""
    sittings: int = 1
    """Over which they are spread, each in new processes."""
    most: int = 0
    """Of a sitting that has further ones, while its rounds have taken less time than it took to start: where
    rounds are cheap beside that, further ones narrow what is told of two contenders for little.
    """
    hopeless: float = math.inf
    """What took so many times as long as another in the first sitting leaves after that."""
    patience: float = PATIENCE
    """See `Processors`."""
    first_order: int | None = None
    """Of starting, in the first sitting; drawn at random where None, for what is often compared in few
    sittings.
    """


@dataclass(frozen=True, slots=True)
class Turns:
    """What a contender does when it is its turn. Of what takes more than a second a turn is one run."""

    runs: int = 1
    """Timed, and more (up to 16) until `seconds` have passed."""
    seconds: float = TURN_S
    warmup_runs: int = 1
    """Untimed, or more, that take `warmup_s` at least: threads wake and caches fill."""
    warmup_s: float = 0.02


def _for_ever(seconds: float) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Limits:
    """How long it may take."""

    open_s: float | None = OPEN_LIMIT_S
    """Opening a contender, first runs included."""
    turn_s: float | None = 60.0
    has_time: Callable[[float], bool] = _for_ever
    """Asked whether there are so many seconds. No sitting but the first begins unless there are as many as
    the last one took. Once there are none, a sitting ends with its round; the first has all that it is to
    have at least.
    """


def measure_rounds(
    contenders: Sequence[Contender],
    rounds: Rounds,
    turns: Turns | None = None,
    limits: Limits | None = None,
    *,
    go_on: GoOn | None = None,
    on_round: Callable[[int], object] | None = None,
    on_wait: Callable[[str], object] | None = None,
) -> dict[str, Outcome]:
    """Run all contenders in turn, so many rounds of turns, spread over sittings. The second of three sittings
    runs *as it comes*: nothing is waited for, no turn taken again.

    After the last sitting `go_on` is asked who is to have another like it (nobody: that was all), and after
    that one again. The others have no turns in it, and its runs are in nobody's samples: of different
    minutes, they would not compare.

    Each lives in a worker that is stopped (SIGSTOP) while it is not its turn, so that no idle thread of one
    spins into another's time. Who comes first and the direction change from round to round; who starts first,
    from sitting to sitting (`starting_order`), for that can make a difference (docs/adr/0020-comparisons.md).
    A contender that raises, crashes or takes longer than its limits is out, with the reason; the others go
    on. Holds the machine's measuring lock. A turn during which the machine's processors were moved is taken
    again (`Processors`), and both are told of.

    on_round: called with the number of rounds done, of those asked for. on_wait: see `Processors`.
    """
    turns, limits = turns or Turns(), limits or Limits()
    warmup_runs, has_time = turns.warmup_runs, limits.has_time
    at_least = (warmup_runs, turns.warmup_s), (turns.runs, turns.seconds)
    names = [c.name for c in contenders]
    if len(set(names)) != len(names):
        raise ValueError(f"contenders' names must differ: {names}")
    with measuring_lock(on_wait), ExitStack() as stack:
        waiting = Processors(on_wait, patience=rounds.patience, time_is_over=lambda: not has_time(0.0))
        processors = stack.enter_context(closing(waiting))
        seats = [Seat(c, processors) for c in contenders]
        for seat in seats:
            stack.callback(seat.close)
        processors.look()  # its partner's start is not to count as the contenders'
        first_order = rounds.first_order
        if first_order is None:
            first_order = random.randrange(2 * max(len(seats), 1))
        numbers = count()
        first = 0
        seated = _in_time(_sittings(seats, rounds, go_on), has_time)
        for number, (size, playing) in enumerate(seated):
            asked_for = first < rounds.count
            as_it_comes = _is_as_it_comes(number)
            for seat in seats:
                seat.sit(as_it_comes)
                if seat not in playing:
                    seat.rest(limits.turn_s)
            start_s = clock.monotonic()
            opening = starting_order(playing, number, first_order)
            for seat in opening:
                seat.start()
            for seat in opening:
                seat.wait(limits.open_s)
            _open_all(opening, max(warmup_runs, 1) + 1, limits.open_s)
            started_s = clock.monotonic()
            enough_s = started_s + (started_s - start_s) - processors.waited_s
            for done in range(max(size, rounds.most)):
                if done >= size and clock.monotonic() - processors.waited_s >= enough_s:
                    break
                if done >= (1 if number else size) and not has_time(0.0):
                    break
                for seat in _changing_order(playing, next(numbers)):
                    seat.turn(*at_least, limits.turn_s, asked_for)
                if on_round is not None and done < size and asked_for:
                    on_round(first + done + 1)
            if number == 0:
                for seat in _hopeless(playing, rounds.hopeless):
                    seat.leave()
            first += size
        return {s.contender.name: s.outcome(limits.turn_s) for s in seats}


def _sittings(seats: list[Seat], rounds: Rounds, go_on: GoOn | None) -> Iterator[_Sitting]:
    """Nobody that has left takes part."""
    bounds = sorted({sitting * rounds.count // rounds.sittings for sitting in range(rounds.sittings + 1)})
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
        begun_s = clock.monotonic()
        yield sitting
        last_s = clock.monotonic() - begun_s


def _open_all(seats: Sequence[Seat], first_runs: int, limit_s: float | None) -> None:
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


def _hopeless(seats: Sequence[Seat], factor: float) -> list[Seat]:
    """Those that took `factor` times as long as another (`Ratio.is_beyond`)."""
    sat = {s: s.sittings() for s in seats if s.is_in}
    ratios = {s: [ratio_of(ours, theirs) for theirs in sat.values()] for s, ours in sat.items()}
    return [s for s, found in ratios.items() if any(r is not None and r.is_beyond(factor) for r in found)]
