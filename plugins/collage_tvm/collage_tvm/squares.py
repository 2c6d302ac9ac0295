"""Squares of elements transposed in registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from collage_tvm.nest import integer, lanes_from, sequence

__all__ = ["SIDES", "transposed_square"]

Expr = Any
Stmt = Any

SIDES = (4, 8, 16)
"""Of the squares that are worth it."""


def transposed_square(
    source: Any, read: Callable[[int], Expr], destination: Any, write: Callable[[int], Expr], side: int
) -> Stmt:
    """Element j of vector k of `source` becomes element k of vector j of `destination`. read, write: the
    offset of the first element of a vector.

    In each round every vector is interleaved with that half of the square further on.
    """
    body: list[Stmt] = []

    def bound(value: Expr) -> Expr:
        body.append(tirx.Bind(tirx.Var("q", value.ty), value))
        return body[-1].var

    square = [bound(tirx.BufferLoad(source, [lanes_from(read(k), side)])) for k in range(side)]
    lanes, half = range(side), side // 2
    halves = [[integer(lane // 2 + lane % 2 * side + first) for lane in lanes] for first in (0, half)]
    for _ in range(side.bit_length() - 1):
        pairs = zip(square[:half], square[half:], strict=True)
        square = [bound(tirx.Shuffle([a, b], which)) for a, b in pairs for which in halves]
    for j, value in enumerate(square):
        body.append(tirx.BufferStore(destination, value, [lanes_from(write(j), side)]))
    return sequence(body)
