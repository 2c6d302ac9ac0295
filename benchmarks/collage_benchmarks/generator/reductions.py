"""Operators that reduce over axes, or accumulate along one."""

from __future__ import annotations

import numpy as np

from collage_benchmarks.generator.builder import FLOATS, Builder, Value
from collage_benchmarks.generator.domains import ANY, DISTINCT, POSITIVE, Domain
from collage_benchmarks.generator.family import Family

__all__ = ["FAMILY"]

FAMILY = Family()

_REDUCTIONS = {
    "ReduceL1": ANY,
    "ReduceL2": ANY,
    "ReduceLogSum": POSITIVE,
    "ReduceLogSumExp": ANY,
    "ReduceMax": ANY,
    "ReduceMean": ANY,
    "ReduceMin": ANY,
    "ReduceProd": Domain(0.75, 1.25),
    "ReduceSum": ANY,
    "ReduceSumSquare": ANY,
}


@FAMILY.add(*_REDUCTIONS)
def reduce(b: Builder, op: str) -> None:
    """Axes are an attribute at first, an input since opset 13 (ReduceSum) or 18 (the others).

    Of logarithms ONNX does not say how they become whole numbers, so those are of floats.
    """
    dtype = b.dtype(op, None, FLOATS if "Log" in op else None)
    x = b.some(dtype, domain=_REDUCTIONS[op])
    keep = b.choice([None, 0, 1])
    axes = b.axes(x.rank) if x.rank and b.one_in(4) is False else None
    if op != "ReduceSum" and b.opset < 18:
        b.node(op, [x], axes=axes, keepdims=keep)
        return
    idle = b.choice([None, 0, 1])
    given: Value | None = None
    if axes is not None:
        given = b.parameter(axes)
    elif b.one_in(4):
        given = b.constant(np.zeros(0, "int64"))
    b.node(op, [x, given], keepdims=keep, noop_with_empty_axes=idle)


@FAMILY.add("ArgMax", "ArgMin")
def place(b: Builder, op: str) -> None:
    x = b.some(b.dtype(op), 1, 5, DISTINCT)
    axis = None if b.one_in(4) else b.axis(x.rank)
    last = b.choice([None, 0, 1])
    b.node(op, [x], axis=axis, keepdims=b.choice([None, 0, 1]), select_last_index=last)


@FAMILY.add("CumSum")
def cumulative(b: Builder) -> None:
    x = b.some(b.dtype("CumSum"), 1, 5)
    axis = b.parameter(b.axis(x.rank), b.choice(["int64", "int32"]))
    b.node("CumSum", [x, axis], exclusive=b.choice([None, 0, 1]), reverse=b.choice([None, 0, 1]))


@FAMILY.add("Softmax", "LogSoftmax")
def softmax(b: Builder, op: str) -> None:
    x = b.some(b.dtype(op), 1, 5, Domain(-8, 8))
    b.node(op, [x], axis=None if b.one_in(4) else b.axis(x.rank))


@FAMILY.add("Hardmax")
def hardmax(b: Builder) -> None:
    x = b.some(b.dtype("Hardmax"), 1, 5, DISTINCT)
    b.node("Hardmax", [x], axis=None if b.one_in(4) else b.axis(x.rank))
