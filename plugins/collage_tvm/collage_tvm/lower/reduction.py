"""Reductions, and the normalisations that are made of them."""

from __future__ import annotations

import math
from typing import Any

from tvm import tirx

from collage_core.ir import Operator
from collage_tvm.axes import reduced_axes
from collage_tvm.lower import mathlib
from collage_tvm.lower.context import LoweringContext, broadcast, lowering
from collage_tvm.tensor import ARITHMETIC, TRANSCENDENTAL, Index, Reduction, Scope, Tensor, constant, make

__all__ = ["elementwise", "reduced"]

Expr = Any


def reduced(x: Tensor, axes: list[int], combine: str, keepdims: bool) -> Tensor:
    """x reduced over `axes`; the schedule computes it, so its elements are always stored."""
    chosen = tuple(sorted(a % len(x.shape) for a in axes))
    kept = [k for k in range(len(x.shape)) if k not in chosen]
    shape = (
        [1 if k in chosen else d for k, d in enumerate(x.shape)] if keepdims else [x.shape[k] for k in kept]
    )
    source = [None if k in chosen else k for k in range(len(x.shape))] if keepdims else list(kept)

    def element(s: Scope, i: Index) -> Expr:
        raise AssertionError("the schedule has not stored a reduction before reading it")

    return make(
        shape,
        x.dtype,
        [x],
        element,
        factors=tuple((1,) if k is None else x.factors[k] for k in source),
        cuts=tuple(frozenset[int]() if k is None else x.cuts[k] for k in source),
        reduction=Reduction(x, chosen, combine, keepdims),
    )


def elementwise(weight: int, function: Any, *inputs: Tensor) -> Tensor:
    """`function(scope, *elements)` of inputs of one rank, broadcast against each other."""
    shape, factors, cuts = broadcast(inputs)

    def element(s: Scope, i: Index) -> Expr:
        return function(
            s,
            *[
                s.value(
                    x,
                    tuple(
                        0 if d == 1 else k for d, k in zip(x.shape, i[len(i) - len(x.shape) :], strict=True)
                    ),
                )
                for x in inputs
            ],
        )

    return make(shape, inputs[0].dtype, inputs, element, weight=weight, factors=factors, cuts=cuts)


def _axes(node: LoweringContext) -> list[int]:
    return list(reduced_axes(Operator(node.graph, node.node)))


def _reduction(op: str, combine: str, before: Any = None, after: Any = None) -> None:
    @lowering(op)
    def lower(node: LoweringContext) -> list[Tensor]:
        x = node.tensor(0)
        axes = _axes(node)
        t = x.dtype
        count = math.prod(x.shape[a] for a in axes)

        def _prepare(s: Scope, v: Expr) -> Expr:
            return before(s, v, t) if before else v

        def _finish(s: Scope, v: Expr) -> Expr:
            return after(s, v, t, count) if after else v

        source = elementwise(ARITHMETIC, _prepare, x) if before else x
        result = reduced(source, axes, combine, bool(node.attribute("keepdims", 1)))
        return [elementwise(ARITHMETIC, _finish, result) if after else result]


def _divided(s: Scope, v: Expr, t: str, count: int) -> Expr:
    return v * constant(1 / count, t)


_reduction("ReduceSum", "sum")
_reduction("ReduceMax", "maximum")
_reduction("ReduceMin", "minimum")
_reduction("ReduceProd", "prod")
_reduction("ReduceMean", "sum", after=_divided)
_reduction("ReduceL1", "sum", before=lambda s, v, t: tirx.abs(v))
_reduction("ReduceSumSquare", "sum", before=lambda s, v, t: (lambda u: u * u)(s.let(v)))
_reduction(
    "ReduceL2",
    "sum",
    before=lambda s, v, t: (lambda u: u * u)(s.let(v)),
    after=lambda s, v, t, n: tirx.sqrt(v),
)
_reduction("ReduceLogSum", "sum", after=lambda s, v, t, n: mathlib.log(s, v, t))


@lowering("ReduceLogSumExp")
def _log_sum_exp(node: LoweringContext) -> list[Tensor]:
    x = node.tensor(0)
    axes, t = _axes(node), x.dtype
    keepdims = bool(node.attribute("keepdims", 1))
    largest = reduced(x, axes, "max", True)

    def shift(m: Expr) -> Expr:
        """None where it is infinite: of two infinities the difference is no number."""
        return tirx.Select(tirx.abs(m) < constant(math.inf, t), m, constant(0, t))

    powers = elementwise(TRANSCENDENTAL, lambda s, v, m: mathlib.exp(s, v - shift(m), t), x, largest)
    total = reduced(powers, axes, "sum", True)
    result = elementwise(TRANSCENDENTAL, lambda s, v, m: mathlib.log(s, v, t) + shift(m), total, largest)
    return [result if keepdims else node.reshaped(result, node.shape())]


@lowering("ArgMax", "ArgMin")
def _arg(node: LoweringContext) -> list[Tensor]:
    """NumPy's answer: of equal values the first (the last with select_last_index), of NaNs likewise, and a
    NaN before any number. -0 equals 0."""
    x = node.tensor(0)
    axis = node.attribute("axis", 0) % len(x.shape)
    last, smallest = node.attribute("select_last_index", 0), node.node.op_type == "ArgMin"
    t = {"float32": "int32", "float64": "int64"}.get(x.dtype, x.dtype)

    def rank(s: Scope, i: Index) -> Expr:
        v = s.let(s.value(x, i))
        if not x.dtype.startswith("float"):
            return ~v if smallest else v
        bits = s.let(tirx.reinterpret(t, v))
        order = bits ^ ((bits >> (31 if t == "int32" else 63)) & tirx.max_value(t))
        order = tirx.Select(v == constant(0, x.dtype), constant(0, t), order)
        return tirx.Select(v == v, ~order if smallest else order, tirx.max_value(t))

    ranks = make(x.shape, t, [x], rank, weight=4 * ARITHMETIC, factors=x.factors, cuts=x.cuts)
    best = reduced(ranks, [axis], "max", True)

    def place(s: Scope, i: Index) -> Expr:
        own = tirx.convert(i[axis])
        s.escaped.append(own)
        highest = s.value(best, (*i[:axis], 0, *i[axis + 1 :]))
        return tirx.Select(
            tirx.EQ(s.value(ranks, i), highest), own, constant(-1 if last else x.shape[axis], "int32")
        )

    places = make(x.shape, "int32", [ranks, best], place, weight=ARITHMETIC, factors=x.factors, cuts=x.cuts)
    found = reduced(places, [axis], "max" if last else "min", bool(node.attribute("keepdims", 1)))
    return [
        make(
            found.shape,
            "int64",
            [found],
            lambda s, i: tirx.Cast("int64", s.value(found, i)),
            factors=found.factors,
            cuts=found.cuts,
        )
    ]


@lowering("Softmax", "LogSoftmax")
def _softmax(node: LoweringContext) -> list[Tensor]:
    x = node.tensor(0)
    t = x.dtype
    axes = _axes(node)
    largest = reduced(x, axes, "max", True)
    if node.node.op_type == "LogSoftmax":
        shifted = elementwise(ARITHMETIC, lambda s, v, m: v - m, x, largest)
        powers = elementwise(TRANSCENDENTAL, lambda s, v: mathlib.exp(s, v, t), shifted)
        logarithm = elementwise(
            TRANSCENDENTAL, lambda s, v: mathlib.log(s, v, t), reduced(powers, axes, "sum", True)
        )
        return [elementwise(ARITHMETIC, lambda s, v, m: v - m, shifted, logarithm)]
    powers = elementwise(TRANSCENDENTAL, lambda s, v, m: mathlib.exp(s, v - m, t), x, largest)
    scale = elementwise(ARITHMETIC, lambda s, v: constant(1, t) / v, reduced(powers, axes, "sum", True))
    return [elementwise(ARITHMETIC, lambda s, v, r: v * r, powers, scale)]


@lowering("LayerNormalization")
def _layer_normalization(node: LoweringContext) -> list[Tensor]:
    x = node.tensor(0)
    rank = len(x.shape)
    axes = list(range(node.attribute("axis", -1) % rank, rank))
    deviation, scale = _standardised(node, x, axes)
    affine = [node.tensor(1), *([node.tensor(2)] if node.has(2) else [])]
    return [
        elementwise(
            3 * ARITHMETIC,
            lambda s, d, r, g, *b: d * r * g + b[0] if b else d * r * g,
            deviation,
            scale,
            *affine,
        )
    ]


@lowering("InstanceNormalization")
def _instance_normalization(node: LoweringContext) -> list[Tensor]:
    x = node.tensor(0)
    deviation, scale = _standardised(node, x, list(range(2, len(x.shape))))
    along = (-1, *(1,) * (len(x.shape) - 2))
    gain, bias = (node.reshaped(node.tensor(k), along) for k in (1, 2))
    return [elementwise(3 * ARITHMETIC, lambda s, d, r, g, b: d * r * g + b, deviation, scale, gain, bias)]


def _standardised(node: LoweringContext, x: Tensor, axes: list[int]) -> tuple[Tensor, Tensor]:
    """The deviation of x from its mean, and one over its standard deviation."""
    t = x.dtype
    inverse = 1 / math.prod(x.shape[a] for a in axes)
    mean = elementwise(ARITHMETIC, lambda s, v: v * constant(inverse, t), reduced(x, axes, "sum", True))
    deviation = elementwise(ARITHMETIC, lambda s, v, m: v - m, x, mean)
    squares = elementwise(ARITHMETIC, lambda s, v: (lambda u: u * u)(s.let(v)), deviation)
    epsilon = node.attribute("epsilon", 1e-5)
    scale = elementwise(
        4 * ARITHMETIC,
        lambda s, v: constant(1, t) / tirx.sqrt(v * constant(inverse, t) + constant(epsilon, t)),
        reduced(squares, axes, "sum", True),
    )
    return deviation, scale
