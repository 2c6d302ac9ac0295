"""Rows behind operators that move elements, or what is between them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from collage_core.ir.rows.tracing import (
    FREE,
    NotProvenError,
    Rows,
    Rule,
    Sized,
    State,
    Tracing,
    apart,
    axes_of,
    rows_of,
)
from collage_core.ir.types import Node

__all__ = ["MOVING"]


def _data(tracing: Tracing, node: Node) -> Rows:
    """Of the first input; of the others none may depend on a row. What they say may depend on the number of
    rows.
    """
    for v in node.inputs[1:]:
        if v and isinstance(tracing.state(v), Rows):
            raise NotProvenError(f"{v!r} is not the same for all rows")
    state = tracing.state(node.inputs[0])
    if not isinstance(state, Rows):
        raise NotProvenError("the rows are in an input in which it mixes them")
    return state


def _dependent(tracing: Tracing, value: str) -> set[int]:
    """Places of a list of numbers which depend on how many rows there are."""
    state = tracing.state(value) if value else FREE
    return {int(i) for i in np.flatnonzero(state.mask)} if isinstance(state, Sized) else set()


def _reshaped(tracing: Tracing, node: Node) -> State:
    """The order of elements stays: in it rows are `outer` parts of count runs."""
    state = _data(tracing, node)
    before, after = tracing.shape(node.inputs[0]), tracing.shape(node.outputs[0])
    parts = math.prod(before[: state.axis]) * state.outer
    for axis, size in enumerate(after if parts else ()):
        front = math.prod(after[:axis])
        if front and parts % front == 0 and size and size % (parts // front * tracing.count) == 0:
            break
    else:
        raise NotProvenError("it mixes rows with other dimensions")
    if node.op_type == "Squeeze" and axes_of(tracing, node, len(before), 1) is None:
        raise NotProvenError("it names no axes: of one row it would leave none")
    if (
        node.op_type == "Reshape"
        and len(node.inputs) > 1
        and not _dependent(tracing, node.inputs[1]) <= {axis}
    ):
        raise NotProvenError("another dimension depends on how many rows there are")
    outer = parts // front
    return Rows(axis, outer, size // (outer * tracing.count))


def _transposed(tracing: Tracing, node: Node) -> State:
    state, rank = rows_of(tracing, node), len(tracing.shape(node.inputs[0]))
    order = list(node.attributes.get("perm", range(rank)[::-1]))
    return Rows(order.index(state.axis), state.outer, state.inner)


def _concatenated(tracing: Tracing, node: Node) -> State:
    states = {state for v in node.inputs if isinstance(state := tracing.state(v), Rows)}
    if any(isinstance(tracing.state(v), Sized) for v in node.inputs):
        raise NotProvenError("it depends on how many rows there are")
    if len(states) != 1:
        raise NotProvenError("the rows of its inputs lie in different places")
    (state,) = states
    apart(state, [int(tracing.attribute(node, "axis", 1)) % len(tracing.shape(node.inputs[0]))])
    return state


def _split(tracing: Tracing, node: Node) -> State:
    state = rows_of(tracing, node)
    apart(state, [int(tracing.attribute(node, "axis", 0)) % len(tracing.shape(node.inputs[0]))])
    return state


def _sliced(tracing: Tracing, node: Node) -> State:
    state, shape = _data(tracing, node), tracing.shape(node.inputs[0])
    if len(node.inputs) == 1:  # before opset 10
        starts = list(node.attributes["starts"])
        axes = [axis % len(shape) for axis in node.attributes.get("axes", range(len(starts)))]
        steps, depend = [1] * len(axes), set[int]()
    else:
        number = tracing.number(node.inputs[1])
        if number is None:
            raise NotProvenError("where it begins is not known")
        named = axes_of(tracing, node, len(shape), 3)
        axes = list(range(number.size)) if named is None else named
        held = (
            tracing.number(node.inputs[4])
            if len(node.inputs) > 4 and node.inputs[4]
            else np.ones(number.size)
        )
        if held is None or any(_dependent(tracing, v) for v in node.inputs[3:]):
            raise NotProvenError("its axes or steps depend on how many rows there are, or are not known")
        steps = [int(step) for step in np.ravel(held)]
        depend = _dependent(tracing, node.inputs[1]) | _dependent(tracing, node.inputs[2])
    if any(axes[place] != state.axis for place in depend):
        raise NotProvenError("what it takes along another axis depends on how many rows there are")
    if state.axis in axes:
        is_all = tracing.shape(node.outputs[0])[state.axis] == shape[state.axis]
        if not is_all or steps[axes.index(state.axis)] != 1:
            apart(state, axes)
    return state


def _gathered(tracing: Tracing, node: Node) -> State:
    data, indices = (tracing.state(v) for v in node.inputs[:2])
    if isinstance(data, Sized) or isinstance(indices, Sized):
        raise NotProvenError("it depends on how many rows there are")
    rank, axis = len(tracing.shape(node.inputs[0])), int(tracing.attribute(node, "axis", 0))
    axis %= rank
    if isinstance(indices, Rows):
        if data is not FREE:
            raise NotProvenError("it takes from rows what other rows say")
        return Rows(axis + indices.axis, indices.outer, indices.inner)
    state = rows_of(tracing, node)
    apart(state, [axis])
    more = len(tracing.shape(node.inputs[1])) - 1 if state.axis > axis else 0
    return Rows(state.axis + more, state.outer, state.inner)


def _gathered_elements(tracing: Tracing, node: Node) -> State:
    """Index i along the rows' axis takes from index i of it, whichever of both inputs are in rows."""
    states = {state for v in node.inputs if (state := tracing.state(v)) is not FREE}
    shapes = [tracing.shape(v) for v in node.inputs]
    if len(states) != 1 or not isinstance(state := states.pop(), Rows):
        raise NotProvenError("the rows of its inputs lie in different places")
    apart(state, [int(tracing.attribute(node, "axis", 0)) % len(shapes[0])])
    if shapes[0][state.axis] != shapes[1][state.axis]:
        raise NotProvenError("it leaves out some of the rows")
    return state


def _expanded(tracing: Tracing, node: Node) -> State:
    state = _data(tracing, node)
    before, after = tracing.shape(node.inputs[0]), tracing.shape(node.outputs[0])
    axis = state.axis + len(after) - len(before)
    asked = _dependent(tracing, node.inputs[1])
    length = (
        len(tracing.shape(node.outputs[0])) if node.op_type == "Tile" else tracing.shape(node.inputs[1])[0]
    )
    if after[axis] != before[state.axis] or not {place + len(after) - length for place in asked} <= {axis}:
        raise NotProvenError("it repeats rows, or another dimension depends on how many there are")
    return Rows(axis, state.outer, state.inner)


def _padded(tracing: Tracing, node: Node) -> State:
    state, rank = rows_of(tracing, node), len(tracing.shape(node.inputs[0]))
    pads = node.attributes.get("pads", node.attributes.get("paddings"))
    if pads is None:
        pads = tracing.number(node.inputs[1])
    axes = axes_of(tracing, node, rank, 3) or list(range(rank))
    if pads is None or len(np.ravel(pads)) != 2 * len(axes):
        raise NotProvenError("how much it pads is not known")
    sides = np.ravel(pads).reshape(2, -1)
    if any(sides[:, axes.index(axis)].any() for axis in axes if axis == state.axis):
        apart(state, axes)
    return state


def _one_hot(tracing: Tracing, node: Node) -> State:
    state, rank = rows_of(tracing, node), len(tracing.shape(node.outputs[0]))
    axis = int(tracing.attribute(node, "axis", -1)) % rank
    return Rows(state.axis + (state.axis >= axis), state.outer, state.inner)


def _resized(tracing: Tracing, node: Node) -> State:
    """Where the rows' axis keeps its size, by a scale of exactly 1."""
    state, rank = _data(tracing, node), len(tracing.shape(node.inputs[0]))
    mode = tracing.attribute(node, "coordinate_transformation_mode", "")
    policy = tracing.attribute(node, "keep_aspect_ratio_policy", "stretch")
    ways = ("nearest", "linear", "bilinear")
    if tracing.attribute(node, "mode") not in ways or mode == "tf_crop_and_resize" or policy != "stretch":
        raise NotProvenError("nothing is known of this way to resize")
    named = axes_of(tracing, node, rank, None)
    axes = list(range(rank)) if named is None else named
    depend = {axes[place] for v in node.inputs[1:] for place in _dependent(tracing, v)}
    if not depend <= {state.axis}:
        raise NotProvenError("another dimension depends on how many rows there are")
    kept = tracing.shape(node.inputs[0])[state.axis] == tracing.shape(node.outputs[0])[state.axis]
    if state.axis in axes and not (len(node.inputs) > 3 and node.inputs[3] and kept):
        at = 2 if node.op_type == "Resize" and tracing.opset() > 10 else 1
        scales = tracing.number(node.inputs[at]) if at < len(node.inputs) else node.attributes.get("scales")
        if scales is None or np.ravel(scales)[axes.index(state.axis)] != 1:
            apart(state, axes)
    return state


def _triangle(tracing: Tracing, node: Node) -> State:
    state, rank = rows_of(tracing, node), len(tracing.shape(node.inputs[0]))
    apart(state, [rank - 2, rank - 1])
    return state


MOVING: Mapping[str, Rule] = {
    "Concat": _concatenated,
    "Expand": _expanded,
    "Flatten": _reshaped,
    "Gather": _gathered,
    "GatherElements": _gathered_elements,
    "OneHot": _one_hot,
    "Pad": _padded,
    "Reshape": _reshaped,
    "Resize": _resized,
    "Slice": _sliced,
    "Split": _split,
    "Squeeze": _reshaped,
    "Tile": _expanded,
    "Transpose": _transposed,
    "Trilu": _triangle,
    "Unsqueeze": _reshaped,
    "Upsample": _resized,
}
"""By operator."""
