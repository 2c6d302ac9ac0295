"""The op-level search: from measured costs, and nothing else, the cheapest placement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from collage_core.errors import PlacementError
from collage_core.search.cost import breakdown, check_problem
from collage_core.search.exact.bound import node_shares_ms
from collage_core.search.exact.dp import Outcome, run
from collage_core.search.exact.order import choose_order
from collage_core.search.exact.walk import Walk, plan_walk
from collage_core.search.problem import Problem, Solution
from collage_core.search.searcher import SearchResult, SearchTask

__all__ = ["OpLevelSearch"]

_WIDER = 8


class OpLevelSearch:
    """Exact dynamic programming; from the node on where it has more than `cap` states at once, or more than
    `budget` so far, a beam of `beam` states.

    The answer of the beam is legal, comes with a lower bound, and is called optimal when the bound proves it.
    """

    name = "op"

    def __init__(self, cap: int = 100_000, beam: int = 300, budget: int = 10_000_000) -> None:
        if min(cap, beam, budget) < 1:
            raise ValueError(f"cap, beam and budget must be at least 1, not {cap}, {beam} and {budget}")
        self.cap = cap
        self.beam = beam
        self.budget = budget

    def search(self, task: SearchTask) -> SearchResult:
        """PlacementError where no placement is legal, or where the beam finds nothing."""
        formulation = task.formulate()
        solution = self.solve(formulation.problem)
        return SearchResult(formulation.placement(solution), solution)

    def solve(self, problem: Problem) -> Solution:
        """The problem's cheapest legal placement, in plain numbers.

        Raises PlacementError where no placement is legal, where the problem is malformed, or where the beam
        finds nothing.
        """
        check_problem(problem)
        walk = plan_walk(problem, choose_order(problem))
        shares_ms = node_shares_ms(problem)
        left_ms = [float(shares_ms[n]) for n in walk.order]
        outcome = run(problem, walk, left_ms, cap=self.cap, budget=self.budget, beam=self.beam)
        if outcome.choices is None:
            outcome = self._rescue(problem, walk, left_ms, outcome.dropped_ms)
        assert outcome.choices is not None
        result = breakdown(problem, outcome.choices)
        bound_ms = min(outcome.dropped_ms, result.total_ms)
        return Solution(
            choices=result.order,
            total_ms=result.total_ms,
            optimal=bound_ms == result.total_ms,
            lower_bound_ms=bound_ms,
            method="dp" if outcome.exact else "beam",
            states=outcome.states,
        )

    def _rescue(self, problem: Problem, walk: Walk, left_ms: Sequence[float], bound_ms: float) -> Outcome:
        """Another outcome for a beam that kept only states that lead nowhere (knots, missing conversions)."""
        beam = self.beam * _WIDER
        wider = run(problem, walk, left_ms, cap=self.cap, budget=self.budget, beam=beam)
        if wider.choices is not None:
            return wider
        # Groups of nodes that follow each other in one topological order can always run in that order.
        kept = [c for c, choice in enumerate(problem.choices) if _is_interval(choice.nodes)]
        easier = replace(problem, choices=tuple(problem.choices[c] for c in kept))
        order = range(problem.node_count)
        in_order_ms = [share for _, share in sorted(zip(walk.order, left_ms, strict=True))]
        try:
            found = run(
                easier, plan_walk(easier, order), in_order_ms, cap=self.cap, budget=self.budget, beam=beam
            )
        except PlacementError:
            found = wider
        if found.choices is None:
            raise PlacementError(f"a beam of {beam} states found no legal placement; allow more states")
        return Outcome(
            choices=tuple(kept[c] for c in found.choices),
            dropped_ms=max(bound_ms, wider.dropped_ms),
            exact=False,
            states=wider.states + found.states,
        )


def _is_interval(nodes: int) -> bool:
    shifted = nodes // (nodes & -nodes)
    return not shifted & shifted + 1
