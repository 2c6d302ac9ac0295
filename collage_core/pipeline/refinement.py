"""The op level's answer is run, and searched for again with what its parts took in place, until it stands.

Among many candidates, measured one after the other and alone, the cheapest are those that were measured in a
good moment, or that owe their time to being alone. So the sum of what a search has chosen is flattered, and
the more so the more there was to choose from. What has been seen in place is flattered less, so the best of
that is tried first, and then what may be better still.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from collage_core import clock
from collage_core.ir import Graph
from collage_core.measuring.comparison import Comparison
from collage_core.measuring.costing import Costs
from collage_core.measuring.end_to_end import PARTS
from collage_core.measuring.in_place import Sightings
from collage_core.pipeline.proof import (
    IN_PLACE,
    IN_PLACE_AGAIN,
    LONGEST_MS,
    MIX,
    Compare,
    Single,
    distinct,
    label_of,
)
from collage_core.placement import Placement
from collage_core.search.searcher import SearchResult

__all__ = ["NEAR", "TURNS", "Refined", "Refinement", "anchor_of"]

_ANCHOR = "anchor"

TURNS = 6
_WORTH = 0.01
"""What is predicted to gain less than this share is not run."""
_UNCERTAIN = 0.05
"""By so much two processes may differ in one sitting, for no reason. What is predicted to take so much longer
than a backend alone is run all the same. Nor is a backend alone the answer that was faster by less: who
chooses compares it with the mix again.
"""
_COMES_NEAR = 2.5
"""What is predicted to take so many times as long as the mix is nothing to measure it beside."""
_SURPRISING = 1.15
"""What takes so many times as long beside the anchor as was predicted is run once more, in other processes:
one that is slow by itself says nothing about the placement.
"""
NEAR = 1.5
"""Backends that are predicted to take at most so many times as long alone are run as well: they show what
their kernels take in place, chosen or not.
"""


class Refined(NamedTuple):
    """result: of what the searches found and was run the fastest mix, or a backend alone that was clearly
    faster; at the costs that are known now. Its history has what each turn has predicted and seen.
    comparisons: one for each turn, and one for each that was run once more. search_s: what searching again
    took. failed: why, by digest, of the placements that failed as a whole.
    """

    result: SearchResult
    comparisons: tuple[Comparison, ...] = ()
    search_s: float = 0.0
    failed: Mapping[str, str] = MappingProxyType({})


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


class Refinement:
    """Runs placements beside others, corrects `costs.in_place` by what their parts took, and searches again.

    singles: the backends alone; run beside the first answer are those that are predicted to take at most
    `near` times as long (see `NEAR`).
    """

    def __init__(
        self, graph: Graph, costs: Costs, singles: Sequence[Single], compare: Compare, near: float = NEAR
    ) -> None:
        self._graph = graph
        self._costs = costs
        self._singles = singles
        self._compare = compare
        self._near = near
        self._sightings = Sightings(graph, costs.transitions)
        # As found with costs alone, which later answers are not, be they the same placement.
        self._as_found = {s.placement.digest: s.placement for s in singles if s.placement is not None}
        self._comparisons: list[Comparison] = []
        self._relative: dict[str, float] = {}
        """What each took, by digest, of what the anchor took beside it."""
        self._failed: dict[str, str] = {}
        """Why, by digest, of what did not run."""
        self._told: list[dict[str, Any]] = []
        """For the report."""
        self._first_ms: float | None = None
        self._time_is_over: Callable[[int], bool] = lambda ran: False

    def refine(
        self,
        first: SearchResult,
        search: Callable[[], SearchResult | None],
        search_seen: Callable[[], SearchResult | None],
        turns: int = TURNS,
        time_is_over: Callable[[int], bool] = lambda ran: False,
    ) -> Refined:
        """Run `first`, search again, and so on, until what is found has been run or is predicted to gain next
        to nothing.

        search: the op level's, at the costs of the moment. search_seen: the same among what has been seen in
        place, which is asked first. None: there is no answer. turns: the most of them. time_is_over: whether
        nothing more is to be run, given how many comparisons there were.
        """
        self._time_is_over = time_is_over
        self._beside(first.placement)
        found: dict[str, SearchResult] = {}
        following: SearchResult | None = first
        last: SearchResult | None = first
        search_s = 0.0
        is_over = self._is_over()
        while following is not None and not is_over and self._run(following.placement):
            found[following.placement.digest] = following
            is_over = len(self._told) >= turns or self._is_over()
            start = clock.monotonic()
            following = last = None
            if not is_over:
                following = self._promising(search_seen(), found)
            if following is None:
                last = search()
                following = self._promising(last, found)
            search_s += clock.monotonic() - start
        comparisons, failed = tuple(self._comparisons), self._failed
        if not found:
            return Refined(first, comparisons, search_s, failed)
        if last is not None and last.placement.digest in self._relative:
            found.setdefault(last.placement.digest, last)  # a backend alone
        result = found[self._fastest(found)]
        result = _settled(result, last, self._costs.priced(self._graph, result.placement))
        told = replace(result, history={"turns": self._told})
        return Refined(told, comparisons, search_s, failed)

    def _is_over(self) -> bool:
        return self._time_is_over(len(self._comparisons))

    def _promising(
        self, answer: SearchResult | None, found: Mapping[str, SearchResult]
    ) -> SearchResult | None:
        """The answer, where it is worth a run: to be faster than the fastest that was found, and not clearly
        slower than a backend alone.
        """
        if answer is None or answer.placement.digest in self._relative:
            return None
        fastest = found[min(found, key=self._relative.__getitem__)].placement
        alone = [p for digest, p in self._as_found.items() if digest in self._relative]
        limit_ms = min(
            (1.0 - _WORTH) * self._takes_ms(fastest),
            *((1.0 + _UNCERTAIN) * self._takes_ms(p) for p in alone),
            math.inf,
        )
        return answer if (answer.placement.predicted_ms or 0.0) <= limit_ms else None

    def _takes_ms(self, placement: Placement) -> float:
        """At the costs that are known now."""
        return self._costs.priced(self._graph, placement).predicted_ms or math.inf

    def _fastest(self, found: Collection[str]) -> str:
        """By digest; a mix, unless a backend alone was clearly faster."""
        fastest = min(found, key=self._relative.__getitem__)
        mixes = [digest for digest in found if digest not in self._as_found]
        mix = min(mixes, key=self._relative.__getitem__, default=fastest)
        is_near = self._relative[mix] <= (1.0 + _UNCERTAIN) * self._relative[fastest]
        return mix if is_near else fastest

    def _beside(self, first: Placement) -> None:
        """What is to be run beside the first."""
        self._anchor = anchor_of(first, self._singles) or first
        limit_ms = min(self._near * (first.predicted_ms or 0.0), LONGEST_MS)
        near = {
            s.label: s.placement
            for s in self._singles
            if s.placement is not None and (s.placement.predicted_ms or math.inf) <= limit_ms
        }
        self._others = {_ANCHOR: self._anchor, **near}

    def _run(self, placement: Placement) -> bool:
        """Whether it and the anchor ran."""
        placements = distinct({MIX: placement, **self._others})
        comparison = self._ran(IN_PLACE, placements)
        labels = {p.digest: label for label, p in placements.items()}
        if self._anchor.digest in self._failed and not self._relative:
            # Another one of those that ran.
            out = self._failed.keys() | self._as_found.keys() - labels.keys()
            self._anchor = anchor_of(placement, self._singles, out) or placement
        self._others = {_ANCHOR: self._anchor}
        anchor = labels[self._anchor.digest]
        if comparison.median_ms(MIX) is None or (anchor_ms := comparison.median_ms(anchor)) is None:
            return False
        self._first_ms = self._first_ms or anchor_ms
        beside = dict.fromkeys(placements, (comparison, anchor))
        beside[MIX] = self._once_more(comparison, anchor, placement)
        for label, p in placements.items():
            ran, anchor = beside[label]
            ratio, anchor_ms = ran.ratio(label, anchor), ran.median_ms(anchor)
            parts_ms: Any = ran.records[label].details.get(PARTS)
            if ratio is None or anchor_ms is None or p.digest in self._relative or not parts_ms:
                continue
            self._relative[p.digest] = ratio.value
            # A machine that is slower now has also been slower for the anchor.
            scale = self._first_ms / anchor_ms
            single = self._as_found.get(p.digest)
            self._sightings.add(single or p, parts_ms, scale, fair=single is not None)
        if placement.digest not in self._relative:
            return False
        self._costs.in_place = self._sightings.in_place()
        ran, anchor = beside[MIX]
        self._told.append(
            {
                "predicted_ms": placement.predicted_ms,
                "took_ms": ran.median_ms(MIX),
                "beside_ms": ran.median_ms(anchor),
                "relative": self._relative[placement.digest],
            }
        )
        return True

    def _ran(self, title: str, placements: Mapping[str, Placement]) -> Comparison:
        """What came of running them all."""
        comparison = self._compare(title, placements, placements.keys())
        self._comparisons.append(comparison)
        for label, p in placements.items():
            if not (record := comparison.records[label]).ok:
                self._failed[p.digest] = f"{label_of(p, self._singles, MIX)}: {record.reason}"
        return comparison

    def _once_more(self, comparison: Comparison, anchor: str, placement: Placement) -> tuple[Comparison, str]:
        """The comparison in which the placement did better beside the anchor, and the anchor's label there:
        where it was much slower than predicted, it is run again. That in which it failed, if it did.
        """
        first = comparison.ratio(MIX, anchor)
        # Both at the costs of this moment: the anchor's prediction is as old as the first turn.
        predicted_ms, anchor_ms = (
            self._costs.priced(self._graph, p).predicted_ms for p in (placement, self._anchor)
        )
        if first is None or not predicted_ms or not anchor_ms or placement.digest == self._anchor.digest:
            return comparison, anchor
        if first.value <= _SURPRISING * predicted_ms / anchor_ms or self._is_over():
            return comparison, anchor
        again = self._ran(IN_PLACE_AGAIN, {MIX: placement, _ANCHOR: self._anchor})
        second = again.ratio(MIX, _ANCHOR)
        is_better = not again.records[MIX].ok or (second is not None and second.value < first.value)
        return (again, _ANCHOR) if is_better else (comparison, anchor)
