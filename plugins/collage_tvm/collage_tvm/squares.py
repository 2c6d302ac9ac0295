"""Squares of elements transposed in registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from collage_tvm.nest import integer, sequence, variable

__all__ = ["SIDES", "lanes_from", "prefetched", "transposed_square"]

Expr = Any
Stmt = Any

SIDES = (4, 8, 16)
"""Of the squares that are worth it."""


def lanes_from(offset: Expr, count: int) -> Expr:
    """The indices of `count` elements from `offset` on, as one vector."""
    return offset if count == 1 else tirx.Ramp(offset, integer(1), count)


def prefetched(buffer: Any, offset: Expr, level: int) -> Stmt:
    """Asks for the line of an element, which may lie behind the last, in the cache of a level (1 to 3)."""
    address = tirx.address_of(tirx.BufferLoad(buffer, [offset]))
    reading, locality, data = 0, 4 - level, 1  # as LLVM's prefetch numbers them
    return tirx.Evaluate(tirx.call_intrin("void", "tirx.prefetch", address, reading, locality, data))


def transposed_square(
    source: Any, read: Callable[[int], Expr], destination: Any, write: Callable[[int], Expr], side: int
) -> Stmt:
    """Element j of vector k of `source` becomes element k of vector j of `destination`. read, write: the
    offset of the first element of a vector.

    In each round every vector is interleaved with that half of the square further on.
    """
    zero = variable("zero")  # where no number is known, TVM takes vectors as a whole
    body: list[Stmt] = [tirx.Bind(zero, integer(0))]

    def bound(value: Expr) -> Expr:
        body.append(tirx.Bind(tirx.Var("q", value.ty), value))
        return body[-1].var

    square = [bound(tirx.BufferLoad(source, [lanes_from(zero + read(k), side)])) for k in range(side)]
    lanes, half = range(side), side // 2
    halves = [[integer(lane // 2 + lane % 2 * side + first) for lane in lanes] for first in (0, half)]
    for _ in range(side.bit_length() - 1):
        pairs = zip(square[:half], square[half:], strict=True)
        square = [bound(tirx.Shuffle([a, b], which)) for a, b in pairs for which in halves]
    for j, value in enumerate(square):
        body.append(tirx.BufferStore(destination, value, [lanes_from(zero + write(j), side)]))
    return sequence(body)
