"""Pooling and local normalisation: reductions over the positions of a window."""

from __future__ import annotations

import itertools
import math
from typing import Any

from tvm import tirx

from collage_tvm.lower import mathlib
from collage_tvm.lower.context import LoweringContext, lowering
from collage_tvm.lower.reduction import elementwise, reduced
from collage_tvm.tensor import ARITHMETIC, TRANSCENDENTAL, Index, Scope, Tensor, as_int, constant, make
from collage_tvm.window import Window, window_of

Expr = Any


@lowering("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(node: LoweringContext) -> list[Tensor]:
    x = node.tensor(0)
    axes = list(range(2, len(x.shape)))
    if node.node.op_type == "GlobalMaxPool":
        return [reduced(x, axes, "max", True)]
    inverse = constant(1 / math.prod(x.shape[2:]), x.dtype)
    return [elementwise(ARITHMETIC, lambda s, v: v * inverse, reduced(x, axes, "sum", True))]


@lowering("MaxPool")
def _max_pool(node: LoweringContext) -> list[Tensor]:
    x = node.tensor(0)
    window = window_of(node.node.attributes, x.shape, node.shape())
    lowest = tirx.min_value(x.dtype) if not x.dtype.startswith("float") else constant(-math.inf, x.dtype)
    return [_reduced_windows(x, window, node.shape(), "max", lowest)]


@lowering("AveragePool")
def _average_pool(node: LoweringContext) -> list[Tensor]:
    x, shape = node.tensor(0), node.shape()
    window = window_of(node.node.attributes, x.shape, shape)
    total = _reduced_windows(x, window, shape, "sum", constant(0, x.dtype))
    padded = bool(node.attribute("count_include_pad", 0))

    def element(s: Scope, i: Index) -> Expr:
        count: Expr = 1
        for d in range(len(window.kernel)):
            low, high = (
                (0, x.shape[d + 2]) if not padded else (-window.before[d], x.shape[d + 2] + window.after[d])
            )
            inside: Expr = 0
            for k in range(window.kernel[d]):
                position = window.position(d, i[d + 2], k)
                inside = inside + s.when(tirx.all(position >= low, position < high), lambda: 1, lambda: 0)
            count = count * inside
        if known := as_int(count):  # a vector's division takes as long as the whole window
            return s.value(total, i) * constant(1 / known, x.dtype)
        return s.value(total, i) / tirx.Cast(x.dtype, tirx.convert(count))

    return [make(shape, x.dtype, [total], element, weight=ARITHMETIC, cuts=total.cuts)]


@lowering("LpPool")
def _lp_pool(node: LoweringContext) -> list[Tensor]:
    x, t = node.tensor(0), node.tensor(0).dtype
    p = node.attribute("p", 2)

    def power(s: Scope, v: Expr) -> Expr:
        return mathlib.power(s, tirx.abs(v), float(p), constant(p, t), t)

    powers = elementwise(ARITHMETIC, power, x)
    window = window_of(node.node.attributes, x.shape, node.shape())
    total = _reduced_windows(powers, window, node.shape(), "sum", constant(0, t))
    root = constant(1 / p, t)
    return [elementwise(TRANSCENDENTAL, lambda s, v: mathlib.power(s, v, 1 / p, root, t), total)]


@lowering("LRN")
def _local_response_normalization(node: LoweringContext) -> list[Tensor]:
    x, t = node.tensor(0), node.tensor(0).dtype
    size, channels = node.attribute("size"), x.shape[1]
    before = (size - 1) // 2
    after = size - 1 - before

    def square(s: Scope, i: Index) -> Expr:
        def own() -> Expr:
            v = s.let(s.value(x, (i[0], channel, *i[2:-1])))
            return v * v

        channel = i[1] + i[-1] - before
        inside = [channel >= 0] if before else []
        inside += [channel < channels] if after else []
        return s.when(tirx.all(*inside) if inside else True, own, lambda: constant(0, t))

    borders = frozenset(c for c in (before, channels - after) if 0 < c < channels)
    window = make(
        (*x.shape, size),
        t,
        [x],
        square,
        weight=ARITHMETIC,
        factors=(x.factors[0], (channels,), *x.factors[2:], (size,)),
        cuts=(x.cuts[0], borders, *x.cuts[2:], frozenset[int]()),
    )
    total = reduced(window, [len(x.shape)], "sum", False)
    alpha, bias = constant(node.attribute("alpha", 1e-4) / size, t), constant(node.attribute("bias", 1.0), t)
    beta = node.attribute("beta", 0.75)

    def scaled(s: Scope, v: Expr, squares: Expr) -> Expr:
        scale = s.let(bias + alpha * squares)
        if beta == 0.75:
            root = s.let(tirx.sqrt(scale))
            return v / (root * tirx.sqrt(root))
        return v * mathlib.power(s, scale, -beta, constant(-beta, t), t)

    return [elementwise(4 * ARITHMETIC, scaled, x, total)]


def _reduced_windows(x: Tensor, window: Window, shape: tuple[int, ...], combine: str, fill: Expr) -> Tensor:
    """Every window of `x` as dimensions of its own behind the output's, reduced."""
    rank = len(window.kernel)

    def element(s: Scope, i: Index) -> Expr:
        spatial = [window.position(d, i[d + 2], i[2 + rank + d]) for d in range(rank)]
        inside = []
        for d, p in enumerate(spatial):
            size = x.shape[d + 2]
            if window.before[d] > 0:
                inside.append(p >= 0)
            if window.position(d, shape[d + 2] - 1, window.kernel[d] - 1) >= size:
                inside.append(p < size)
        condition = tirx.all(*inside) if inside else True
        return s.when(condition, lambda: s.value(x, (*i[:2], *spatial)), lambda: fill)

    cuts = [x.cuts[0], x.cuts[1], *(window.borders(d, x.shape[d + 2], shape[d + 2]) for d in range(rank))]
    windows = make(
        (*shape, *window.kernel),
        x.dtype,
        [x],
        element,
        factors=(*x.factors[:2], *((d,) for d in itertools.chain(shape[2:], window.kernel))),
        cuts=(*cuts, *(frozenset[int]() for _ in range(rank))),
    )
    return reduced(windows, list(range(2 + rank, 2 + 2 * rank)), combine, False)
