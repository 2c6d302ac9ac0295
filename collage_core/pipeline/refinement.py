"""The op level's answer is run, and searched for again with what its parts took in place, until it stands.

Among many candidates, measured one after the other and alone, the cheapest are those that were measured in a
good moment, or that owe their time to being alone. So the sum of what a search has chosen is flattered, and
the more so the more there was to choose from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from collage_core.ir import Graph
from collage_core.pipeline.comparison import PARTS, Comparison
from collage_core.pipeline.costing import Costs
from collage_core.pipeline.in_place import Sightings
from collage_core.pipeline.proof import MIX, Compare, Single, distinct
from collage_core.placement import Placement
from collage_core.search.searcher import SearchResult
from collage_core.search.transitions import Transitions

__all__ = ["ROUNDS", "Refined", "fastest_alone", "refine"]

_ANCHOR = "fastest alone"

ROUNDS = 10
"""Of a turn: two sittings."""

_TURNS = 3
_WORTH = 0.02
"""What is predicted to gain less than this share is not run."""
_NEAR = 1.5
"""Backends that are predicted to take at most so many times as long alone are run as well: they show what
their kernels take in place, chosen or not.
"""


class Refined(NamedTuple):
    """result: the fastest of what was found and run, at the costs that are known now; its history has what
    each turn has predicted and seen. comparisons: one for each turn.
    """

    result: SearchResult
    comparisons: tuple[Comparison, ...]


def refine(
    graph: Graph,
    first: SearchResult,
    singles: Sequence[Single],
    costs: Costs,
    transitions: Transitions,
    search: Callable[[], SearchResult],
    compare: Compare,
) -> Refined:
    """Run `first` beside the backends alone that come near it, correct `costs.in_place` by what its parts
    took, search again, and so on, until what is found has been run or is predicted to gain next to nothing.

    search: the op level's, at the costs of the moment.
    """
    runs = _Runs(graph, first.placement, singles, costs, transitions, compare)
    relative: dict[str, float] = {}
    placements: dict[str, Placement] = {}
    last = first
    while (took := runs.run(last.placement)) is not None:
        relative[last.placement.digest] = took
        placements[last.placement.digest] = last.placement
        best = placements[min(relative, key=relative.__getitem__)]
        best = costs.priced(graph, best)
        last = search()
        known = last.placement.digest in runs.seen
        gain = 1.0 - (last.placement.predicted_ms or 0.0) / (best.predicted_ms or math.inf)
        if known or gain < _WORTH or len(relative) == _TURNS:
            break
    if not relative:
        return Refined(first, tuple(runs.comparisons))
    history = {"turns": runs.told}
    if last.placement.digest == best.digest:
        result = replace(last, history=history)
    else:
        # The last search, though it was slower or not run, says how far the best may be from optimal.
        found = last.solution
        solution = found and replace(found, choices=(), total_ms=best.predicted_ms or math.inf, optimal=False)
        result = SearchResult(replace(best, optimal=False), solution, history)
    return Refined(result, tuple(runs.comparisons))


def fastest_alone(op_level: Placement, singles: Sequence[Single]) -> Placement:
    """What placements are measured beside: the library predicted to be the fastest alone. One library's
    threads keep one pace; a mix, where threads of several wait for each other, may not.
    """
    alone = [s.placement for s in singles if s.alone and s.placement is not None]
    return min(alone, key=lambda p: p.predicted_ms or math.inf, default=op_level)


class _Runs:
    """Runs placements beside others, and corrects costs by what is seen. seen: digests of all that ran. told:
    for the report.
    """

    def __init__(
        self,
        graph: Graph,
        first: Placement,
        singles: Sequence[Single],
        costs: Costs,
        transitions: Transitions,
        compare: Compare,
    ) -> None:
        self.comparisons: list[Comparison] = []
        self.seen: set[str] = set()
        self.told: list[dict[str, Any]] = []
        self._costs = costs
        self._compare = compare
        self._sightings = Sightings(graph, transitions)
        self._fair = {s.placement.digest for s in singles if s.placement is not None}
        self._anchor = fastest_alone(first, singles)
        limit_ms = _NEAR * (first.predicted_ms or 0.0)
        near = {
            s.label: s.placement
            for s in singles
            if s.placement is not None and (s.placement.predicted_ms or math.inf) <= limit_ms
        }
        self._beside = {_ANCHOR: self._anchor, **near}
        self._first_ms: float | None = None

    def run(self, placement: Placement) -> float | None:
        """What it took of what the fastest backend alone took beside it; None where one of them failed."""
        placements = distinct({MIX: placement, **self._beside})
        self._beside = {_ANCHOR: self._anchor}
        comparison = self._compare("in place", placements, placements.keys())
        self.comparisons.append(comparison)
        is_anchor = placement.digest == self._anchor.digest
        took_ms = comparison.median_ms(MIX)
        anchor_ms = took_ms if is_anchor else comparison.median_ms(_ANCHOR)
        if took_ms is None or anchor_ms is None:
            return None
        ratio = None if is_anchor else comparison.ratio(MIX, _ANCHOR)
        relative = ratio.median if ratio is not None else took_ms / anchor_ms
        self._first_ms = self._first_ms or anchor_ms
        for label, p in placements.items():
            record = comparison.records[label]
            parts_ms: Any = record.details.get(PARTS)
            if record.ok and parts_ms:
                self.seen.add(p.digest)
                # A machine that is slower now has also been slower for the anchor.
                scale = self._first_ms / anchor_ms
                self._sightings.add(p, parts_ms, scale, fair=p.digest in self._fair)
        self._costs.in_place = self._sightings.in_place()
        self.told.append(
            {
                "predicted_ms": placement.predicted_ms,
                "took_ms": took_ms,
                "fastest_alone_ms": anchor_ms,
                "relative": relative,
            }
        )
        return relative
