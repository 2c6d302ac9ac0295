"""What is known of a graph's values while rows are followed through it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collage_core.formats import Array
from collage_core.ir.evaluated import evaluated
from collage_core.ir.graph import Graph
from collage_core.ir.operator import Operator
from collage_core.ir.passes.constants import fold
from collage_core.ir.types import UNKNOWN, Node

__all__ = [
    "FREE",
    "NotProvenError",
    "Rows",
    "Rule",
    "Sized",
    "State",
    "Tracing",
    "apart",
    "axes_of",
    "beside",
    "rows_of",
]

_MOST_BYTES = 1 << 20
"""Of what is evaluated: shapes and axes are small."""


class NotProvenError(Exception):
    """Why it is not known where rows are behind a node."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A value with `outer` * count * `inner` indices along an axis: those of row i are the i-th `inner` ones
    in each of `outer` parts. They depend on row i, on i, and on nothing that says how many rows there are.
    """

    axis: int
    outer: int = 1
    inner: int = 1


class Sized:
    """Numbers that depend on how many rows there are where `mask` says so (bool, of the value's shape)."""

    def __init__(self, mask: Array) -> None:
        self.mask = mask


FREE = None
"""The state of a value that no row and no number of rows is in."""
State = Rows | Sized | None


class Tracing:
    """A graph whose rows are being followed: the state of each value so far, and what it is in this shape.
    count: of rows.
    """

    def __init__(self, graph: Graph, count: int, states: Mapping[str, State]) -> None:
        self.graph, self.count = graph, count
        self.states = dict(states)
        self._folded = fold(graph)
        self._known: dict[str, Array | None] = {}

    def state(self, value: str) -> State:
        return self.states.get(value, FREE)

    def shape(self, value: str) -> tuple[int, ...]:
        """NotProvenError where it is not known."""
        for graph in (self._folded, self.graph):
            if value in graph.values and (type := graph.type_of(value)) != UNKNOWN and type.is_static:
                return type.static_shape
        if (known := self.number(value)) is not None:
            return known.shape
        raise NotProvenError(f"the shape of {value!r} is not known")

    def attribute(self, node: Node, name: str, default: Any = None) -> Any:
        return Operator(self.graph, node).attrs.get(name, default)

    def opset(self) -> int:
        return self.graph.opsets.get("", 1)

    def number(self, value: str) -> Array | None:
        """What is in a value that no row is in, at this count; None where that is not known, or large."""
        if value not in self._known:
            self._known[value] = None  # should it need itself
            self._known[value] = self._evaluated(value)
        return self._known[value]

    def _evaluated(self, value: str) -> Array | None:
        for graph in (self.graph, self._folded):
            if value in graph.constants:
                return graph.constants[value]
        node = self.graph.producer(value)
        if node is None or node.domain or node.captures or isinstance(self.state(value), Rows):
            return None
        if node.op_type in ("Shape", "Size"):
            try:
                shape = self.shape(node.inputs[0])
            except NotProvenError:
                return None
            operands: dict[str, Array] = {node.inputs[0]: np.broadcast_to(np.zeros((), np.uint8), shape)}
        else:
            found = {v: self.number(v) for v in node.inputs if v}
            operands = {v: array for v, array in found.items() if array is not None}
            if len(operands) < len(found) or sum(a.nbytes for a in operands.values()) > _MOST_BYTES:
                return None
        return (evaluated(node, operands, self.graph.opsets) or {}).get(value)


Rule = Callable[[Tracing, Node], State]
"""The state of what an operator yields that has an input in a row; NotProvenError where nobody knows it."""


def rows_of(tracing: Tracing, node: Node, number: int = 0) -> Rows:
    """Of an input; the others must be in no row."""
    states = [tracing.state(v) if v else FREE for v in node.inputs]
    state = states[number]
    for at, other in enumerate(states):
        if at == number or other is FREE:
            continue
        if isinstance(other, Sized):
            raise NotProvenError(f"{node.inputs[at]!r} depends on how many rows there are")
        raise NotProvenError(f"{node.inputs[at]!r} is not the same for all rows")
    if not isinstance(state, Rows):
        raise NotProvenError("the rows are in an input in which it mixes them")
    return state


def axes_of(tracing: Tracing, node: Node, rank: int, number: int | None) -> list[int] | None:
    """The attribute, or what is in that input; None where none are named."""
    axes = node.attributes.get("axes")
    if axes is None and number is not None and number < len(node.inputs) and node.inputs[number]:
        axes = tracing.number(node.inputs[number])
        if axes is None:
            raise NotProvenError("its axes are not known")
    return None if axes is None else [int(axis) % rank for axis in np.ravel(axes)]


def apart(state: Rows, axes: Sequence[int]) -> None:
    if state.axis in axes:
        raise NotProvenError(f"it works along axis {state.axis}, where the rows are")


def beside(tracing: Tracing, state: Rows, value: str, axis: int, exactly: bool = False) -> None:
    """That a value in no row, or none, fits beside such rows: along `axis`, where they lie, it has as many
    indices as they have, or one for all unless `exactly`. Shape inference does not ask that of each operator.

    axis: below 0 it counts from the end. A value that is broadcast may not have it.
    """
    if not value or tracing.state(value) is not FREE:
        return
    shape, whole = tracing.shape(value), state.outer * tracing.count * state.inner
    if -len(shape) <= axis < len(shape) and shape[axis] not in ((whole,) if exactly else (1, whole)):
        raise NotProvenError(f"{value!r} has {shape[axis]} indices beside {whole} of the rows")
