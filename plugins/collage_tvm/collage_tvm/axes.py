"""What attributes say, above all which axes an operator reduces: told without TVM."""

from __future__ import annotations

import numpy as np

from collage_core.ir import Operator

__all__ = ["reduced_axes", "text_of"]


def text_of(op: Operator, name: str, default: str) -> str:
    """An attribute that is text."""
    value = op.attribute(name, default)
    return value.decode() if isinstance(value, bytes) else str(value)


def _softmax_axes(op: Operator) -> tuple[int, ...]:
    """Of a Softmax or LogSoftmax: its axis; before opset 13 all from its axis on."""
    rank = _rank(op)
    if op.graph.opsets.get("", 13) >= 13:
        return (op.attribute("axis", -1) % rank,)
    axis = op.attribute("axis", 1)
    return tuple(range(axis % rank if axis != rank else rank, rank))


def reduced_axes(op: Operator) -> tuple[int, ...]:
    """Of any operator that reduces whole axes, ascending."""
    rank = _rank(op)
    if op.op_type in ("Softmax", "LogSoftmax"):
        return _softmax_axes(op)
    if op.op_type == "LayerNormalization":
        return tuple(range(op.attribute("axis", -1) % rank, rank))
    if op.op_type in ("ArgMax", "ArgMin"):
        return (op.attribute("axis", 0) % rank,)
    if op.op_type.startswith("Global") or op.op_type == "InstanceNormalization":
        return tuple(range(2, rank))
    given = op.attribute("axes")
    if given is None and len(op.node.inputs) > 1 and op.node.inputs[1]:
        given = np.ravel(op.graph.constants[op.node.inputs[1]])
    axes = sorted({int(a) % rank for a in given}) if given is not None and len(given) else range(rank)
    return tuple(axes)


def _rank(op: Operator) -> int:
    type = op.input_type(0)
    assert type is not None
    return len(type.shape)
