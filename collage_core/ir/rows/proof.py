"""Rows that are independent of each other, proven by following them through a graph (docs/adr/0047)."""

from __future__ import annotations

from collections.abc import Mapping

from collage_core.errors import ModelError
from collage_core.ir.graph import Graph
from collage_core.ir.row_axes import RowAxes
from collage_core.ir.rows.rules import states_of
from collage_core.ir.rows.tracing import FREE, Rows, Sized, Tracing

__all__ = ["independent_rows"]


def independent_rows(graph: Graph, axes: Mapping[str, int], more: Graph | None = None) -> RowAxes:
    """Where the rows of a graph lie whose inputs have them along `axes`, by name; the other inputs are the
    same for all rows.

    graph: as the model says it, no shape computation folded, in static shapes with two rows or more. more:
    the same with one row more, which must say the same; None where there can be none.

    ModelError where it is not proven that rows are independent, and of how many there are. It names the node.
    """
    (count,) = {graph.shape_of(v)[axis] for v, axis in axes.items()}
    held = _traced(graph, axes, count)
    if more is not None and _traced(more, axes, count + 1) != held:
        raise ModelError(f"rows are not proven independent: with {count + 1} of them they lie elsewhere")
    outputs = {v: (state.axis, state.inner) for v, state in held.items() if v in graph.outputs}
    return RowAxes(count, dict(axes), outputs)


def _traced(graph: Graph, axes: Mapping[str, int], count: int) -> dict[str, Rows]:
    """Where rows lie, of all values that have them."""
    tracing = Tracing(graph, count, {v: Rows(axis) for v, axis in axes.items()})
    for node in graph.nodes:
        reason = states_of(tracing, node)
        if reason is not None:
            raise ModelError(f"rows are not proven independent at node {node}: {reason}")
    for v in graph.outputs:
        state = tracing.state(v)
        if isinstance(state, Sized):
            raise ModelError(f"output {v!r} depends on how many rows there are")
        if state is not FREE and state.outer != 1:
            raise ModelError(f"output {v!r} has the indices of a row apart from each other")
    return {v: state for v, state in tracing.states.items() if isinstance(state, Rows)}
