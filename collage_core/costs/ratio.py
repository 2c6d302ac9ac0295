"""How long one contender takes relative to another, told from the rounds that both took part in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist, fmean, median
from typing import Any

import numpy as np

from collage_core.costs.record import CostRecord
from collage_core.costs.sittings import SITTINGS, Sitting, sittings_from_json

__all__ = [
    "ENOUGH_SITTINGS",
    "FEWEST_SITTINGS",
    "HOPELESS",
    "Ratio",
    "interval_text",
    "losses_of",
    "ratio_as_it_came",
    "ratio_of",
    "ratio_text",
    "ratios_between",
    "sittings_of",
    "steady_quotients",
    "student_t",
    "unsettled",
]

ENOUGH_SITTINGS = 8
"""From so many on, a difference within the interval is told from one beyond it."""
FEWEST_SITTINGS = 3
"""Of fewer, how they differ says next to nothing."""
HOPELESS = 4.0
"""What takes so many times as long as another is behind (`Ratio.is_beyond`), be it in a single sitting.
No state of the processors that docs/adr/0025 tells of costs as much.
"""
_PRECISE = 0.01
"""An interval that need not be narrower, relative."""
_FAR = 2.0
"""So many times what is uncertain: no further rounds would change the order of two contenders. One such time
would not do: asked often enough, equal ones look different now and then.
"""
_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Ratio:
    """One contender's time over another's, from sittings each of which has processes of its own.

    half_interval: half of its 95 % confidence interval, from how the sittings differ and nothing else
    (Student's t of the logarithms): value + half_interval is the upper limit. inf for a single sitting.
    rounds: the least and the greatest quotient of one; None where they are not known.
    """

    value: float
    half_interval: float
    sittings: int
    rounds: tuple[float, float] | None = None

    @property
    def inverse(self) -> Ratio:
        """The other's time over the one's; its upper limit is as far above, as a factor."""
        rounds = None if self.rounds is None else (1.0 / self.rounds[1], 1.0 / self.rounds[0])
        return Ratio(1.0 / self.value, self.half_interval / self.value**2, self.sittings, rounds)

    def times(self, factor: float) -> Ratio:
        """The ratio to something that takes 1 / factor of the other's time."""
        rounds = None if self.rounds is None else (factor * self.rounds[0], factor * self.rounds[1])
        return Ratio(factor * self.value, factor * self.half_interval, self.sittings, rounds)

    def is_beyond(self, factor: float) -> bool:
        """Whether the first took at least so many times as long, and in no round less than its square root.

        Threads that wait for a taken processor take a thousand times as long, but not in every round.
        """
        least = self.value if self.rounds is None else self.rounds[0]
        return self.value >= factor and least >= math.sqrt(factor)

    @property
    def is_clear(self) -> bool:
        """Whether the two are so far apart that few sittings do."""
        if self.is_beyond(HOPELESS) or self.inverse.is_beyond(HOPELESS):
            return True
        apart = abs(math.log(self.value))
        return self.sittings >= FEWEST_SITTINGS and apart >= _FAR * math.log1p(
            self.half_interval / self.value
        )

    @property
    def is_below_one(self) -> bool:
        """Whether the first is faster beyond what is uncertain. False where there are too few sittings to
        tell.
        """
        beyond = self.sittings >= ENOUGH_SITTINGS and self.value + self.half_interval < 1.0
        return self.value < 1.0 and (self.is_clear or beyond)

    @property
    def is_above_one(self) -> bool:
        """Whether the first is slower beyond what is uncertain. False where there are too few sittings to
        tell.
        """
        return self.speaks_against and self.is_told

    @property
    def speaks_against(self) -> bool:
        """The same from three sittings on: their interval is wide, but it is an interval."""
        beyond = self.sittings >= FEWEST_SITTINGS and self.value - self.half_interval > 1.0
        return self.value > 1.0 and (self.is_clear or beyond)

    @property
    def is_told(self) -> bool:
        """Whether there are enough sittings to say which is faster, or that nobody can."""
        return self.sittings >= ENOUGH_SITTINGS or self.is_clear

    @property
    def is_settled(self) -> bool:
        """Whether further sittings would tell little more: it is known well, or far from one."""
        if self.sittings < ENOUGH_SITTINGS:
            return self.is_clear
        return self.half_interval <= max(_PRECISE, abs(self.value - 1.0) / _FAR)


def ratio_of(sittings: Sequence[Sitting], others: Sequence[Sitting]) -> Ratio | None:
    """What one takes over what another takes while the processors are as usual; None where they have no
    round in common, or one failed. ValueError if they are not of the same comparison.

    It is the geometric mean of the medians of each sitting's quotients, round by round: a machine whose speed
    drifts takes both along.
    """
    quotients = [steady_quotients(*both) for both in _paired(sittings, others)]
    logs = [math.log(median(q)) for q in quotients if q]
    return _ratio(math.exp(fmean(logs)), logs, [q for of in quotients for q in of]) if logs else None


def interval_text(value: float, half_interval: float | None) -> str:
    """For people. "" where it is as wide as the ratio, as of two sittings that differ: that tells nothing."""
    return f"+-{half_interval:.3f}" if half_interval is not None and half_interval < value else ""


def ratio_text(value: float, half_interval: float | None) -> str:
    """For people, with `interval_text`."""
    return f"{value:.3f} {interval_text(value, half_interval)}".rstrip()


def ratio_as_it_came(sittings: Sequence[Sitting], others: Sequence[Sitting]) -> Ratio | None:
    """The same from sittings in which nothing was waited for or taken again, whatever the processors did.

    It is the quotient of the sums: what a caller would have seen who ran both in turn all the time. A few
    rounds in a bad state count for what they took, as no median has it.
    """
    rounds = [
        list(zip(one.kept, other.kept, strict=False))
        for one, other in _paired(sittings, others)
        if one.as_it_comes
    ]
    ones = [fmean(a.ms for a, _ in sitting) for sitting in rounds if sitting]
    theirs = [fmean(b.ms for _, b in sitting) for sitting in rounds if sitting]
    if not ones:
        return None
    one, other = fmean(ones), fmean(theirs)
    # What a sitting adds to the logarithm of the quotient, to the first order.
    parts = [a / one - b / other for a, b in zip(ones, theirs, strict=True)]
    return _ratio(one / other, parts, [a.ms / b.ms for sitting in rounds for a, b in sitting])


def _paired(sittings: Sequence[Sitting], others: Sequence[Sitting]) -> list[tuple[Sitting, Sitting]]:
    """None where one of them failed."""
    return list(zip(sittings, others, strict=True)) if sittings and others else []


def steady_quotients(one: Sitting, other: Sitting) -> list[float]:
    """What one took over what the other took, for each round that found the processors as usual for both.

    Where turns are taken again and there is no such round, all of them have to do: turns are too long for
    that, or the processors go on moving.
    """
    rounds = list(zip(one.kept, other.kept, strict=False))  # who rests has none
    steady = [a.ms / b.ms for a, b in rounds if not (a.moved or b.moved)]
    return steady if steady or one.as_it_comes else [a.ms / b.ms for a, b in rounds]


def _ratio(value: float, parts: Sequence[float], rounds: Sequence[float]) -> Ratio:
    """parts: what each sitting says of the logarithm of the value, from anywhere. rounds: their quotients."""
    half = math.inf
    if len(parts) >= 2:
        spread = student_t(len(parts) - 1) * float(np.std(parts, ddof=1)) / math.sqrt(len(parts))
        half = value * math.expm1(spread)
    return Ratio(value, half, len(parts), (min(rounds), max(rounds)))


@cache
def student_t(freedom: int) -> float:
    """The two-sided 95 % quantile of Student's t with so many degrees of freedom: the first two from their
    closed forms, then by the Cornish-Fisher expansion (Abramowitz and Stegun 26.7.5), right to 0.2 %.
    """
    p = _CONFIDENCE
    if freedom == 1:
        return math.tan(math.pi * p / 2)
    if freedom == 2:
        return p * math.sqrt(2 / (1 - p**2))
    z = NormalDist().inv_cdf(0.5 + p / 2)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.fsum(term / float(freedom) ** power for power, term in enumerate(terms))


def unsettled(sittings: Mapping[str, Sequence[Sitting]], most: int | None = None) -> set[str]:
    """Contenders of whom further sittings would tell which one is the fastest, or by how much; none where
    that is settled. sittings: by contender, of the same comparison.

    The fastest is the one whose time over that of whatever beats it most is the least. Whoever is clearly
    behind it leaves, but for the one that comes nearest, until both have sat `ENOUGH_SITTINGS` times. most:
    so many are named at most, those that come nearest; None for all.
    """
    ratios = ratios_between(sittings)
    losses = losses_of(ratios)
    fastest = min(losses, key=losses.__getitem__, default="")
    behind = {n: others[fastest] for n, others in ratios.items() if n != fastest and fastest in others}
    close = {n for n, ratio in behind.items() if not ratio.is_settled}
    nearest = min(behind, key=lambda n: behind[n].value, default=None)
    if nearest is not None:
        ratio = behind[nearest]
        if ratio.sittings < ENOUGH_SITTINGS and not ratio.is_beyond(HOPELESS):
            close.add(nearest)
    if not close:
        return close
    return {fastest, *sorted(close, key=lambda n: behind[n].value)[: None if most is None else most - 1]}


def ratios_between(sittings: Mapping[str, Sequence[Sitting]]) -> dict[str, dict[str, Ratio]]:
    """Of each contender to every other, directly; of one without turns to nobody. sittings: by contender, of
    the same comparison.
    """
    found: dict[str, dict[str, Ratio]] = {}
    for name, ours in sittings.items():
        ratios = {o: ratio_of(ours, theirs) for o, theirs in sittings.items() if o != name}
        found[name] = {o: ratio for o, ratio in ratios.items() if ratio is not None}
    return found


def losses_of(ratios: Mapping[str, Mapping[str, Ratio]]) -> dict[str, float]:
    """By contender, its time over that of whatever beats it most; inf where it is compared with nobody."""
    return {n: max((r.value for r in others.values()), default=math.inf) for n, others in ratios.items()}


def sittings_of(record: CostRecord) -> tuple[Sitting, ...]:
    """`SITTINGS`; none of a record that failed or was not taken in rounds."""
    details: Mapping[str, Any] = record.details
    return sittings_from_json(details.get(SITTINGS, ())) if record.ok else ()
