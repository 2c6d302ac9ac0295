"""Operators whose elements' places are data, or are compared with their own place."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx

from collage_tvm.lower.context import LoweringContext, lowering
from collage_tvm.tensor import ARITHMETIC, Index, Scope, Tensor, as_int, constant, make

Expr = Any


def _position(s: Scope, raw: Expr, size: int, dtype: str) -> Expr:
    """An index that counts from the end where it is negative, as a position in 0..size-1."""
    if (known := as_int(raw)) is not None:
        return known % size
    # out-of-range indices are undefined in ONNX; here they must not read outside the table
    raw = s.let(raw)
    wrapped = tirx.Select(raw < constant(0, dtype), raw + constant(size, dtype), raw)
    low, high = constant(0, dtype), constant(size - 1, dtype)
    position = tirx.Cast("int32", tirx.max(low, tirx.min(high, wrapped)))
    s.escaped.append(position)
    return position


@lowering("Gather")
def _gather(node: LoweringContext) -> list[Tensor]:
    x, indices = node.tensor(0), node.tensor(1)
    axis = node.attribute("axis", 0) % len(x.shape)
    rank, size = len(indices.shape), x.shape[axis]

    def element(s: Scope, i: Index) -> Expr:
        position = _position(s, s.value(indices, i[axis : axis + rank]), size, indices.dtype)
        return s.value(x, (*i[:axis], position, *i[axis + rank :]))

    factors = (*x.factors[:axis], *indices.factors, *x.factors[axis + 1 :])
    return [make(node.shape(), x.dtype, [x, indices], element, factors=factors)]


@lowering("GatherElements")
def _gather_elements(node: LoweringContext) -> list[Tensor]:
    x, indices = node.tensor(0), node.tensor(1)
    axis = node.attribute("axis", 0) % len(x.shape)

    def element(s: Scope, i: Index) -> Expr:
        position = _position(s, s.value(indices, i), x.shape[axis], indices.dtype)
        return s.value(x, (*i[:axis], position, *i[axis + 1 :]))

    return [make(node.shape(), x.dtype, [x, indices], element, factors=indices.factors, cuts=indices.cuts)]


@lowering("GatherND")
def _gather_nd(node: LoweringContext) -> list[Tensor]:
    x, indices = node.tensor(0), node.tensor(1)
    batch, places = node.attribute("batch_dims", 0), indices.shape[-1]
    rank = len(indices.shape) - 1

    def element(s: Scope, i: Index) -> Expr:
        found = [
            _position(s, s.value(indices, (*i[:rank], k)), x.shape[batch + k], indices.dtype)
            for k in range(places)
        ]
        return s.value(x, (*i[:batch], *found, *i[rank:]))

    factors = (*indices.factors[:rank], *x.factors[batch + places :])
    return [make(node.shape(), x.dtype, [x, indices], element, factors=factors)]


@lowering("OneHot")
def _one_hot(node: LoweringContext) -> list[Tensor]:
    indices, depth, values = node.tensor(0), node.constant(1), node.tensor(2)
    assert depth is not None
    shape, size = node.shape(), int(np.ravel(depth)[0])
    axis, t = node.attribute("axis", -1) % len(shape), indices.dtype

    def element(s: Scope, i: Index) -> Expr:
        raw = s.let(s.value(indices, (*i[:axis], *i[axis + 1 :])))
        wrapped = tirx.Select(raw < constant(0, t), raw + constant(size, t), raw)
        own = tirx.convert(i[axis])
        s.escaped.append(own)
        on, off = s.value(values, (1,)), s.value(values, (0,))
        return tirx.Select(tirx.EQ(wrapped, tirx.Cast(t, own)), on, off)

    return [make(shape, values.dtype, [indices, values], element, weight=ARITHMETIC)]


@lowering("Trilu")
def _trilu(node: LoweringContext) -> list[Tensor]:
    x, k = node.tensor(0), node.integers(1, "k")
    diagonal = k[0] if k else 0

    def element(s: Scope, i: Index) -> Expr:
        distance = tirx.convert(i[-1] - i[-2])
        s.escaped.append(distance)
        kept = distance >= diagonal if node.attribute("upper", 1) else distance <= diagonal
        return tirx.Select(kept, s.value(x, i), constant(0, x.dtype))

    return [make(x.shape, x.dtype, [x], element, weight=ARITHMETIC, factors=x.factors, cuts=x.cuts)]
