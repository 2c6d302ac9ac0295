"""What is computed from how many rows there are: shapes, and what is spread out to them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from collage_core.formats import Array
from collage_core.ir.evaluated import evaluated
from collage_core.ir.opkinds import OpKind, op_kind
from collage_core.ir.rows.tracing import FREE, NotProvenError, Rows, Rule, Sized, State, Tracing
from collage_core.ir.types import Node

__all__ = ["SPREADS", "shape_state", "sized"]


def shape_state(tracing: Tracing, node: Node) -> State:
    state = tracing.state(node.inputs[0])
    rank = len(tracing.shape(node.inputs[0]))
    if not isinstance(state, Rows):
        return FREE
    if node.op_type == "Size":
        return Sized(np.ones((), bool))
    mask = np.arange(rank) == state.axis
    end = node.attributes.get("end")
    return _known(mask[slice(node.attributes.get("start", 0), end)])


def _known(mask: Array) -> State:
    return Sized(mask) if mask.any() else FREE


def sized(tracing: Tracing, node: Node) -> State:
    """Of shape arithmetic: which numbers depend on the number of rows."""
    masks = {v: s.mask for v in node.inputs if v and isinstance(s := tracing.state(v), Sized)}
    if op_kind(tracing.graph, node) <= OpKind.BROADCAST and node.op_type != "BatchNormalization":
        shapes = [tracing.shape(v) for v in node.inputs if v and v not in masks]
        others = [np.zeros(shape, bool) for shape in shapes]
        return _known(np.logical_or.reduce(np.broadcast_arrays(*masks.values(), *others)))
    moved = {"Concat", "Flatten", "Gather", "Reshape", "Slice", "Squeeze", "Unsqueeze"}
    parameters = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    if node.op_type in moved and all(v in parameters for v in masks):
        operands = {}
        for v in node.inputs:
            number = tracing.number(v) if v else None
            if v and number is None:
                raise NotProvenError(f"it computes with the number of rows, and {v!r} is not known")
            if number is not None:
                held = masks.get(v, np.zeros(number.shape, bool)).astype(np.int64)
                operands[v] = held if v in parameters else number
        found = evaluated(node, operands, tracing.graph.opsets)
        if found is not None:
            return _known(found[node.outputs[0]] != 0)
    return Sized(np.ones(tracing.shape(node.outputs[0]), bool))


def _spread(tracing: Tracing, node: Node) -> State:
    """Expand, Tile and ConstantOfShape of what is in no row, to the number of rows."""
    parameter = node.inputs[-1]
    state = tracing.state(parameter)
    if not isinstance(state, Sized) or any(isinstance(tracing.state(v), Sized) for v in node.inputs[:-1]):
        return sized(tracing, node)
    made = tracing.shape(node.outputs[0])
    places = np.flatnonzero(state.mask) + len(made) - state.mask.size
    if len(places) != 1:
        raise NotProvenError("the number of rows is in several of its dimensions")
    axis = int(places[0])
    if len(node.inputs) > 1:
        data = tracing.shape(node.inputs[0])
        at = axis - (len(made) - len(data))
        if at >= 0 and data[at] != 1:
            raise NotProvenError(f"{node.inputs[0]!r} is repeated for each row")
    return Rows(axis, 1, _part(made[axis], tracing.count))


def _range(tracing: Tracing, node: Node) -> State:
    if any(tracing.state(v) is not FREE for v in (node.inputs[0], node.inputs[2])):
        return sized(tracing, node)
    return Rows(0, 1, _part(tracing.shape(node.outputs[0])[0], tracing.count))


def _part(size: int, count: int) -> int:
    if size % count or not size:
        raise NotProvenError(f"{size} is no number of indices for each of {count} rows")
    return size // count


SPREADS: Mapping[str, Rule] = {
    "ConstantOfShape": _spread,
    "Expand": _spread,
    "Range": _range,
    "Tile": _spread,
}
