"""How long one contender takes relative to another, told from the rounds that both took part in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from collage_core.costs.record import CostRecord
from collage_core.costs.samples import Turns, half_interval

__all__ = [
    "ENOUGH_SITTINGS",
    "TURNS",
    "Ratio",
    "losses_of",
    "ratio_of",
    "ratio_of_turns",
    "ratios_between",
    "sittings_of",
    "unsettled",
    "with_turns_of",
]

TURNS = "turns_ms"
"""Among an end-to-end record's details: by sitting, the median of the runs of each turn, in the order of the
rounds.
"""

ENOUGH_SITTINGS = 8
"""From so many on, how they differ tells how processes differ."""
_BETWEEN_PROCESSES = 0.02
"""By how much two processes of one placement may differ for as long as they live (docs/adr/0020), relative to
either.
"""
_PRECISE = 0.01
"""An interval that need not be narrower, relative."""
_FAR = 2.0
"""So many times what is uncertain: no further rounds would change the order of two contenders. One such time
would not do: asked often enough, equal ones look different now and then.
"""


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of the quotients of two contenders' turns, round by round: a machine whose speed drifts
    takes both along. From eight sittings on it is the median of their medians, since each sitting has
    processes of its own, and rounds in one process tell nothing of how another would do.

    uncertainty: half of about its 95 % confidence interval; inf where it comes from a single round.
    """

    median: float
    uncertainty: float

    @property
    def is_below_one(self) -> bool:
        """Whether the first is faster beyond what is uncertain."""
        return self.median + self.uncertainty < 1.0

    @property
    def is_settled(self) -> bool:
        """Whether further rounds would tell little more: it is known well, or far from one."""
        return self.uncertainty <= max(_PRECISE, abs(self.median - 1.0) / _FAR)


def ratio_of(record: CostRecord, other: CostRecord) -> Ratio | None:
    """What `record` takes over what `other` takes, both of the same comparisons; None where one of them has
    no turns. ValueError if they have different numbers of them.
    """
    sittings, others = sittings_of(record), sittings_of(other)
    if not sittings or not others:
        return None
    return ratio_of_turns(sittings, others)


def ratio_of_turns(sittings: Turns, others: Turns) -> Ratio:
    """The same from the turns themselves, by sitting: from those in which both took part. ValueError if they
    are not as many.
    """
    quotients = [
        [a / b for a, b in zip(turns, theirs, strict=True)]
        for turns, theirs in zip(sittings, others, strict=True)
        if turns and theirs
    ]
    if len(quotients) >= ENOUGH_SITTINGS:
        medians = [median(q) for q in quotients]
        return Ratio(median(medians), half_interval(medians))
    rounds = [q for sitting in quotients for q in sitting]
    lengths = [len(q) for q in quotients]  # a long sitting has more to say, and so have its processes
    between = _BETWEEN_PROCESSES * math.hypot(*lengths) / sum(lengths)
    return Ratio(median(rounds), math.hypot(half_interval(rounds), between))


def unsettled(turns: Mapping[str, Turns]) -> set[str]:
    """Contenders of whom further rounds would tell which one is the fastest, or by how much; none where that
    is settled. The fastest is the one whose time over that of whatever beats it most is the least. turns: by
    contender, those of the same sittings, at least one of which all took part in.
    """
    ratios = ratios_between(turns)
    losses = losses_of(ratios)
    fastest = min(losses, key=losses.__getitem__, default="")
    close = {n for n, others in ratios.items() if n != fastest and not others[fastest].is_settled}
    return {fastest, *close} if close else close


def ratios_between(turns: Mapping[str, Turns]) -> dict[str, dict[str, Ratio]]:
    """Of each contender to every other, directly; of one without turns to nobody. turns: by contender, those
    of the same sittings.
    """
    played = {name: sittings for name, sittings in turns.items() if sittings}
    return {
        n: {o: ratio_of_turns(turns[n], played[o]) for o in played if o != n and n in played} for n in turns
    }


def losses_of(ratios: Mapping[str, Mapping[str, Ratio]]) -> dict[str, float]:
    """By contender, its time over that of whatever beats it most; inf where it is compared with nobody."""
    return {n: max((r.median for r in others.values()), default=math.inf) for n, others in ratios.items()}


def with_turns_of(record: CostRecord, later: CostRecord) -> CostRecord:
    """`record` with the sittings of a later comparison beside its own. Its ratios to others that were given
    theirs of the same two comparisons are told from all sittings; its other figures stay as they were.
    """
    return replace(record, details={**record.details, TURNS: [*sittings_of(record), *sittings_of(later)]})


def sittings_of(record: CostRecord) -> Turns:
    """`TURNS`; none of a record that failed or was not taken in rounds."""
    details: Mapping[str, Any] = record.details
    return details.get(TURNS, ()) if record.ok else ()
