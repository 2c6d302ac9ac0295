"""Choosing among candidates: the problem as numbers, what a placement costs, and the searches."""

from collage_core.search.cost import ConversionStep, CostBreakdown, breakdown, total_ms
from collage_core.search.evolution import Evaluation, Evolution, Evolved, Fitness, Genome, StoppedBy, evolve
from collage_core.search.graph_level import GraphLevelSearch
from collage_core.search.op_level import OpLevelSearch
from collage_core.search.problem import NO_BACKEND, Choice, Problem, ProblemValue, Solution
from collage_core.search.searcher import Searcher, SearchResult, SearchTask

__all__ = [
    "NO_BACKEND",
    "Choice",
    "ConversionStep",
    "CostBreakdown",
    "Evaluation",
    "Evolution",
    "Evolved",
    "Fitness",
    "Genome",
    "GraphLevelSearch",
    "OpLevelSearch",
    "Problem",
    "ProblemValue",
    "SearchResult",
    "SearchTask",
    "Searcher",
    "Solution",
    "StoppedBy",
    "breakdown",
    "evolve",
    "total_ms",
]
