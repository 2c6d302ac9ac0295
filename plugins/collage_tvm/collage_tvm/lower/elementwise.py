"""Elementwise and broadcast operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import tirx

from collage_tvm.bits import is_nan, is_zero
from collage_tvm.lower import mathlib
from collage_tvm.lower.context import LoweringContext, broadcast, lowering, scalar_value
from collage_tvm.tensor import ARITHMETIC, TRANSCENDENTAL, Scope, Tensor, constant, make

Expr = Any
Math = Callable[[Scope, Expr, str, LoweringContext], Expr]


def _unary(op: str, weight: int, function: Math) -> None:
    @lowering(op)
    def lower(node: LoweringContext) -> list[Tensor]:
        x = node.tensor(0)

        def element(s: Scope, i: tuple[Any, ...]) -> Expr:
            return function(s, s.value(x, i), x.dtype, node)

        return [make(x.shape, node.dtype(), [x], element, weight=weight, factors=x.factors, cuts=x.cuts)]


def pointwise(
    node: LoweringContext, inputs: Sequence[Tensor], weight: int, function: Callable[..., Expr]
) -> Tensor:
    """`function(scope, *elements)` over inputs that are broadcast against each other."""
    shape, factors, cuts = broadcast(inputs)

    def element(s: Scope, i: tuple[Any, ...]) -> Expr:
        def at(x: Tensor) -> Expr:
            own = i[len(i) - len(x.shape) :]
            if all(d == e for d, e in zip(x.shape, shape[len(i) - len(x.shape) :], strict=True)):
                return s.value(x, own)
            return s.value(x, tuple(0 if d == 1 else k for d, k in zip(x.shape, own, strict=True)))

        return function(s, *[at(x) for x in inputs])

    return make(shape, node.dtype(), inputs, element, weight=weight, factors=factors, cuts=cuts)


def _nary(op: str, function: Callable[[Scope, Expr, Expr, str], Expr], mean: bool = False) -> None:
    @lowering(op)
    def lower(node: LoweringContext) -> list[Tensor]:
        inputs = node.tensors()
        dtype = inputs[0].dtype

        def combine(s: Scope, *x: Expr) -> Expr:
            total = x[0]
            for y in x[1:]:
                total = function(s, total, y, dtype)
            return total / constant(len(x), dtype) if mean else total

        return [pointwise(node, inputs, ARITHMETIC * max(1, len(inputs) - 1), combine)]


def _divisor(y: Expr, dtype: str) -> Expr:
    """`y`, or 1 where dividing an integer by it ends the process: by 0, and the least number by -1."""
    traps = tirx.EQ(y, constant(0, dtype))
    if dtype.startswith("int"):
        traps = tirx.Or(traps, tirx.EQ(y, constant(-1, dtype)))
    return tirx.Select(traps, _one(dtype), y)


def _one(dtype: str) -> Expr:
    return constant(1, dtype)


def _sign(s: Scope, x: Expr, t: str, n: LoweringContext) -> Expr:
    zero = constant(0, t)
    return tirx.Select(
        x > zero, _one(t), tirx.Select(x < zero, constant(-1, t), x if t.startswith("float") else zero)
    )


def _select(condition: Expr, x: Expr, y: Expr) -> Expr:
    return tirx.Select(condition, x, y)


def _gelu(s: Scope, x: Expr, t: str, n: LoweringContext) -> Expr:
    x = s.let(x)
    half = constant(0.5, t)
    if n.attribute("approximate", "none") == "tanh":
        inner = constant(math.sqrt(2 / math.pi), t) * (x + constant(0.044715, t) * x * x * x)
        return half * x * (_one(t) + mathlib.tanh(s, inner, t))
    return half * x * (_one(t) + mathlib.erf(s, x * constant(math.sqrt(0.5), t), t))


def _elu(s: Scope, x: Expr, t: str, n: LoweringContext) -> Expr:
    x = s.let(x)
    zero = constant(0, t)
    below = mathlib.exp(s, tirx.min(zero, x), t) - _one(t)
    return _select(x > zero, x, mathlib.times(constant(n.attribute("alpha", 1.0), t), below))


def _celu(s: Scope, x: Expr, t: str, n: LoweringContext) -> Expr:
    alpha, zero, x = constant(n.attribute("alpha", 1.0), t), constant(0, t), s.let(x)
    shrunk = mathlib.divide(tirx.min(zero, x), alpha)
    return tirx.max(zero, x) + tirx.min(zero, alpha * (mathlib.exp(s, shrunk, t) - _one(t)))


def _selu(s: Scope, x: Expr, t: str, n: LoweringContext) -> Expr:
    x = s.let(x)
    zero, alpha = constant(0, t), n.attribute("alpha", 1.67326319217681884765625)
    negative = mathlib.times(constant(alpha, t), mathlib.exp(s, tirx.min(zero, x), t) - _one(t))
    gamma = constant(n.attribute("gamma", 1.05070102214813232421875), t)
    return mathlib.times(gamma, _select(x > zero, x, negative))


def _hard_sigmoid(s: Scope, x: Expr, t: str, alpha: float, beta: float) -> Expr:
    line = mathlib.times(constant(alpha, t), x) + constant(beta, t)
    return tirx.max(constant(0, t), tirx.min(_one(t), line))


def _hard_swish(s: Scope, x: Expr, t: str, n: LoweringContext) -> Expr:
    x = s.let(x)
    # ONNX defines it by an attribute, which is a float32
    return x * _hard_sigmoid(s, x, t, float(np.float32(1 / 6)), 0.5)


def _softplus(s: Scope, x: Expr, t: str, n: LoweringContext | None = None) -> Expr:
    x = s.let(x)
    return tirx.max(constant(0, t), x) + mathlib.log1p(s, mathlib.exp(s, -tirx.abs(x), t), t)


def _mish(s: Scope, x: Expr, t: str, n: LoweringContext) -> Expr:
    # tanh(log(1 + e)) is n / (n + 2) with n = e * (e + 2): one exponential instead of three functions; beyond
    # the limit it is 1. The order of min's operands lets a NaN through.
    x = s.let(x)
    e = s.let(mathlib.exp(s, tirx.min(constant(20.0, t), x), t))
    n = s.let(e * (e + constant(2.0, t)))
    return x * (n / (n + constant(2.0, t)))


def _swish(s: Scope, x: Expr, t: str, n: LoweringContext) -> Expr:
    x = s.let(x)
    return x * mathlib.sigmoid(s, mathlib.times(constant(n.attribute("alpha", 1.0), t), x), t)


def _leaky(s: Scope, x: Expr, t: str, n: LoweringContext) -> Expr:
    x = s.let(x)
    return _select(x < constant(0, t), mathlib.times(constant(n.attribute("alpha", 0.01), t), x), x)


def _thresholded(s: Scope, x: Expr, t: str, n: LoweringContext) -> Expr:
    x = s.let(x)
    return _select(x > constant(n.attribute("alpha", 1.0), t), x, constant(0, t))


def _shrink(s: Scope, x: Expr, t: str, n: LoweringContext) -> Expr:
    x = s.let(x)
    bias, lambd = constant(n.attribute("bias", 0.0), t), n.attribute("lambd", 0.5)
    inner = _select(x > constant(lambd, t), x - bias, constant(0, t))
    return _select(x < constant(-lambd, t), x + bias, inner)


def _cast(s: Scope, x: Expr, t: str, n: LoweringContext) -> Expr:
    target = n.dtype()
    if target == t:
        return x
    if target == "bool":
        return tirx.Not(is_zero(x, t)) if t.startswith("float") else tirx.NE(x, constant(0, t))
    if t == "bool":
        return tirx.Select(x, constant(1, target), constant(0, target))
    return tirx.Cast(target, x)


_ONCE: dict[str, Math] = {
    "Abs": lambda s, x, t, n: tirx.abs(s.let(x)),  # of integers TVM makes a selection
    "Cast": _cast,
    "Ceil": lambda s, x, t, n: tirx.ceil(x),
    "Dropout": lambda s, x, t, n: x,
    "Floor": lambda s, x, t, n: tirx.floor(x),
    "HardSigmoid": lambda s, x, t, n: _hard_sigmoid(
        s, x, t, n.attribute("alpha", 0.2), n.attribute("beta", 0.5)
    ),
    "HardSwish": _hard_swish,
    "Identity": lambda s, x, t, n: x,
    "IsNaN": lambda s, x, t, n: is_nan(x, t),
    "LeakyRelu": _leaky,
    "Neg": lambda s, x, t, n: constant(0, t) - x if not t.startswith("float") else -x,
    "Not": lambda s, x, t, n: tirx.Not(x),
    "Reciprocal": lambda s, x, t, n: mathlib.divide(_one(t), x),
    "Relu": lambda s, x, t, n: tirx.max(constant(0, t), x),
    "Round": lambda s, x, t, n: mathlib.round_even(x, t),
    "Shrink": _shrink,
    "Sign": lambda s, x, t, n: _sign(s, s.let(x), t, n),
    "Softsign": lambda s, x, t, n: (lambda y: y / (_one(t) + tirx.abs(y)))(s.let(x)),
    "Sqrt": lambda s, x, t, n: tirx.sqrt(x),
    "ThresholdedRelu": _thresholded,
}
_COSTLY: dict[str, Math] = {
    "Celu": _celu,
    "Cos": lambda s, x, t, n: tirx.cos(x),
    "Elu": _elu,
    "Erf": lambda s, x, t, n: mathlib.erf(s, x, t),
    "Exp": lambda s, x, t, n: mathlib.exp(s, x, t),
    "Gelu": _gelu,
    "Log": lambda s, x, t, n: mathlib.log(s, x, t),
    "Mish": _mish,
    "Selu": _selu,
    "Sigmoid": lambda s, x, t, n: mathlib.sigmoid(s, x, t),
    "Sin": lambda s, x, t, n: tirx.sin(x),
    "Softplus": _softplus,
    "Swish": _swish,
    "Tanh": lambda s, x, t, n: mathlib.tanh(s, x, t),
}
for _op, _function in _ONCE.items():
    _unary(_op, 0 if _op in ("Identity", "Dropout") else ARITHMETIC, _function)
for _op, _function in _COSTLY.items():
    _unary(_op, TRANSCENDENTAL, _function)

_nary("Add", lambda s, x, y, t: x + y)
_nary("Sub", lambda s, x, y, t: x - y)
_nary("Mul", lambda s, x, y, t: mathlib.times(x, y))
_nary("Max", mathlib.maximum)
_nary("Min", mathlib.minimum)
_nary("Sum", lambda s, x, y, t: x + y)
_nary("Mean", lambda s, x, y, t: x + y, mean=True)
_nary("And", lambda s, x, y, t: tirx.And(x, y))
_nary("Or", lambda s, x, y, t: tirx.Or(x, y))
_nary("Xor", lambda s, x, y, t: tirx.NE(_cast_bool(x), _cast_bool(y)))
_nary("Equal", lambda s, x, y, t: tirx.EQ(_cast_bool(x), _cast_bool(y)) if t == "bool" else tirx.EQ(x, y))
_nary("Greater", lambda s, x, y, t: x > y)
_nary("GreaterOrEqual", lambda s, x, y, t: x >= y)
_nary("Less", lambda s, x, y, t: x < y)
_nary("LessOrEqual", lambda s, x, y, t: x <= y)


def _cast_bool(x: Expr) -> Expr:
    return tirx.Select(x, constant(1, "int32"), constant(0, "int32"))


@lowering("Div")
def _div(node: LoweringContext) -> list[Tensor]:
    x, y = node.tensor(0), node.tensor(1)
    zero = constant(0, x.dtype)

    def exact(s: Scope, a: Expr, b: Expr) -> Expr:
        return mathlib.divide(a, b)

    def truncated(s: Scope, a: Expr, b: Expr) -> Expr:
        # As NumPy has it: 0 of a division by 0, and the least number of its division by -1.
        a, b = s.let(a), s.let(b)
        quotient = tirx.Select(tirx.EQ(b, zero), zero, tirx.truncdiv(a, _divisor(b, x.dtype)))
        if not x.dtype.startswith("int"):
            return quotient
        return tirx.Select(tirx.EQ(b, constant(-1, x.dtype)), zero - a, quotient)

    return [pointwise(node, [x, y], ARITHMETIC, exact if x.dtype.startswith("float") else truncated)]


@lowering("Mod")
def _mod(node: LoweringContext) -> list[Tensor]:
    x, y = node.tensor(0), node.tensor(1)
    zero = constant(0, x.dtype)

    def rest(s: Scope, a: Expr, b: Expr) -> Expr:
        if x.dtype.startswith("float"):
            return tirx.truncmod(a, b)
        return tirx.truncmod(a, _divisor(s.let(b), x.dtype))

    def floored(s: Scope, a: Expr, b: Expr) -> Expr:
        # TVM would write floormod with a name inside the expression, and fail on a name that its analysis
        # meets twice and knows more of the second time
        b = s.let(b)
        left = s.let(rest(s, a, b))
        apart = tirx.And(tirx.min(left, b) < zero, tirx.max(left, b) > zero)
        return left + tirx.Select(apart, b, zero)

    return [pointwise(node, [x, y], ARITHMETIC, rest if node.attribute("fmod", 0) else floored)]


@lowering("PRelu")
def _prelu(node: LoweringContext) -> list[Tensor]:
    x, slope = node.tensor(0), node.tensor(1)

    def combine(s: Scope, a: Expr, b: Expr) -> Expr:
        a = s.let(a)
        return _select(a < constant(0, x.dtype), mathlib.times(a, b), a)

    return [pointwise(node, [x, slope], ARITHMETIC, combine)]


@lowering("Pow")
def _pow(node: LoweringContext) -> list[Tensor]:
    x, y = node.tensor(0), node.tensor(1)
    exponent = scalar_value(node.constant(1))
    cheap = exponent is not None and (
        exponent in (0.5, -0.5) or (exponent == int(exponent) and 1 <= abs(exponent) <= 4)
    )
    if cheap and math.prod(broadcast([x, y])[0]) == math.prod(x.shape) and len(x.shape) >= len(y.shape):
        return [pointwise(node, [x], ARITHMETIC, lambda s, a: mathlib.power(s, a, exponent, None, x.dtype))]

    def combine(s: Scope, a: Expr, b: Expr) -> Expr:
        return mathlib.power(s, a, None, b if y.dtype == x.dtype else tirx.Cast(x.dtype, b), x.dtype)

    return [pointwise(node, [x, y], TRANSCENDENTAL, combine)]


@lowering("Where")
def _where(node: LoweringContext) -> list[Tensor]:
    return [pointwise(node, node.tensors(), ARITHMETIC, lambda s, c, x, y: _select(c, s.let(x), s.let(y)))]


@lowering("Clip")
def _clip(node: LoweringContext) -> list[Tensor]:
    x = node.tensor(0)
    # before opset 11 the bounds are attributes
    low = node.tensor(1) if node.has(1) else node.immediate("min", x.dtype)
    high = node.tensor(2) if node.has(2) else node.immediate("max", x.dtype)
    bounds = [b for b in (low, high) if b is not None]

    def combine(s: Scope, a: Expr, *limits: Expr) -> Expr:
        rest = list(limits)
        if low is not None:
            a = mathlib.maximum(s, a, rest.pop(0), x.dtype)
        return mathlib.minimum(s, a, rest.pop(0), x.dtype) if high is not None else a

    return [pointwise(node, [x, *bounds], ARITHMETIC, combine)]


@lowering("BatchNormalization")
def _batch_normalization(node: LoweringContext) -> list[Tensor]:
    x = node.tensor(0)
    epsilon = node.attribute("epsilon", 1e-5)
    along_channels = (-1, *(1,) * (len(x.shape) - 2)) if len(x.shape) > 1 else (-1,)
    known = [node.constant(k) for k in range(1, 5)]
    if all(k is not None for k in known):
        scale, bias, mean, variance = (np.asarray(k, np.float64) for k in known)
        factor = scale / np.sqrt(variance + epsilon)
        a = node.hold(factor.astype(x.dtype).reshape(along_channels))
        b = node.hold((bias - mean * factor).astype(x.dtype).reshape(along_channels))
        return [pointwise(node, [x, a, b], 2 * ARITHMETIC, lambda s, v, m, c: v * m + c)]
    statistics = [node.reshaped(node.tensor(k), along_channels) for k in range(1, 5)]

    def combine(s: Scope, v: Expr, scale: Expr, bias: Expr, mean: Expr, variance: Expr) -> Expr:
        return (v - mean) * (scale / tirx.sqrt(variance + constant(epsilon, x.dtype))) + bias

    return [pointwise(node, [x, *statistics], 6 * ARITHMETIC, combine)]
