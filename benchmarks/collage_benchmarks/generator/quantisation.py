"""Operators between floats and the whole numbers that stand for them."""

from __future__ import annotations

import numpy as np

from collage_benchmarks.generator.builder import FLOATS, Builder, Value
from collage_benchmarks.generator.convolutions import window
from collage_benchmarks.generator.domains import SMALL, Domain
from collage_benchmarks.generator.family import Family

__all__ = ["FAMILY"]

FAMILY = Family()

_SCALES = (0.25, 0.5, 1.0)
"""Powers of two: whoever divides by one gets the same number, and halves are rare."""


@FAMILY.add("QuantizeLinear")
def quantize(b: Builder) -> None:
    x = b.some(b.dtype("QuantizeLinear", "T1", ("float32", "float16")), exact=True)
    dtype = b.dtype("QuantizeLinear", _output(b))
    axis, scale = _scale(b, x)
    zero = _zero(b, dtype, scale.shape) if dtype != "uint8" or b.flag() else None
    b.node("QuantizeLinear", [x, scale, zero], axis=axis)


def _output(b: Builder) -> str:
    return "T2" if b.opset < 23 else "T3"


@FAMILY.add("DequantizeLinear")
def dequantize(b: Builder) -> None:
    parameter = "T" if b.opset < 19 else "T1"
    x = b.some(b.dtype("DequantizeLinear", parameter, ("uint8", "int8", "int32", "int16", "uint16")))
    axis, scale = _scale(b, x, "float32")
    zero = _zero(b, x.dtype, scale.shape) if x.dtype != "int32" and b.flag() else None
    b.node("DequantizeLinear", [x, scale, zero], axis=axis)


def _scale(b: Builder, x: Value, dtype: str | None = None) -> tuple[int | None, Value]:
    """One scale for all, or one for each place on an axis."""
    along = x.rank > 0 and b.flag()
    axis = b.axis(x.rank) if along else None
    shape = () if axis is None else (x.shape[axis],)
    kind = dtype or (x.dtype if b.opset >= 19 and x.dtype in FLOATS else "float32")
    return axis, b.constant(b.rng.choice(_SCALES, shape).astype(kind))


def _zero(b: Builder, dtype: str, shape: tuple[int, ...]) -> Value:
    return b.constant(SMALL.sample(b.rng, dtype, shape))


@FAMILY.add("DynamicQuantizeLinear")
def dynamic(b: Builder) -> None:
    """The range is from -1 to 1.55, so that the step is 0.01 and no element is near a half of it."""
    shape = b.shape(1, 4, 256)
    numbers = (b.rng.integers(-100, 156, shape) / 100).astype("float32")
    flat = numbers.reshape(-1)
    flat[0] = -1.0
    flat[-1] = 1.55 if flat.size > 1 else -1.0
    b.node("DynamicQuantizeLinear", [b.input(numbers)], 3)


@FAMILY.add("QLinearMatMul")
def qlinear_matmul(b: Builder) -> None:
    """Scales are powers of two that bring no product near a half: a result is exact or cut."""
    parameters = ("T1", "T2", "T3")
    first, second, third = (b.dtype("QLinearMatMul", p, ("uint8", "int8")) for p in parameters)
    m, k, n = (b.choice([1, 3, 7, 16]) for _ in range(3))
    lead = b.choice([(), (2,)])
    x = b.operand(first, (*lead, m, k), Domain(-9, 9))
    y = b.operand(second, (*lead, k, n), Domain(-9, 9))
    operands: list[Value] = []
    for v in (x, y):
        operands += [v, _scalar(b, 1.0), _zero(b, v.dtype, ())]
    operands += [_scalar(b, b.choice([1.0, 0.5])), _zero(b, third, ())]
    b.node("QLinearMatMul", operands)


@FAMILY.add("QLinearConv")
def qlinear_conv(b: Builder) -> None:
    w = window(b)
    first, second, third = (b.dtype("QLinearConv", p, ("uint8", "int8")) for p in ("T1", "T2", "T3"))
    channels, outside = b.sizes((1, 3), (1, 4))
    x = b.operand(first, (b.integer(1, 2), channels, *w.sizes), Domain(-9, 9))
    weights = b.operand(second, (outside, channels, *w.kernel), Domain(-9, 9))
    operands: list[Value | None] = [x, _scalar(b, 1.0), _zero(b, first, ()), weights, _scalar(b, 1.0)]
    operands += [_zero(b, second, ()), _scalar(b, b.choice([1.0, 0.5])), _zero(b, third, ())]
    operands.append(b.constant(Domain(-9, 9).sample(b.rng, "int32", (outside,))) if b.flag() else None)
    b.node("QLinearConv", operands, **w.attributes)


def _scalar(b: Builder, number: float) -> Value:
    return b.constant(np.asarray(number, "float32"))
