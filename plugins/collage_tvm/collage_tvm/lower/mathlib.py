"""Elementary functions on float32 in arithmetic that vectorises; LLVM would call libm once per lane.

Each is within a few units in the last place of the true value (tests/test_tvm_math.py); other dtypes go to
TVM's own. exp and log are series after range reduction; erf and tanh are odd rational functions fitted to
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.target import Target as TvmTarget

from collage_tvm.bits import is_nan, without_zero
from collage_tvm.tensor import Scope

__all__ = [
    "divide",
    "erf",
    "exp",
    "log",
    "log1p",
    "maximum",
    "minimum",
    "power",
    "round_even",
    "sigmoid",
    "tanh",
    "times",
]

Expr = Any

_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_ERF_P = (1.128379146e00, 1.904060617e-01, 5.274867355e-02, 3.765600243e-03, 2.848824556e-04, 2.050092009e-06)
_ERF_Q = (1.000000000e00, 5.020757198e-01, 1.141089476e-01, 1.496918368e-02, 1.162531619e-03, 3.809174941e-05)
_ERF_LIMIT = 3.92
_TANH_P = (9.999999795e-01, 1.338103131e-01, 3.495594662e-03, 2.060918195e-05, 1.335478483e-08)
_TANH_Q = (1.000000000e00, 4.671434691e-01, 2.587700757e-02, 3.285645163e-04, 7.776611888e-07)
_TANH_LIMIT = 9.0


def _f(value: float) -> Expr:
    return tirx.const(value, "float32")


def _horner(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Polynomial with the coefficients of ascending powers."""
    total: Expr = _f(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = total * x + _f(c)
    return total


def maximum(scope: Scope, x: Expr, y: Expr, dtype: str) -> Expr:
    """The larger; a NaN where either is one. tirx.max(x, y) is y where it cannot tell."""
    return _nan_first(scope, x, y, tirx.max, dtype)


def minimum(scope: Scope, x: Expr, y: Expr, dtype: str) -> Expr:
    """The smaller; a NaN where either is one."""
    return _nan_first(scope, x, y, tirx.min, dtype)


def _nan_first(scope: Scope, x: Expr, y: Expr, choose: Callable[[Expr, Expr], Expr], dtype: str) -> Expr:
    if not dtype.startswith("float"):
        return choose(x, y)
    for one, other in ((x, y), (y, x)):
        if isinstance(one, tirx.FloatImm):
            return one if math.isnan(one.value) else choose(one, other)
    x = scope.let(x)
    return tirx.Select(is_nan(x, dtype), x, choose(x, y))


def round_even(x: Expr, dtype: str) -> Expr:
    """LLVM's own function: TVM writes nearbyint lane by lane, which loses variables. Or CUDA's."""
    target = TvmTarget.current()
    if target is not None and target.kind.name == "cuda":
        return tirx.call_pure_extern(dtype, {"float32": "rintf", "float64": "rint"}[dtype], x)
    return tirx.call_llvm_pure_intrin(dtype, "llvm.roundeven", x)


def divide(x: Expr, y: Expr) -> Expr:
    """x / y, of floats. TVM refuses to divide by a zero that it knows."""
    if isinstance(y, tirx.FloatImm) and y.value == 0:
        return times(x, tirx.const(math.copysign(math.inf, y.value), y.ty.dtype))
    return without_zero(x) / y


def times(x: Expr, y: Expr) -> Expr:
    """x * y, where either may be a zero that TVM knows."""
    return without_zero(x) * without_zero(y)


def exp(scope: Scope, x: Expr, dtype: str) -> Expr:
    if dtype != "float32":
        return tirx.exp(x)
    # the order of the operands of min and max lets a NaN through; beyond the limits the scale over- and
    # underflows as it should
    clamped = scope.let(tirx.max(_f(-104.0), tirx.min(_f(89.0), x)))
    n = scope.let(tirx.floor(clamped * _f(1 / math.log(2)) + _f(0.5)))
    r = scope.let(clamped - n * _f(_LN2_HIGH) - n * _f(_LN2_LOW))
    series = _horner(r, [1 / math.factorial(k) for k in range(8)])
    half = scope.let(tirx.Cast("int32", n) >> 1)
    rest = tirx.Cast("int32", n) - half
    # 2**n in two factors, as n goes beyond what one exponent holds
    scale = [tirx.reinterpret("float32", (e + 127) << 23) for e in (half, rest)]
    return series * scale[0] * scale[1]


def log(scope: Scope, x: Expr, dtype: str) -> Expr:
    if dtype != "float32":
        return tirx.log(x)
    x = scope.let(x)
    tiny = x < _f(1.1754944e-38)
    bits = scope.let(tirx.reinterpret("int32", tirx.Select(tiny, x * _f(2.0**25), x)))
    # mantissa in [sqrt(1/2), sqrt(2))
    e = scope.let((bits - 0x3F3504F3) >> 23)
    m = scope.let(tirx.reinterpret("float32", bits - (e << 23)))
    s = scope.let((m - _f(1.0)) / (m + _f(1.0)))
    z = scope.let(s * s)
    series = s * _f(2.0) + s * z * _horner(z, [2 / k for k in (3, 5, 7, 9)])
    exponent = scope.let(tirx.Cast("float32", e) - tirx.Select(tiny, _f(25.0), _f(0.0)))
    y = exponent * _f(_LN2_HIGH) + (series + exponent * _f(_LN2_LOW))
    y = tirx.Select(x == _f(math.inf), x, y)
    y = tirx.Select(x == _f(0.0), _f(-math.inf), y)
    return tirx.Select(x >= _f(0.0), y, _f(math.nan))


def log1p(scope: Scope, x: Expr, dtype: str) -> Expr:
    """log(1 + x); the error of 1 + x is repaired to first order, which keeps small x exact."""
    one = tirx.const(1.0, dtype)
    x = scope.let(x)
    u = scope.let(x + one)
    return tirx.Select(u == one, x, log(scope, u, dtype) - ((u - one) - x) / u)


def _odd_rational(scope: Scope, x: Expr, p: Sequence[float], q: Sequence[float], limit: float) -> Expr:
    c = scope.let(tirx.max(_f(-limit), tirx.min(_f(limit), x)))
    z = scope.let(c * c)
    return c * _horner(z, p) / _horner(z, q)


def erf(scope: Scope, x: Expr, dtype: str) -> Expr:
    if dtype != "float32":
        return tirx.call_pure_extern("float64", "erf", x)
    # which is a little more than 1 at the limit; 1 + erf is to be nothing far below zero
    erf = _odd_rational(scope, x, _ERF_P, _ERF_Q, _ERF_LIMIT)
    return tirx.max(_f(-1.0), tirx.min(_f(1.0), erf))


def tanh(scope: Scope, x: Expr, dtype: str) -> Expr:
    if dtype != "float32":
        return tirx.tanh(scope.let(x))  # TVM writes it with its operand four times
    return _odd_rational(scope, x, _TANH_P, _TANH_Q, _TANH_LIMIT)


def sigmoid(scope: Scope, x: Expr, dtype: str) -> Expr:
    one = tirx.const(1.0, dtype)
    return one / (one + exp(scope, -x, dtype))


def power(scope: Scope, x: Expr, exponent: float | None, y: Expr, dtype: str) -> Expr:
    """x ** y, `exponent` being y's value where it is known."""
    if exponent is not None and exponent == int(exponent) and 1 <= abs(exponent) <= 4:
        x = scope.let(x)
        result = x
        for _ in range(int(abs(exponent)) - 1):
            result = result * x
        return result if exponent > 0 else divide(tirx.const(1.0, dtype), result)
    if exponent in (0.5, -0.5):
        # unlike the root, the power of -infinity is a number, and that of -0 has no sign
        x = scope.let(x)
        infinity = tirx.const(math.inf, dtype)
        root = tirx.abs(tirx.sqrt(tirx.Select(tirx.EQ(x, -infinity), infinity, x)))
        return root if exponent > 0 else tirx.const(1.0, dtype) / root
    return tirx.pow(x, y)
