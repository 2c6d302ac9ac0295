"""Sums of products: what convolutions and matrix products are before a schedule makes loops of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

__all__ = [
    "Blocking",
    "Contraction",
    "Inside",
    "Kept",
    "Summed",
    "blocking",
    "column_parts",
    "even_parts",
]


@dataclass(frozen=True)
class Kept:
    """A loop over positions of the output: `extent` of them along its dimension `dim`, `step` apart. left and
    right: elements between two of them in the operands."""

    dim: int
    extent: int
    left: int
    right: int = 0
    step: int = 1


@dataclass(frozen=True)
class Inside:
    """What of a window lies inside its input: iteration k of a summed loop reads position
    `i * stride + k * dilation - before` of `size`, i being the iteration of the loop `kept`; where there is
    no such position, there is nothing to add."""

    kept: int
    stride: int
    dilation: int
    before: int
    size: int

    def steps(self, position: int, extent: int) -> tuple[int, int]:
        """The iterations, of `extent`, that position `i` of the kept loop reads: first and end."""
        first = -((position * self.stride - self.before) // self.dilation)
        end = -((position * self.stride - self.before - self.size) // self.dilation)
        low = min(max(0, first), extent)
        return low, min(max(low, end), extent)

    def pieces(self, first: int, rows: Sequence[int], extent: int) -> list[tuple[int, int, list[int]]]:
        """(low, high, rows): iterations in which the same ones of some rows, counted from position `first`,
        take part."""
        reach = {r: self.steps(first + r, extent) for r in rows}
        borders = sorted({b for bounds in reach.values() for b in bounds})
        found = [
            (low, high, [r for r in rows if reach[r][0] <= low and high <= reach[r][1]])
            for low, high in pairwise(borders)
        ]
        return [piece for piece in found if piece[2]]

    def is_whole(self, positions: int, extent: int) -> bool:
        """Whether all windows lie inside."""
        return all(self.steps(p, extent) == (0, extent) for p in (0, positions - 1))


@dataclass(frozen=True)
class Summed:
    """A loop over products that are added up."""

    extent: int
    left: int
    right: int = 0
    inside: Inside | None = None


@dataclass(frozen=True)
class Contraction:
    """`out[kept, column] = sum over summed of left[...] * right[...]`, of one floating-point dtype.

    kept: outermost first. Vectors run along `column`. left: a flat buffer, of which `base` is the first
    element's offset; read element by element, or in vectors where `column.left` is 1. right: a flat buffer;
    or an array of shape (groups, *summed, columns), which is repacked for the schedule. More than one group
    means that the first kept loop runs over groups. interleaved: where several groups share a vector, what
    each has, (a, b): the last summed loop runs over a neighbours in the left operand, and of every b columns
    the next a neighbours are read.
    """

    kept: tuple[Kept, ...]
    column: Kept
    summed: tuple[Summed, ...]
    left: Any
    base: int
    right: Any
    groups: int = 1
    interleaved: tuple[int, int] | None = None


@dataclass(frozen=True)
class Blocking:
    """Rows and vectors of columns whose sums are kept in registers together."""

    rows: int
    vectors: int


def even_parts(extent: int, largest: int) -> Iterator[tuple[int, int, int]]:
    """(start, count, size) of parts that cover 0..extent, none larger than `largest`, as even as can be."""
    if not extent:
        return
    blocks = -(-extent // largest)
    size, larger = divmod(extent, blocks)
    if larger:
        yield 0, larger, size + 1
    if blocks > larger:
        yield larger * (size + 1), blocks - larger, size


def column_parts(extent: int, lanes: int, largest: int) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """(start, count, widths) of blocks of at most `largest` vectors that cover 0..extent: the first column,
    the number of blocks, and the columns of each of their vectors, of which only the very last may have fewer
    than `lanes`."""
    missing = -extent % lanes
    parts = list(even_parts(-(-extent // lanes), largest))
    for start, count, size in parts:
        whole = (lanes,) * size
        ragged = missing and (start, count, size) == parts[-1]
        if count > bool(ragged):
            yield start * lanes, count - bool(ragged), whole
        if ragged:
            yield (start + (count - 1) * size) * lanes, 1, (*whole[1:], lanes - missing)


_LATENCY = 4
"""Cycles until a sum can be added to again."""
_PORTS = 2
"""Multiplications, and loads, that start in a cycle."""
_STREAMS = 8
"""Rows that are read in vectors at a time: more than that the processor does not fetch ahead."""
_TILE_OVERHEAD = 0.25
"""Cycles per step that a tile costs besides."""


def blocking(rows: int, vectors: int, registers: int, along: int = 0) -> Blocking:
    """The register tile that takes the fewest cycles for rows x vectors sums, by what a step of one tile
    needs: a multiplication per sum, a load per vector and per row. along: where the left operand is read in
    vectors, one for each sum, the number of products that each takes part in; they and the vectors of the
    right operand that they meet are in registers, too."""
    best, found, most = float("inf"), Blocking(1, 1), rows
    if along:
        most = min(rows, _STREAMS)
    for v in range(1, min(vectors, registers - 3) + 1):
        for r in range(1, most + 1):
            if (2 * r * v + v * along if along else r * v + v + 1) >= registers:
                break
            cycles = 0.0
            for _, row_count, r_size in even_parts(rows, r):
                for _, column_count, v_size in even_parts(vectors, v):
                    loads = v_size + (r_size * v_size if along else r_size)
                    step = max(_LATENCY, r_size * v_size / _PORTS, loads / _PORTS) + _TILE_OVERHEAD
                    cycles += row_count * column_count * step
            if cycles < best - 1e-9:
                best, found = cycles, Blocking(r, v)
    return found
