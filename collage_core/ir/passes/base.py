"""Passes: named functions from graph to graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from collage_core.errors import ModelError
from collage_core.ir.graph import Graph
from collage_core.ir.verify import verify

__all__ = ["Pass", "PassFault", "run_passes"]


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass. It keeps the ids and names of the nodes it leaves alone, and the names of inputs and
    outputs.
    """

    name: str
    summary: str
    apply: Callable[[Graph], Graph]


@dataclass(frozen=True, slots=True)
class PassFault:
    """Why a pass was left out: it failed, made no valid graph, or changed what the model answers."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"the pass {self.name} was left out: {self.reason}"


def run_passes(
    graph: Graph, passes: Iterable[Pass], on_fault: Callable[[PassFault], object] | None = None
) -> Graph:
    """Apply passes in order; the graph is verified after each, so that a fault is blamed on the pass that
    made it.

    A pass that fails is an error; with `on_fault` it is left out, and that is called. What a pass says
    against the model (ModelError) is raised in either case.
    """
    for p in passes:
        try:
            changed = p.apply(graph)
        except ModelError:
            raise
        except Exception as error:  # a pass of ours that met what nobody thought of
            if on_fault is None:
                raise
            on_fault(PassFault(p.name, f"it fails: {type(error).__name__}: {error}"))
            continue
        try:
            verify(changed, after=p.name)
        except ModelError as error:
            if on_fault is None:
                raise
            on_fault(PassFault(p.name, f"it makes no valid graph: {error}"))
            continue
        graph = changed
    return graph
