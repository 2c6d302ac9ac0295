"""How long one contender takes relative to another, told from the rounds that both took part in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from collage_core.costs.record import CostRecord
from collage_core.costs.samples import interquartile_range, median_uncertainty

__all__ = ["TURNS", "Ratio", "ratio_of"]

TURNS = "turns_ms"
"""Among an end-to-end record's details: the median of the runs of each turn, in the order of the rounds."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of the quotients of two contenders' turns, round by round: a machine whose speed drifts
    takes both along. spread: the quotients' interquartile range.
    """

    median: float
    spread: float
    rounds: int

    @property
    def uncertainty(self) -> float:
        """By how much the median may be off: see `median_uncertainty`."""
        return median_uncertainty(self.spread, self.rounds)

    @property
    def is_below_one(self) -> bool:
        """Whether the first is faster beyond what is uncertain."""
        return self.median + self.uncertainty < 1.0


def ratio_of(record: CostRecord, other: CostRecord) -> Ratio | None:
    """What `record` takes over what `other` takes, both of one comparison; None where one of them has no
    turns.
    """
    turns: Sequence[Any] = _turns(record)
    others: Sequence[Any] = _turns(other)
    if not turns or not others:
        return None
    quotients = [a / b for a, b in zip(turns, others, strict=True)]
    return Ratio(median(quotients), interquartile_range(quotients), len(quotients))


def _turns(record: CostRecord) -> Any:
    return record.details.get(TURNS, ()) if record.ok else ()
