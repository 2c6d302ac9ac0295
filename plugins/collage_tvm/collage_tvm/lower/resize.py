"""Resize and Upsample: every element from one input element, or from its neighbours along each axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import tirx

from collage_core.formats import Array
from collage_core.ir import Operator
from collage_tvm.lower.context import LoweringContext, lowering
from collage_tvm.resize import resamplings_of
from collage_tvm.tensor import ARITHMETIC, Index, Scope, Tensor, make

Expr = Any
_Position = Callable[[Scope, Expr], Expr]


@lowering("Resize", "Upsample")
def _resize(node: LoweringContext) -> list[Tensor]:
    x = node.tensor(0)
    for axis, found in enumerate(resamplings_of(Operator(node.graph, node.node))):
        if found is None:
            continue
        tables: list[Tensor] = []
        low, digits = _positions(node, found.low, x.shape[axis], tables)
        if found.weight is None:
            x = _nearest(x, axis, len(found.low), low, digits, tables)
            continue
        high, _ = _positions(node, found.high, x.shape[axis], tables)
        weight = node.hold(found.weight.astype(x.dtype))
        x = _linear(x, axis, len(found.low), (low, high), weight, tables)
    return [x]


def _nearest(
    x: Tensor, axis: int, size: int, position: _Position, digits: tuple[int, ...], tables: list[Tensor]
) -> Tensor:
    def element(s: Scope, i: Index) -> Expr:
        return s.value(x, (*i[:axis], position(s, i[axis]), *i[axis + 1 :]))

    return make(*_around(x, axis, size), [x, *tables], element, **_digits(x, axis, digits))


def _linear(
    x: Tensor, axis: int, size: int, ends: tuple[_Position, _Position], weight: Tensor, tables: list[Tensor]
) -> Tensor:
    def element(s: Scope, i: Index) -> Expr:
        w = s.let(s.value(weight, (i[axis],)))
        low, high = (s.value(x, (*i[:axis], at(s, i[axis]), *i[axis + 1 :])) for at in ends)
        return low * (tirx.const(1, x.dtype) - w) + high * w

    shape, dtype = _around(x, axis, size)
    digits = _digits(x, axis, (size,))
    return make(shape, dtype, [x, weight, *tables], element, weight=3 * ARITHMETIC, **digits)


def _around(x: Tensor, axis: int, size: int) -> tuple[tuple[int, ...], str]:
    return (*x.shape[:axis], size, *x.shape[axis + 1 :]), x.dtype


def _digits(x: Tensor, axis: int, digits: tuple[int, ...]) -> dict[str, Any]:
    factors = (*x.factors[:axis], digits, *x.factors[axis + 1 :])
    cuts = (*x.cuts[:axis], frozenset[int](), *x.cuts[axis + 1 :])
    return {"factors": factors, "cuts": cuts}


def _positions(
    node: LoweringContext, low: Array, size: int, tables: list[Tensor]
) -> tuple[_Position, tuple[int, ...]]:
    """How to find an output's position, and the digits over which that takes no division: arithmetic where
    the positions are regular, a table otherwise."""
    outputs = len(low)
    first, step = int(low[0]), int(low[1] - low[0]) if outputs > 1 else 0
    if (low == first + step * np.arange(outputs)).all():
        return lambda s, o: o * step + first if step else first, (outputs,)
    times, rest = divmod(outputs, size)
    if times and not rest and (low == np.arange(outputs) // times).all():

        def repeated(s: Scope, o: Expr) -> Expr:
            return o // times if isinstance(o, int) else s.analyzer.simplify(tirx.floordiv(o, times))

        return repeated, (size, times)
    table = node.hold(low.astype(np.int32))
    tables.append(table)

    def looked_up(s: Scope, o: Expr) -> Expr:
        position = s.let(s.value(table, (o,)))
        s.escaped.append(position)
        return position

    return looked_up, (outputs,)
