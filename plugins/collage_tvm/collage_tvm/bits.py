"""What TVM does not say of floats, by their bits."""

from __future__ import annotations

import math
from typing import Any

from tvm import tirx

__all__ = ["is_nan", "is_zero", "narrowed", "widened", "without_zero"]

Expr = Any

_INFINITY = {"float16": 0x7C00, "float32": 0x7F800000, "float64": 0x7FF0000000000000}


def is_nan(x: Expr, dtype: str) -> Expr:
    """TVM writes its own isnan lane by lane, which loses variables, and takes x != x for false."""
    return _magnitude(x, dtype) > tirx.const(_INFINITY[dtype], dtype.replace("float", "int"))


def is_zero(x: Expr, dtype: str) -> Expr:
    """TVM's x != 0 does not hold for a NaN."""
    return tirx.EQ(_magnitude(x, dtype), tirx.const(0, dtype.replace("float", "int")))


def widened(x: Expr) -> Expr:
    """bfloat16's bits as the same float32: these are its upper half."""
    return tirx.reinterpret("float32", tirx.Cast("uint32", x) << tirx.const(16, "uint32"))


def narrowed(x: Expr) -> Expr:
    """A float32 as bfloat16's bits: rounded to the nearest, half-way to the even one. NaNs are quiet."""

    def number(value: int) -> Expr:
        return tirx.const(value, "uint32")

    bits = tirx.reinterpret("uint32", x)
    upper = bits >> number(16)
    rounded = (bits + number(0x7FFF) + (upper & number(1))) >> number(16)
    quiet = upper | number(0x40)
    return tirx.Cast("uint16", tirx.Select(is_nan(x, "float32"), quiet, rounded))


def without_zero(x: Expr) -> Expr:
    """`x`, of floats; a zero that TVM knows as one that it does not know.

    It would take 0 * y and 0 / y for 0, which of infinities and NaNs are NaN.
    """
    if not isinstance(x, tirx.FloatImm) or x.value:
        return x
    below = tirx.reinterpret(x.ty.dtype, tirx.min_value(x.ty.dtype.replace("float", "int")))
    return below if math.copysign(1.0, x.value) < 0 else tirx.abs(below)  # it reinterprets no integer 0


def _magnitude(x: Expr, dtype: str) -> Expr:
    """The bits of |x| as an integer."""
    kind = dtype.replace("float", "int")
    return tirx.reinterpret(kind, x) & tirx.max_value(kind)
