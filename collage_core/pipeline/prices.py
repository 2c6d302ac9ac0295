"""What it costs to keep to what a person has asked for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from collage_core.candidates import CandidateSet, Constraints
from collage_core.errors import PlacementError
from collage_core.measuring.bounding import search_placement
from collage_core.measuring.calibration import calibrate
from collage_core.measuring.costing import Costs
from collage_core.measuring.known_costs import look_up
from collage_core.pipeline.aim import Aim

__all__ = ["prices_of"]

_MOST_PARTS = 16
"""Each takes a search."""


def prices_of(aim: Aim) -> dict[str, float | None]:
    """By what was asked for: how much faster, in ms, the best placement without that alone would be.

    It is what a search says of costs that are known: what has not been measured is in no placement. None
    where it cannot say so. Many groups are told as one part, and many parts as all of them.
    """
    asked = aim.constraints
    if not asked:
        return {}
    parts = _parts(asked)
    aim.machine.progress.phase("pricing what was asked for")
    graph = aim.workspace.graph
    whole, just = (look_up(aim.machine, graph, constraints) for constraints in (None, asked))
    # A group that somebody asks for need not be one that anybody proposes.
    candidates = dict.fromkeys((*whole.candidates.candidates, *just.candidates.candidates))
    whole.costs.add(just.costs)
    whole.costs.transitions, _ = calibrate(aim.machine, measure=False)
    searches = _Searches(aim, replace(whole.candidates, candidates=tuple(candidates)), whole.costs)
    all_ms = searches.best_ms(part for _, part in parts)
    found = {}
    for what, part in parts:
        without_ms = searches.best_ms(other for _, other in parts if other is not part)
        found[what] = None if all_ms is None or without_ms is None else max(0.0, all_ms - without_ms)
    return found


def _parts(asked: Constraints) -> list[tuple[str, Constraints]]:
    singles = [*replace(asked, groups=()).single()]
    groups = [*Constraints(groups=asked.groups).single()]
    if len(singles) + len(groups) > _MOST_PARTS and groups:
        groups = [(f"the {len(groups)} groups that are given", Constraints(groups=asked.groups))]
    if len(singles) + len(groups) > _MOST_PARTS:
        return [("all that was asked for", asked)]
    return singles + groups


class _Searches:
    def __init__(self, aim: Aim, candidates: CandidateSet, costs: Costs) -> None:
        self._aim, self._candidates, self._costs = aim, candidates, costs

    def best_ms(self, parts: Iterable[Constraints]) -> float | None:
        """The best that is predicted of placements that keep to these."""
        whole = self._candidates
        kept = Constraints.of(parts).on(whole.graph)
        allowed = tuple(c for c in whole.candidates if kept.allows(c.subgraph, c.backend, c.variant))
        candidates = replace(whole, candidates=allowed)
        try:
            return search_placement(candidates, self._costs, self._aim.op_search).placement.predicted_ms
        except PlacementError:
            return None
