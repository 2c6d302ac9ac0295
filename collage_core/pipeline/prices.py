"""What it costs to keep to what a person has asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from collage_core.candidates import Candidate, CandidateSet, Constraints
from collage_core.errors import CollageError
from collage_core.measuring.bounding import search_placement
from collage_core.measuring.calibration import calibrate
from collage_core.measuring.costing import Costs
from collage_core.measuring.known_costs import look_up
from collage_core.pipeline.aim import Aim
from collage_core.pipeline.optimization import Price
from collage_core.placement import VIEW

__all__ = ["prices_of"]

_MOST_PARTS = 16
"""Each takes a search."""
_ALL = "all of these"


def prices_of(aim: Aim) -> dict[str, Price]:
    """By what was asked for: what the best placement takes beyond the best one without that alone; of several
    things together, too. Many groups are told as one part, and many parts as all of them.

    It is what a search says of costs that are known. Nothing is known where an error is limited: what would
    have been rounded without it, nobody has weighed. The time is not counted to any budget; where that is
    over, nothing is said.
    """
    asked = aim.constraints
    if not asked or aim.budget.is_over():
        return {}
    parts = _parts(asked)
    if aim.limit is not None:
        return {what: Price(None) for what, _ in parts}
    aim.machine.progress.phase("pricing what was asked for")
    graph = aim.workspace.graph
    whole, just = (look_up(aim.machine, graph, constraints) for constraints in (None, asked))
    # A group that somebody asks for need not be one that anybody proposes.
    candidates = dict.fromkeys((*whole.candidates.candidates, *just.candidates.candidates))
    whole.costs.add(just.costs)
    whole.costs.transitions, _ = calibrate(aim.machine, measure=False)
    searches = _Searches(aim, replace(whole.candidates, candidates=tuple(candidates)), whole.costs)
    everything = [part for _, part in parts]
    found = {
        what: searches.price(everything, [p for p in everything if p is not part]) for what, part in parts
    }
    return found if len(parts) == 1 else {**found, _ALL: searches.price(everything, [])}


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

    def price(self, everything: Sequence[Constraints], without: Sequence[Constraints]) -> Price:
        """Of what is in the one and not in the other."""
        try:
            kept, free = self._allowed(everything), self._allowed(without)
            kept_ms, free_ms = self._best_ms(kept), self._best_ms(free)
        except CollageError:  # without an exact pin, say, two globs may disagree
            return Price(None)
        if kept_ms is None or free_ms is None:
            return Price(None)
        ruled_out = set(free) - set(kept)
        is_least = any(c.backend != VIEW and self._costs.record_of(c) is None for c in ruled_out)
        ms = max(0.0, kept_ms - free_ms)
        return Price(None if is_least and not ms else ms, is_least)

    def _allowed(self, parts: Sequence[Constraints]) -> tuple[Candidate, ...]:
        kept = Constraints.of(parts).on(self._candidates.graph)
        every = self._candidates.candidates
        return tuple(c for c in every if kept.allows(c.subgraph, c.backend, c.variant))

    def _best_ms(self, allowed: tuple[Candidate, ...]) -> float | None:
        """What is predicted of the best placement of these."""
        candidates = replace(self._candidates, candidates=allowed)
        return search_placement(candidates, self._costs, self._aim.op_search).placement.predicted_ms
