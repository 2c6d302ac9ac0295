"""How long one contender takes relative to another, told from the rounds that both took part in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from collage_core.costs.record import CostRecord
from collage_core.costs.samples import half_interval

__all__ = ["ENOUGH_SITTINGS", "TURNS", "Ratio", "ratio_of", "sittings_of", "with_turns_of"]

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


def ratio_of(record: CostRecord, other: CostRecord) -> Ratio | None:
    """What `record` takes over what `other` takes, both of the same comparisons; None where one of them has
    no turns. ValueError if they have different numbers of them.
    """
    sittings, others = sittings_of(record), sittings_of(other)
    if not sittings or not others:
        return None
    quotients = [
        [a / b for a, b in zip(turns, theirs, strict=True)]
        for turns, theirs in zip(sittings, others, strict=True)
    ]
    if len(quotients) >= ENOUGH_SITTINGS:
        medians = [median(q) for q in quotients]
        return Ratio(median(medians), half_interval(medians))
    rounds = [q for sitting in quotients for q in sitting]
    lengths = [len(q) for q in quotients]  # a long sitting has more to say, and so have its processes
    between = _BETWEEN_PROCESSES * math.hypot(*lengths) / sum(lengths)
    return Ratio(median(rounds), math.hypot(half_interval(rounds), between))


def with_turns_of(record: CostRecord, later: CostRecord) -> CostRecord:
    """`record` with the sittings of a later comparison beside its own. Its ratios to others that were given
    theirs of the same two comparisons are told from all sittings; its other figures stay as they were.
    """
    return replace(record, details={**record.details, TURNS: [*sittings_of(record), *sittings_of(later)]})


def sittings_of(record: CostRecord) -> Sequence[Sequence[float]]:
    """`TURNS`; none of a record that failed or was not taken in rounds."""
    details: Mapping[str, Any] = record.details
    return details.get(TURNS, ()) if record.ok else ()
