"""What further rounds of a sitting bring: half the 95 % intervals, from the first rounds and from all.

    python benchmarks/rounds_per_sitting.py [COSTS.sqlite]

Of every comparison in the cost database that has further rounds, and enough sittings to be told by them: each
contender beside the fastest one, from the first five rounds of each sitting and from all of them. The same
turns, so that the machine was the same; what the further ones cost in time is not told.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import replace
from statistics import median

from collage_core.costs import CostDatabase
from collage_core.costs.ratio import ENOUGH_SITTINGS, TURNS, ratio_of, sittings_of
from collage_core.costs.record import CostRecord
from collage_core.costs.samples import Turns
from collage_core.pipeline.comparison import RUN
from collage_core.report.text import table

_FIRST = 5


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("costs", nargs="?", help="cost database (default: in the user's cache folder)")
    comparisons: dict[object, dict[str, CostRecord]] = defaultdict(dict)
    with CostDatabase(parser.parse_args().costs) as database:
        for item in database.items():
            if len(_played(item.record)) >= ENOUGH_SITTINGS:
                comparisons[item.record.details[RUN]][item.key.backend] = item.record
    told: list[tuple[str, str, float, float, float]] = []
    for records in comparisons.values():
        fastest = min(records, key=lambda name: records[name].median_ms or 0.0)
        reference = records.pop(fastest)
        if _rounds(reference) <= _FIRST:
            continue
        for name, record in records.items():
            first, every = ratio_of(_shortened(record), _shortened(reference)), ratio_of(record, reference)
            if first is not None and every is not None:
                told.append((fastest, name, _rounds(record), first.uncertainty, every.uncertainty))
    told.sort(key=lambda row: row[-1])
    rows = [(one, other, f"{n:.1f}", f"{first:.3f}", f"{every:.3f}") for one, other, n, first, every in told]
    print(table(["fastest", "beside", "rounds", "from five", "from all"], rows))
    if told:
        narrower = median(every / first for *_, first, every in told)
        print(f"median of {len(told)} quotients, from all over from five: {narrower:.2f}")


def _shortened(record: CostRecord) -> CostRecord:
    turns = [turns[:_FIRST] for turns in sittings_of(record)]
    return replace(record, details={**record.details, TURNS: turns})


def _rounds(record: CostRecord) -> float:
    """Of a sitting, the median."""
    return median(map(len, _played(record)))


def _played(record: CostRecord) -> Turns:
    """The sittings in which it took part."""
    return [turns for turns in sittings_of(record) if turns]


if __name__ == "__main__":
    main()
