"""The op level's answer is run, and searched for again with what its parts took in place, until it stands.

Among many candidates, measured one after the other and alone, the cheapest are those that were measured in a
good moment, or that owe their time to being alone. So the sum of what a search has chosen is flattered, and
the more so the more there was to choose from.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from collage_core.errors import PlacementError
from collage_core.ir import Graph
from collage_core.pipeline.comparison import PARTS, Comparison
from collage_core.pipeline.costing import Costs
from collage_core.pipeline.in_place import Sightings
from collage_core.pipeline.proof import IN_PLACE, LONGEST_MS, MIX, Compare, Single, distinct, label_of
from collage_core.placement import Placement
from collage_core.search.searcher import SearchResult
from collage_core.search.transitions import Transitions

__all__ = ["NEAR", "TURNS", "Refined", "anchor_of", "refine"]

_ANCHOR = "anchor"

TURNS = 3
_WORTH = 0.02
"""What is predicted to gain less than this share is not run."""
_COMES_NEAR = 2.5
"""What is predicted to take so many times as long as the mix is nothing to measure it beside."""
NEAR = 1.5
"""Backends that are predicted to take at most so many times as long alone are run as well: they show what
their kernels take in place, chosen or not.
"""


class Refined(NamedTuple):
    """result: of what the searches found and was run, a backend alone among it, the fastest, at the costs
    that are known now; its history has what each turn has predicted and seen. comparisons: one for each turn.
    search_s: what searching again took. failed: why, by digest, of the placements that failed as a whole.
    """

    result: SearchResult
    comparisons: tuple[Comparison, ...] = ()
    search_s: float = 0.0
    failed: Mapping[str, str] = MappingProxyType({})


def refine(
    graph: Graph,
    first: SearchResult,
    singles: Sequence[Single],
    costs: Costs,
    transitions: Transitions,
    search: Callable[[], SearchResult],
    compare: Compare,
    *,
    turns: int = TURNS,
    near: float = NEAR,
    time_is_over: Callable[[], bool] = lambda: False,
) -> Refined:
    """Run `first` beside the backends alone that come near it, correct `costs.in_place` by what its parts
    took, search again, and so on, until what is found has been run or is predicted to gain next to nothing.

    search: the op level's, at the costs of the moment. turns: the most of them. near: see
    `NEAR`. time_is_over: asked before each.
    """
    runs = _Runs(graph, first.placement, singles, costs, transitions, compare, near)
    found: dict[str, SearchResult] = {}
    last: SearchResult | None = first
    search_s = 0.0
    while last is not None and not time_is_over() and runs.run(last.placement):
        found[last.placement.digest] = last
        best = min(found, key=runs.relative.__getitem__)
        best_ms = costs.priced(graph, found[best].placement, transitions).predicted_ms or math.inf
        start = time.monotonic()
        try:
            last = search()
        except PlacementError:  # a beam that finds nothing at these costs
            last = None
            break
        finally:
            search_s += time.monotonic() - start
        if last.placement.digest in runs.relative:
            found.setdefault(last.placement.digest, last)
            break
        gain = 1.0 - (last.placement.predicted_ms or 0.0) / best_ms
        if gain < _WORTH or len(runs.told) >= turns:
            break
    comparisons, failed = tuple(runs.comparisons), runs.failed
    if not found:
        return Refined(first, comparisons, search_s, failed)
    result = found[min(found, key=runs.relative.__getitem__)]
    result = _settled(result, last, costs.priced(graph, result.placement, transitions))
    return Refined(replace(result, history={"turns": runs.told}), comparisons, search_s, failed)


def _settled(result: SearchResult, last: SearchResult | None, priced: Placement) -> SearchResult:
    """A result at the costs that are known now. What the last search has found at these, be it slower or not
    run, says how far it may be from optimal; None: it has found nothing.
    """
    if last is not None and last.placement.digest == result.placement.digest:
        return last
    solution = result.solution
    if solution is not None:
        bound_ms = last.solution.lower_bound_ms if last is not None and last.solution is not None else None
        total_ms = priced.predicted_ms or math.inf
        solution = replace(solution, total_ms=total_ms, optimal=False, lower_bound_ms=bound_ms)
    return replace(result, placement=replace(priced, optimal=False), solution=solution)


def anchor_of(
    op_level: Placement, singles: Sequence[Single], failed: Collection[str] = ()
) -> Placement | None:
    """What placements are measured beside: the library predicted to be the fastest alone. One library's
    threads keep one pace; a mix, where threads of several wait for each other, may not. Where none comes
    near (but the reference has all operators, say) it is the op level's placement itself.

    failed: digests of what is not to be taken; None where nothing else is left.
    """
    alone = [s.placement for s in singles if s.alone and s.placement is not None]
    alone = sorted((p for p in alone if p.digest not in failed), key=lambda p: p.predicted_ms or math.inf)
    if alone and (alone[0].predicted_ms or math.inf) <= _COMES_NEAR * (op_level.predicted_ms or 0.0):
        return alone[0]
    return op_level if op_level.digest not in failed else next(iter(alone), None)


class _Runs:
    """Runs placements beside others, and corrects costs by what is seen. relative: what each took, by digest,
    of what the anchor took beside it. failed: why, by digest, of what did not run. told: for the report.
    """

    def __init__(
        self,
        graph: Graph,
        first: Placement,
        singles: Sequence[Single],
        costs: Costs,
        transitions: Transitions,
        compare: Compare,
        near: float,
    ) -> None:
        self.comparisons: list[Comparison] = []
        self.relative: dict[str, float] = {}
        self.failed: dict[str, str] = {}
        self.told: list[dict[str, Any]] = []
        self._costs = costs
        self._compare = compare
        self._sightings = Sightings(graph, transitions)
        self._singles = singles
        # As found with costs alone, which later answers are not, be they the same placement.
        self._as_found = {s.placement.digest: s.placement for s in singles if s.placement is not None}
        self._anchor = anchor_of(first, singles) or first
        limit_ms = min(near * (first.predicted_ms or 0.0), LONGEST_MS)
        beside = {
            s.label: s.placement
            for s in singles
            if s.placement is not None and (s.placement.predicted_ms or math.inf) <= limit_ms
        }
        self._beside = {_ANCHOR: self._anchor, **beside}
        self._first_ms: float | None = None

    def run(self, placement: Placement) -> bool:
        """Whether it and the anchor ran."""
        placements = distinct({MIX: placement, **self._beside})
        comparison = self._compare(IN_PLACE, placements, placements.keys())
        self.comparisons.append(comparison)
        labels = {p.digest: label for label, p in placements.items()}
        for label, p in placements.items():
            if not (record := comparison.records[label]).ok:
                self.failed[p.digest] = f"{label_of(p, self._singles, MIX)}: {record.reason}"
        if self._anchor.digest in self.failed and not self.relative:
            # Another one of those that ran.
            out = self.failed.keys() | self._as_found.keys() - labels.keys()
            self._anchor = anchor_of(placement, self._singles, out) or placement
        self._beside = {_ANCHOR: self._anchor}
        anchor = labels[self._anchor.digest]
        took_ms, anchor_ms = comparison.median_ms(MIX), comparison.median_ms(anchor)
        if took_ms is None or anchor_ms is None:
            return False
        self._first_ms = self._first_ms or anchor_ms
        for label, p in placements.items():
            ratio = comparison.ratio(label, anchor)
            parts_ms: Any = comparison.records[label].details.get(PARTS)
            if ratio is None or p.digest in self.relative or not parts_ms:
                continue
            self.relative[p.digest] = ratio.value
            # A machine that is slower now has also been slower for the anchor.
            scale = self._first_ms / anchor_ms
            single = self._as_found.get(p.digest)
            self._sightings.add(single or p, parts_ms, scale, fair=single is not None)
        if placement.digest not in self.relative:
            return False
        self._costs.in_place = self._sightings.in_place()
        self.told.append(
            {
                "predicted_ms": placement.predicted_ms,
                "took_ms": took_ms,
                "beside_ms": anchor_ms,
                "relative": self.relative[placement.digest],
            }
        )
        return True
