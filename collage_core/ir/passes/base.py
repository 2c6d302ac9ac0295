"""Passes: named functions from graph to graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from collage_core.ir.graph import Graph
from collage_core.ir.verify import verify

__all__ = ["Pass", "run_passes"]


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass. It keeps the ids and names of the nodes it leaves alone, and the names of inputs and
    outputs.
    """

    name: str
    summary: str
    apply: Callable[[Graph], Graph]


def run_passes(graph: Graph, passes: Iterable[Pass]) -> Graph:
    """Apply passes in order; the graph is verified after each, so that a fault is blamed on the pass that
    made it.
    """
    for p in passes:
        graph = p.apply(graph)
        verify(graph, after=p.name)
    return graph
