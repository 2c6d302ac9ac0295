"""The op-level search, and the interface that it shares with every search that needs no device: numbers in, a
placement out.
"""

from __future__ import annotations

from typing import Protocol

from collage_core.errors import PlacementError
from collage_core.search.bound import node_shares_ms
from collage_core.search.cost import breakdown, check_problem
from collage_core.search.dp import run
from collage_core.search.layout import lay_out
from collage_core.search.order import choose_order
from collage_core.search.problem import Problem, Solution

__all__ = ["OpLevelSearch", "Searcher"]

_WIDEST_BEAM = 512


class Searcher(Protocol):
    """Anything that chooses candidates. A researcher's own search is one method."""

    def solve(self, problem: Problem) -> Solution:
        """A legal placement of `problem`. Raises PlacementError where there is none."""
        ...


class OpLevelSearch:
    """Exact dynamic programming; where a node has more than `cap` states, a beam of `beam` states from that
    node on.

    The answer of the beam is legal, comes with a lower bound, and is called optimal when the bound proves it.
    """

    def __init__(self, cap: int = 100_000, beam: int = 300) -> None:
        if cap < 1 or beam < 1:
            raise ValueError(f"cap and beam must be at least 1, not {cap} and {beam}")
        self.cap = cap
        self.beam = beam

    def solve(self, problem: Problem) -> Solution:
        """Raises PlacementError where no placement is legal, where the problem is malformed, or where the
        beam finds nothing.
        """
        check_problem(problem)
        layout = lay_out(problem, choose_order(problem))
        shares_ms = node_shares_ms(problem)
        left_ms = [float(shares_ms[n]) for n in layout.order]
        beam = self.beam
        outcome = run(problem, layout, self.cap, beam, left_ms)
        while outcome.choices is None:
            # A narrow beam may keep only states that lead nowhere: knots, missing conversions.
            if beam >= self.beam * _WIDEST_BEAM:
                raise PlacementError(f"a beam of {beam} states found no legal placement; allow more states")
            beam *= 8
            outcome = run(problem, layout, self.cap, beam, left_ms)
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
