"""Rows that are independent of each other, proven by following them through a graph (docs/adr/0047)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from collage_core.errors import ModelError
from collage_core.ir.graph import Graph
from collage_core.ir.row_axes import RowAxes
from collage_core.ir.rows.rules import states_of
from collage_core.ir.rows.tracing import FREE, NotProvenError, Rows, Sized, State, Tracing

__all__ = ["independent_rows"]


_ALL_UP_TO = 16
"""Rows: so few are all looked at, of more some (`_numbers`)."""


def independent_rows(
    graph: Graph, axes: Mapping[str, int], at: Callable[[int], Graph] | None = None
) -> RowAxes:
    """Where the rows of a graph lie whose inputs have them along `axes`, by name; the other inputs are the
    same for all rows.

    graph: as the model says it, no shape computation folded, in static shapes with two rows or more. at: the
    same with so many rows, of which one more must say the same, and fewer must have the same sizes but for
    the rows; None where there can be no other number.

    ModelError where it is not proven that rows are independent, and of how many there are. It names the node.
    """
    (count,) = {graph.shape_of(v)[axis] for v, axis in axes.items()}
    held = _traced(graph, axes, count)
    rows = _rows(held)
    if at is not None:
        if _rows(_traced(at(count + 1), axes, count + 1)) != rows:
            raise ModelError(f"rows are not proven independent: with {count + 1} of them they lie elsewhere")
        for number in _numbers(count):
            _require_same(held, Tracing(at(number), number, {}))
    outputs = {v: (state.axis, state.inner) for v, state in rows.items() if v in graph.outputs}
    return RowAxes(count, dict(axes), outputs)


def _numbers(count: int) -> list[int]:
    """Of rows that are fewer: all of few; then what lies at powers of two, and one below the count."""
    powers = (2**n + k for n in range(count.bit_length()) for k in (-1, 0, 1))
    return sorted({n for n in (*range(1, _ALL_UP_TO + 1), *powers, count - 1) if 1 <= n < count})


def _rows(tracing: Tracing) -> dict[str, Rows]:
    return {v: state for v, state in tracing.states.items() if isinstance(state, Rows)}


def _require_same(held: Tracing, other: Tracing) -> None:
    """That what is said of each value is so with fewer rows: its size along the rows, and its other sizes;
    numbers of which is said that they do not depend on how many there are.
    """
    for node in held.graph.nodes:
        for v in filter(None, node.outputs):
            state = held.state(v)
            try:
                shape = _with_rows(state, held.shape(v), other.count)
            except NotProvenError:  # then nothing was said of it
                continue
            if not _is_so(state, shape, held, other, v):
                raise ModelError(
                    f"rows are not proven independent at node {node}: with {other.count} of them {v!r} is "
                    f"not what it is with {held.count}, less what comes of the others"
                )


def _with_rows(state: State, shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    if not isinstance(state, Rows):
        return shape
    size = state.outer * count * state.inner
    return (*shape[: state.axis], size, *shape[state.axis + 1 :])


def _is_so(state: State, shape: tuple[int, ...], held: Tracing, other: Tracing, value: str) -> bool:
    try:
        found = other.shape(value)
    except NotProvenError:
        return False
    if isinstance(state, Rows):
        return found == shape
    if isinstance(state, Sized) and bool(state.mask.all()):
        return True
    if found != shape:
        return False
    numbers = held.number(value), other.number(value)
    if numbers[0] is None or numbers[1] is None:
        return numbers[0] is numbers[1]
    free = np.ones(shape, bool) if state is FREE else ~state.mask
    return np.array_equal(numbers[0][free], numbers[1][free], equal_nan=numbers[0].dtype.kind == "f")


def _traced(graph: Graph, axes: Mapping[str, int], count: int) -> Tracing:
    """All of its states."""
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
    return tracing
