"""How long one contender takes relative to another, told from the rounds that both took part in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from collage_core.costs.record import CostRecord
from collage_core.costs.samples import interquartile_range, median_uncertainty

__all__ = ["TURNS", "Ratio", "ratio_of"]

TURNS = "turns_ms"
"""Among an end-to-end record's details: by sitting, the median of the runs of each turn, in the order of the
rounds.
"""

_ENOUGH_SITTINGS = 3
"""From so many on they are what a ratio is told from, rather than their rounds."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of the quotients of two contenders' turns, round by round: a machine whose speed drifts
    takes both along. Where there are several sittings it is the median of their medians, since each sitting
    has processes of its own, and rounds in one process tell nothing of how another would do.

    spread: interquartile range of what it is the median of. count: how many those are.
    """

    median: float
    spread: float
    count: int

    @property
    def uncertainty(self) -> float:
        """By how much the median may be off: see `median_uncertainty`."""
        return median_uncertainty(self.spread, self.count)

    @property
    def is_below_one(self) -> bool:
        """Whether the first is faster beyond what is uncertain."""
        return self.median + self.uncertainty < 1.0


def ratio_of(record: CostRecord, other: CostRecord) -> Ratio | None:
    """What `record` takes over what `other` takes, both of one comparison; None where one of them has no
    turns.
    """
    sittings, others = _sittings(record), _sittings(other)
    if not sittings or not others:
        return None
    quotients = [
        [a / b for a, b in zip(turns, theirs, strict=True)]
        for turns, theirs in zip(sittings, others, strict=True)
    ]
    enough = len(quotients) >= _ENOUGH_SITTINGS
    told_from = [median(q) for q in quotients] if enough else [q for rounds in quotients for q in rounds]
    return Ratio(median(told_from), interquartile_range(told_from), len(told_from))


def _sittings(record: CostRecord) -> Sequence[Sequence[float]]:
    details: Mapping[str, Any] = record.details
    return details.get(TURNS, ()) if record.ok else ()
