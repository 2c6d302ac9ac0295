"""Brute force over exact covers: the oracle that the other searches are held to, for small problems."""

from __future__ import annotations

import math
from collections.abc import Iterator

from collage_core.errors import PlacementError
from collage_core.search import total_ms
from collage_core.search.cost import breakdown, check_problem
from collage_core.search.problem import Problem, Solution


class ExhaustiveSearch:
    """Prices every exact cover with `total_ms` and keeps the cheapest legal one.

    max_covers: PlacementError past so many, rather than an answer next year.
    """

    def __init__(self, max_covers: int = 1_000_000) -> None:
        self.max_covers = max_covers

    def solve(self, problem: Problem) -> Solution:
        check_problem(problem)
        best, best_cost, seen = None, math.inf, 0
        reason = "there is no exact cover"
        for cover in _covers(problem):
            seen += 1
            if seen > self.max_covers:
                raise PlacementError(f"more than {self.max_covers} covers: too many for an exhaustive search")
            try:
                cost = total_ms(problem, cover)
            except PlacementError as refused:
                reason = str(refused)
                continue
            if cost < best_cost:
                best, best_cost = cover, cost
        if best is None:
            raise PlacementError(f"none of {seen} covers is legal; the last was not, because {reason}")
        return Solution(breakdown(problem, best).order, best_cost, True, best_cost, "exhaustive", seen)


def _covers(problem: Problem) -> Iterator[tuple[int, ...]]:
    by_first: list[list[int]] = [[] for _ in range(problem.node_count)]
    for c, choice in enumerate(problem.choices):
        by_first[(choice.nodes & -choice.nodes).bit_length() - 1].append(c)
    everything = (1 << problem.node_count) - 1

    def extend(claimed: int, chosen: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if claimed == everything:
            yield chosen
            return
        first = (~claimed & claimed + 1).bit_length() - 1
        for c in by_first[first]:
            if not problem.choices[c].nodes & claimed:
                yield from extend(claimed | problem.choices[c].nodes, (*chosen, c))

    return extend(0, ())
