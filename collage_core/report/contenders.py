"""End-to-end comparisons as JSON values: who took how long, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from collage_core.costs.check import Difference
from collage_core.costs.ratio import Ratio, sittings_of
from collage_core.costs.record import CostRecord
from collage_core.measuring.comparison import Comparison
from collage_core.pipeline.optimize import COLLAGE, Optimization

__all__ = ["bench_json", "contenders_of", "faster_than_all"]


def bench_json(
    comparison: Comparison, peers: Sequence[str], differences: Mapping[str, Difference]
) -> dict[str, Any]:
    """A comparison with peers: `ratio_to_best_peer` is the best peer's time over Collage's, above 1 where
    Collage is faster.

    differences: of Collage's outputs from each peer's; those beyond the tolerance are in `disagrees`.
    """
    contenders = _contenders([comparison])
    ratios = [ms for p in peers if (ms := contenders[p]["ratio"]) is not None]
    return {
        "contenders": contenders,
        "ratio_to_best_peer": min(ratios, default=None),
        "max_rel_error": {name: d.relative for name, d in differences.items() if d.relative is not None},
        "disagrees": {name: d.reason for name, d in differences.items() if d.reason is not None},
        "failed": {name: r.reason for name, r in comparison.records.items() if not r.ok},
    }


def contenders_of(o: Optimization) -> dict[str, dict[str, Any]]:
    """Of the run that confirms; of what was hopelessly behind before, as it was seen then."""
    proving = [c for c in o.comparisons if COLLAGE in c.records]
    contenders = _contenders(proving[::-1])
    for s in o.singles:
        if COLLAGE in contenders and s.placement is not None and s.placement.digest == o.placement.digest:
            contenders.setdefault(s.label, contenders[COLLAGE])
    return contenders


def _contenders(comparisons: Sequence[Comparison]) -> dict[str, dict[str, Any]]:
    """By name, from the first comparison in which each ran. median_ms: of the rounds that all had.

    ratio: its time over Collage's while the processors are as usual; ratio_as_it_came: the same from sittings
    in which nothing was waited for or taken again. half_interval, of each: half the 95 % confidence interval,
    None where a single sitting tells nothing of that. ratio_of_rounds: the least and the greatest of one
    round. sittings: of which the ratio is. retaken: turns that
    were thrown away because the processors had been moved. reason: why it did not run.
    """
    found: dict[str, dict[str, Any]] = {}
    for comparison in comparisons:
        for name, record in comparison.records.items():
            if name not in found:
                found[name] = _contender(comparison, name, record)
    return found


def _contender(comparison: Comparison, name: str, record: CostRecord) -> dict[str, Any]:
    sittings = sittings_of(record)
    itself = Ratio(1.0, 0.0, sum(bool(s.turns) for s in sittings))
    ratio = itself if name == COLLAGE else comparison.ratio(name, COLLAGE)
    came = itself if name == COLLAGE else comparison.ratio_as_it_came(name, COLLAGE)
    return {
        "median_ms": record.median_ms,
        "spread_ms": record.spread_ms,
        "runs": record.runs,
        "ratio": ratio.value if ratio else None,
        "half_interval": _finite(ratio.half_interval) if ratio else None,
        "ratio_of_rounds": list(ratio.rounds) if ratio and ratio.rounds else None,
        "is_slower": ratio.is_above_one if ratio else False,
        "is_faster": ratio.is_below_one if ratio else False,
        "enough_sittings": ratio.is_told if ratio else False,
        "sittings": ratio.sittings if ratio else 0,
        "ratio_as_it_came": came.value if came else None,
        "half_interval_as_it_came": _finite(came.half_interval) if came else None,
        "sittings_as_it_came": came.sittings if came else 0,
        "retaken": sum(t.taken_again for s in sittings for t in s.turns),
        "waited_s": round(sum(t.waited_s for s in sittings for t in s.turns), 3),
        "reason": record.reason,
    }


def faster_than_all(contenders: Mapping[str, Mapping[str, Any]], chosen: str) -> bool | None:
    """Whether Collage is faster than every other contender that ran, beyond what is uncertain; None where
    there is no other. chosen: the label of Collage's own placement.
    """
    others = [c for n, c in contenders.items() if n not in (COLLAGE, chosen) and c["median_ms"] is not None]
    return all(c["is_slower"] for c in others) if others else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
