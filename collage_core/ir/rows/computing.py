"""Rows behind operators that compute: elementwise, over some axes, products."""

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
    beside,
    rows_of,
)
from collage_core.ir.types import Node

__all__ = ["COMPUTING", "elementwise"]


def elementwise(tracing: Tracing, node: Node) -> State:
    if tracing.opset() < 7 and len({tracing.shape(v) for v in node.inputs if v}) > 1:
        rows_of(tracing, node)  # then only the second input was broadcast
    return _joined(tracing, node, len(tracing.shape(node.outputs[0])))


def _joined(tracing: Tracing, node: Node, rank: int) -> Rows:
    """Of inputs that are broadcast to `rank`: rows of all of them lie in the same place."""
    found: set[Rows] = set()
    for v in node.inputs:
        state = tracing.state(v) if v else FREE
        if isinstance(state, Sized):
            raise NotProvenError(f"{v!r} depends on how many rows there are")
        if isinstance(state, Rows):
            axis = state.axis + rank - len(tracing.shape(v))
            found.add(Rows(axis, state.outer, state.inner))
    if len(found) != 1:
        raise NotProvenError("the rows of its inputs lie in different places")
    (lying,) = found
    for v in node.inputs:
        beside(tracing, lying, v, lying.axis - rank)
    return lying


def _first_axis(tracing: Tracing, node: Node) -> State:
    """What treats each index along the first axis by itself."""
    state = rows_of(tracing, node)
    if state.axis != 0:
        raise NotProvenError(f"rows lie along axis {state.axis}, and it treats the first one alone by itself")
    if node.op_type == "MaxPool" and len([v for v in node.outputs if v]) > 1:
        raise NotProvenError("its indices are those of all rows together")
    return state


def _normalised(tracing: Tracing, node: Node) -> State:
    if node.op_type == "BatchNormalization":
        if tracing.attribute(node, "training_mode", 0) or len([v for v in node.outputs if v]) > 1:
            raise NotProvenError("it normalises over the rows: it is in training mode")
        if tracing.opset() < 7 and not tracing.attribute(node, "is_test", 0):
            raise NotProvenError("it normalises over the rows: it is in training mode")
    state = rows_of(tracing, node)
    for v in node.inputs[1:] if state.axis else ():
        beside(tracing, state, v, state.axis - 1, exactly=True)  # they have no axis of samples
    return state


def _quantised(tracing: Tracing, node: Node) -> State:
    """By one scale, by one for each index along an axis, or by one for each block of them."""
    state, rank = rows_of(tracing, node), len(tracing.shape(node.inputs[0]))
    axis = int(tracing.attribute(node, "axis", 1)) % rank
    if tracing.attribute(node, "block_size", 0):
        apart(state, [axis])
        for v in node.inputs[1:]:
            beside(tracing, state, v, state.axis, exactly=True)
    elif axis == state.axis:
        for v in node.inputs[1:]:
            beside(tracing, state, v, 0)
    return state


def _reduced(tracing: Tracing, node: Node) -> State:
    state, rank = rows_of(tracing, node), len(tracing.shape(node.inputs[0]))
    if node.op_type in ("ArgMax", "ArgMin"):
        axes = [int(tracing.attribute(node, "axis", 0)) % rank]
    else:
        named = axes_of(tracing, node, rank, 1)
        if not named and tracing.attribute(node, "noop_with_empty_axes", 0):
            return state
        axes = named or list(range(rank))
    apart(state, axes)
    if tracing.attribute(node, "keepdims", 1):
        return state
    return Rows(state.axis - sum(axis < state.axis for axis in axes), state.outer, state.inner)


def _along(tracing: Tracing, node: Node) -> State:
    """What works along one axis, or in old Softmax from there on."""
    state, rank = rows_of(tracing, node), len(tracing.shape(node.inputs[0]))
    if node.op_type == "CumSum":
        number = tracing.number(node.inputs[1])
        if number is None:
            raise NotProvenError("its axis is not known")
        axis = int(np.ravel(number)[0]) % rank
    else:
        axis = int(tracing.attribute(node, "axis", -1)) % rank
    is_flat = node.op_type in ("Softmax", "LogSoftmax", "Hardmax") and tracing.opset() < 13
    if node.op_type in ("LayerNormalization", "RMSNormalization") or is_flat:
        apart(state, range(axis, rank))
        for v in node.inputs[1:]:
            beside(tracing, state, v, state.axis - rank)
    apart(state, [axis])
    return state


def _mean_variance(tracing: Tracing, node: Node) -> State:
    state, rank = rows_of(tracing, node), len(tracing.shape(node.inputs[0]))
    apart(state, [axis % rank for axis in tracing.attribute(node, "axes", (0, 2, 3))])
    return state


def _gemm(tracing: Tracing, node: Node) -> State:
    a, b = (tracing.state(v) for v in node.inputs[:2])
    turned = tuple(bool(tracing.attribute(node, name, 0)) for name in ("transA", "transB"))
    both = isinstance(a, Rows) and isinstance(b, Rows)
    if both or any(isinstance(tracing.state(v), Sized) for v in node.inputs if v):
        raise NotProvenError("it mixes rows, or depends on how many there are")
    found = set()
    if isinstance(a, Rows):
        if a.axis != int(turned[0]):
            raise NotProvenError("it adds up over the rows")
        found.add(Rows(0, a.outer, a.inner))
    if isinstance(b, Rows):
        if b.axis != int(not turned[1]):
            raise NotProvenError("it adds up over the rows")
        found.add(Rows(1, b.outer, b.inner))
    added = node.inputs[2] if len(node.inputs) > 2 else ""
    if added and isinstance(c := tracing.state(added), Rows):
        found.add(Rows(c.axis + 2 - len(tracing.shape(added)), c.outer, c.inner))
    if len(found) != 1:
        raise NotProvenError("the rows of its inputs lie in different places")
    (state,) = found
    beside(tracing, state, added, state.axis - 2)
    return state


def _matmul(tracing: Tracing, node: Node) -> State:
    first, second = node.inputs[0], node.inputs[3 if node.op_type == "QLinearMatMul" else 1]
    others = [v for v in node.inputs if v and v not in (first, second)]
    if any(tracing.state(v) is not FREE for v in others):
        raise NotProvenError("its scales are not the same for all rows")
    lying, rank = _multiplied(tracing, node, first, second), len(tracing.shape(node.outputs[0]))
    for v in node.inputs if lying.axis < rank - 2 else ():
        beside(tracing, lying, v, lying.axis - rank)
    for operand, places in zip((first, second), _SCALES.get(node.op_type, ((), ())), strict=True):
        scales = [node.inputs[i] for i in places if i < len(node.inputs) and node.inputs[i]]
        if tracing.state(operand) is not FREE and any(math.prod(tracing.shape(v)) != 1 for v in scales):
            raise NotProvenError("it may have a scale for each row")
    return lying


_SCALES: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "MatMulInteger": ((2,), (3,)),
    "QLinearMatMul": ((1, 2, 6, 7), (4, 5, 6, 7)),
}
"""Which inputs are scales and zero points of the first operand, or of the second; of the product in both."""


def _multiplied(tracing: Tracing, node: Node, first: str, second: str) -> Rows:
    """Of the product of two operands."""
    a, b = tracing.state(first), tracing.state(second)
    shapes = tracing.shape(first), tracing.shape(second)
    rank = len(tracing.shape(node.outputs[0]))
    if isinstance(a, Sized) or isinstance(b, Sized):
        raise NotProvenError("it depends on how many rows there are")
    if a is not FREE and b is not FREE:
        if min(map(len, shapes)) < 3:
            raise NotProvenError("it multiplies rows with each other")
        lying = {
            Rows(s.axis + rank - len(shape), s.outer, s.inner)
            for s, shape in zip((a, b), shapes, strict=True)
        }
        if len(lying) != 1 or (found := lying.pop()).axis >= rank - 2:
            raise NotProvenError("it multiplies rows with each other")
        return found
    if a is not FREE:
        if a.axis == len(shapes[0]) - 1:
            raise NotProvenError("it adds up over the rows")
        back = len(shapes[0]) - a.axis - (1 if len(shapes[1]) == 1 else 0)
        return Rows(rank - back, a.outer, a.inner)
    assert b is not FREE
    if b.axis == max(0, len(shapes[1]) - 2):
        raise NotProvenError("it adds up over the rows")
    back = len(shapes[1]) - b.axis - (1 if len(shapes[0]) == 1 and b.axis < len(shapes[1]) - 1 else 0)
    return Rows(rank - back, b.outer, b.inner)


def _recurrent(tracing: Tracing, node: Node) -> State:
    """Sequences: rows lie along the second axis of the input, of the states and of the outputs."""
    if tracing.attribute(node, "layout", 0):
        raise NotProvenError("nothing is known of this layout")
    for number, v in enumerate(node.inputs):
        state = tracing.state(v) if v else FREE
        axis = 0 if number == 4 else 1  # the sequences' lengths
        if isinstance(state, Sized) or (
            state is not FREE and (number in (1, 2, 3, 7) or state != Rows(axis))
        ):
            raise NotProvenError(f"the rows of {v!r} do not lie along axis {axis}")
        if number in (0, 4, 5, 6):
            beside(tracing, Rows(axis), v, axis, exactly=True)
    return Rows(1)


def _attention(tracing: Tracing, node: Node) -> State:
    """Queries, keys and values, past ones too, have rows along their first axis; what else there is, is the
    same for all.
    """
    states = [tracing.state(v) if v else FREE for v in node.inputs]
    if any(state not in (FREE, Rows(0)) or number in (3, 6) for number, state in enumerate(states) if state):
        raise NotProvenError("the rows of its inputs do not lie along their first axis")
    for number, v in enumerate(node.inputs):
        if number == 3:  # the mask is broadcast to four dimensions
            beside(tracing, Rows(0), v, -4)
        else:
            beside(tracing, Rows(0), v, 0, exactly=True)
    return Rows(0)


def _einsum(tracing: Tracing, node: Node) -> State:
    left, arrow, made = str(node.attributes["equation"]).replace(" ", "").partition("->")
    if not arrow or "." in left or any(len({*term}) < len(term) for term in left.split(",")):
        raise NotProvenError("nothing is known of this form of it")
    found = set()
    for v, term in zip(node.inputs, left.split(","), strict=True):
        state = tracing.state(v)
        if isinstance(state, Sized):
            raise NotProvenError(f"{v!r} depends on how many rows there are")
        if state is not FREE:
            found.add((term[state.axis], state.outer, state.inner))
    if len(found) != 1:
        raise NotProvenError("the rows of its inputs have different letters")
    letter, outer, inner = found.pop()
    if letter not in made:
        raise NotProvenError("it adds up over the rows")
    lying = Rows(made.index(letter), outer, inner)
    for v, term in zip(node.inputs, left.split(","), strict=True):
        if letter in term:
            beside(tracing, lying, v, term.index(letter))
    return lying


_BY_ROW = (
    "AveragePool Conv ConvInteger ConvTranspose DepthToSpace GlobalAveragePool GlobalLpPool GlobalMaxPool "
    "GroupNormalization InstanceNormalization LpPool LRN MaxPool QLinearConv SpaceToDepth"
)
_REDUCING = (
    "ArgMax ArgMin ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd "
    "ReduceSum ReduceSumSquare"
)
_ALONG = "CumSum Hardmax LayerNormalization LogSoftmax LpNormalization RMSNormalization Softmax TopK"
COMPUTING: Mapping[str, Rule] = {
    **dict.fromkeys(_BY_ROW.split(), _first_axis),
    **dict.fromkeys(_REDUCING.split(), _reduced),
    **dict.fromkeys(_ALONG.split(), _along),
    "Attention": _attention,
    "BatchNormalization": _normalised,
    "DequantizeLinear": _quantised,
    "Dropout": rows_of,
    "Einsum": _einsum,
    "Gemm": _gemm,
    "GRU": _recurrent,
    "LSTM": _recurrent,
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "MeanVarianceNormalization": _mean_variance,
    "QLinearMatMul": _matmul,
    "QuantizeLinear": _quantised,
    "RNN": _recurrent,
}
"""By operator; what is elementwise is not listed."""
