"""Choosing among candidates: the problem as numbers, what a placement costs, and the searches."""

from collage_core.search.cost import Conversion, CostBreakdown, breakdown, total_ms
from collage_core.search.exhaustive import ExhaustiveSearch
from collage_core.search.problem import NO_BACKEND, Choice, Problem, ProblemValue, Solution
from collage_core.search.searcher import OpLevelSearch, Searcher

__all__ = [
    "NO_BACKEND",
    "Choice",
    "Conversion",
    "CostBreakdown",
    "ExhaustiveSearch",
    "OpLevelSearch",
    "Problem",
    "ProblemValue",
    "Searcher",
    "Solution",
    "breakdown",
    "total_ms",
]
