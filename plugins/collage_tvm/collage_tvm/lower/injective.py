"""Operators that only move elements."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np
from tvm import tirx

from collage_tvm.lower.context import LoweringContext, immediate, lowering
from collage_tvm.tensor import Index, Scope, Tensor, make

Expr = Any


@lowering("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _reshape(node: LoweringContext) -> list[Tensor]:
    return [node.reshaped(node.tensor(0), node.shape())]


def transposed(x: Tensor, order: tuple[int, ...]) -> Tensor:
    inverse = [order.index(d) for d in range(len(order))]
    return make(
        [x.shape[d] for d in order],
        x.dtype,
        [x],
        lambda s, i: s.value(x, tuple(i[k] for k in inverse)),
        factors=tuple(x.factors[d] for d in order),
        cuts=tuple(x.cuts[d] for d in order),
    )


@lowering("Transpose")
def _transpose(node: LoweringContext) -> list[Tensor]:
    x = node.tensor(0)
    return [transposed(x, tuple(node.attribute("perm") or reversed(range(len(x.shape)))))]


@lowering("DepthToSpace")
def _depth_to_space(node: LoweringContext) -> list[Tensor]:
    x, b = node.tensor(0), node.attribute("blocksize")
    n, c, h, w = x.shape
    if node.attribute("mode", "DCR") == "DCR":
        split = transposed(node.reshaped(x, (n, b, b, c // (b * b), h, w)), (0, 3, 4, 1, 5, 2))
    else:
        split = transposed(node.reshaped(x, (n, c // (b * b), b, b, h, w)), (0, 1, 4, 2, 5, 3))
    return [node.reshaped(split, node.shape())]


@lowering("SpaceToDepth")
def _space_to_depth(node: LoweringContext) -> list[Tensor]:
    x, b = node.tensor(0), node.attribute("blocksize")
    n, c, h, w = x.shape
    deep_first = node.attribute("mode", "DCR") == "DCR"
    order = (0, 3, 5, 1, 2, 4) if deep_first else (0, 1, 3, 5, 2, 4)
    split = transposed(node.reshaped(x, (n, c, h // b, b, w // b, b)), order)
    return [node.reshaped(split, node.shape())]


@lowering("Expand")
def _expand(node: LoweringContext) -> list[Tensor]:
    x, shape = node.tensor(0), node.shape()
    offset = len(shape) - len(x.shape)

    def element(s: Scope, i: Index) -> Expr:
        return s.value(x, tuple(0 if d == 1 else k for d, k in zip(x.shape, i[offset:], strict=True)))

    factors = tuple(
        x.factors[k - offset] if k >= offset and x.shape[k - offset] == d else (d,)
        for k, d in enumerate(shape)
    )
    return [make(shape, x.dtype, [x], element, factors=factors)]


@lowering("Concat")
def _concat(node: LoweringContext) -> list[Tensor]:
    parts, shape = [x for x in node.tensors() if math.prod(x.shape)], node.shape()
    axis = node.attribute("axis") % len(shape)
    ends = list(accumulate(x.shape[axis] for x in parts))
    starts = [0, *ends[:-1]]

    def element(s: Scope, i: Index) -> Expr:
        def part(k: int) -> Expr:
            def own() -> Expr:
                return s.value(parts[k], (*i[:axis], i[axis] - starts[k], *i[axis + 1 :]))

            return own() if k == len(parts) - 1 else s.when(i[axis] < ends[k], own, lambda: part(k + 1))

        return part(0)

    cuts = [frozenset[int]().union(*[x.cuts[d] for x in parts]) for d in range(len(shape))]
    inner = {c + start for x, start in zip(parts, starts, strict=True) for c in x.cuts[axis]}
    cuts[axis] = frozenset(inner | set(ends[:-1]))
    return [make(shape, parts[0].dtype, parts, element, cuts=tuple(cuts))]


@lowering("Slice")
def _slice(node: LoweringContext) -> list[Tensor]:
    x, shape = node.tensor(0), node.shape()
    begin = node.integers(1, "starts") or []
    axes = node.integers(3, "axes") or list(range(len(begin)))
    steps = node.integers(4, "steps") or [1] * len(begin)
    start, step = [0] * len(shape), [1] * len(shape)
    for b, a, t in zip(begin, axes, steps, strict=True):
        d = x.shape[a]
        b = b + d if b < 0 else b
        start[a], step[a] = (min(max(b, 0), d) if t > 0 else min(max(b, -1), d - 1)), t
    return [_window(x, shape, start, step)]


def _window(x: Tensor, shape: tuple[int, ...], start: list[int], step: list[int]) -> Tensor:
    def element(s: Scope, i: Index) -> Expr:
        return s.value(x, tuple(k * t + b for k, b, t in zip(i, start, step, strict=True)))

    def cuts(d: int) -> frozenset[int]:
        return frozenset(c - start[d] for c in x.cuts[d] if step[d] == 1 and 0 < c - start[d] < shape[d])

    factors = tuple(f if d == n else (n,) for f, d, n in zip(x.factors, x.shape, shape, strict=True))
    return make(shape, x.dtype, [x], element, factors=factors, cuts=tuple(map(cuts, range(len(shape)))))


@lowering("Split")
def _split(node: LoweringContext) -> list[Tensor]:
    x = node.tensor(0)
    axis = node.attribute("axis", 0) % len(x.shape)
    result: list[Tensor] = []
    position = 0
    for k in range(len(node.node.outputs)):
        shape = node.shape(k)
        start = [0] * len(shape)
        start[axis] = position
        position += shape[axis]
        result.append(_window(x, shape, start, [1] * len(shape)))
    return result


@lowering("Tile")
def _tile(node: LoweringContext) -> list[Tensor]:
    x, shape = node.tensor(0), node.shape()

    def element(s: Scope, i: Index) -> Expr:
        def digit(k: Expr, own: int, all: int) -> Expr:
            return k if own == all else 0 if own == 1 else s.analyzer.simplify(tirx.convert(k % own))

        return s.value(x, tuple(map(digit, i, x.shape, shape)))

    factors = tuple(f if d == n else (n // d, *f) for f, d, n in zip(x.factors, x.shape, shape, strict=True))
    return [make(shape, x.dtype, [x], element, factors=factors)]


@lowering("Pad")
def _pad(node: LoweringContext) -> list[Tensor]:
    x, shape = node.tensor(0), node.shape()
    rank = len(shape)
    pads = node.integers(1, "pads") or []
    axes = [a % rank for a in node.integers(3, "axes") or range(rank)]
    before, after = [0] * rank, [0] * rank
    for k, a in enumerate(axes):
        before[a], after[a] = pads[k], pads[k + len(axes)]
    fill = node.tensor(2) if node.has(2) else node.immediate("value", x.dtype)
    value = fill or immediate(np.zeros((), x.dtype))
    inside = _inside_by_mode(node.attribute("mode", "constant"))

    def element(s: Scope, i: Index) -> Expr:
        def at(d: int, chosen: Index) -> Expr:
            if d == rank:
                return s.value(x, chosen)
            k = i[d] - before[d] if before[d] else i[d]
            n = x.shape[d]

            def go(own: Expr) -> Callable[[], Expr]:
                return lambda: at(d + 1, (*chosen, own))

            def below() -> Expr:
                return (
                    at(d + 1, (*chosen, inside(k, n, False)))
                    if inside
                    else s.value(value, (0,) * len(value.shape))
                )

            def above() -> Expr:
                return (
                    at(d + 1, (*chosen, inside(k, n, True)))
                    if inside
                    else s.value(value, (0,) * len(value.shape))
                )

            def upper() -> Expr:
                return s.when(i[d] < before[d] + n, go(k), above) if after[d] > 0 else go(k)()

            return s.when(i[d] < before[d], below, upper) if before[d] > 0 else upper()

        return at(0, ())

    cuts = tuple(
        frozenset(c for c in {b, b + n, *(o + b for o in own)} if 0 < c < size)
        for b, n, own, size in zip(before, x.shape, x.cuts, shape, strict=True)
    )
    return [make(shape, x.dtype, [x, *([fill] if fill else [])], element, cuts=cuts)]


def _inside_by_mode(mode: str) -> Callable[[Expr, int, bool], Expr] | None:
    """Where a position outside of 0..n-1 reads, by padding mode; None for a constant."""
    if mode == "reflect":
        return lambda k, n, above: 2 * (n - 1) - k if above else 0 - k
    if mode == "edge":
        return lambda k, n, above: n - 1 if above else 0
    if mode == "wrap":
        return lambda k, n, above: k - n if above else k + n
    return None
