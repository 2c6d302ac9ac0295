"""How tiles of a contraction read its operands."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx

from collage_core.formats import Array
from collage_tvm.contraction import Contraction, Kept, column_parts
from collage_tvm.nest import Axis, integer, lanes_from, loop, nested, sequence, variable
from collage_tvm.squares import SIDES, transposed_square
from collage_tvm.tensor import Tensor

__all__ = ["Columns", "Hold", "Operands", "Positions", "Tile"]

Expr = Any
Stmt = Any

Hold = Callable[[tuple[int, ...], str, Callable[[], Array]], Tensor]
"""Makes an argument of an array that the kernel will own: of its shape and dtype, and what makes it."""


@dataclass(frozen=True)
class Columns:
    """`count` blocks of vectors of the widths given, from column `start`; `offset`: where they begin in the
    repacked right operand."""

    start: int
    count: int
    widths: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Tile:
    """Rows from `first` (a number where the tile touches a border), of block `block` of some columns."""

    first: Expr
    rows: int
    columns: Columns
    block: Expr


@dataclass(frozen=True)
class Positions:
    """The loops over positions of the output. at: the variable of every kept loop, 0 if it has one position.
    outer: the loops around tiles. row: that along which the rows of a tile lie, which share the right
    operand."""

    at: Sequence[Expr]
    outer: Sequence[tuple[Axis, Kept]]
    row: tuple[Axis, Kept]


class Operands:
    """A constant right operand is repacked: block by block of columns, then product by product, the columns
    of a block beside each other. One that the kernel is given is read as it lies; if its columns lie apart,
    from a copy of one block, which `gather` makes in `panel`."""

    def __init__(
        self,
        contraction: Contraction,
        dtype: str,
        positions: Positions,
        vector: int,
        vectors: int,
        hold: Hold,
    ) -> None:
        """`vector`: columns of a vector; `vectors`: the most of a tile."""
        c = contraction
        self._c = c
        self._positions = positions
        self._vector = vector
        self._packed = isinstance(c.right, np.ndarray)
        self.products = math.prod(s.extent for s in c.summed)
        self.columns: list[Columns] = []
        self._group_stride = 0
        for start, count, widths in column_parts(c.column.extent, vector, vectors):
            self.columns.append(Columns(start, count, widths, self._group_stride))
            self._group_stride += count * len(widths) * vector * self.products
        self._right = self._held(hold) if self._packed else c.right
        self.panel: Any = None
        if not self._packed and c.column.right > 1:
            self.panel = tirx.decl_buffer((self.products * vectors * vector,), dtype, name="panel")

    def _held(self, hold: Hold) -> Any:
        """The parameter that is the repacked right operand."""
        shape = (self._c.groups, self._group_stride)
        memory = hold(shape, str(self._c.right.dtype), self._repacked).memory
        assert memory is not None
        return memory.buffer

    def _repacked(self) -> Array:
        c = self._c
        flat = c.right.reshape(c.groups, self.products, c.column.extent)
        panels = []
        for columns in self.columns:
            size = len(columns.widths) * self._vector
            part = flat[:, :, columns.start : columns.start + columns.count * size]
            part = np.pad(part, ((0, 0), (0, 0), (0, columns.count * size - part.shape[2])))
            part = part.reshape(c.groups, self.products, columns.count, size)
            panels.append(part.transpose(0, 2, 1, 3).reshape(c.groups, -1))
        return np.concatenate(panels, axis=1)

    def column_at(self, tile: Tile, vector: Expr) -> Expr:
        """The first column of a vector."""
        size = len(tile.columns.widths) * self._vector
        return tile.block * size + (vector * self._vector + tile.columns.start)

    def left(self, tile: Tile, at: Sequence[Expr], row: int, column: Expr) -> Expr:
        """The offset of what a row of the tile reads for a product; `column` counts along the operand."""
        total: Expr = self._c.base
        for axis, k in self._positions.outer:
            total = _plus(total, axis.var, k.left)
        total = _plus(total, tile.first + row, self._positions.row[1].left)
        for s, k in zip(self._c.summed, at, strict=True):
            total = _plus(total, k, s.left)
        return tirx.convert(_plus(total, column, self._c.column.left))

    def interleaved_left(self, tile: Tile, at: Sequence[Expr], row: int, vector: int) -> list[Expr]:
        """What a row of the tile reads for each of the products of the last loop: a vector from each group,
        an element for each of its columns."""
        assert self._c.interleaved is not None
        inputs, outputs = self._c.interleaved
        width = tile.columns.widths[vector]
        size = len(tile.columns.widths) * self._vector
        block = tile.block * (size // outputs * inputs)
        first = (tile.columns.start + vector * self._vector) // outputs * inputs
        offset = self.left(tile, [*at, 0], row, 0) + (block + first)
        lanes = width // outputs * inputs
        if width == 1:
            return [tirx.BufferLoad(self._c.left, [offset + k]) for k in range(inputs)]
        if lanes == 1:
            return [tirx.Broadcast(tirx.BufferLoad(self._c.left, [offset]), width)]
        read = tirx.BufferLoad(self._c.left, [lanes_from(offset, lanes)])
        taken = [[integer(lane // outputs * inputs + k) for lane in range(width)] for k in range(inputs)]
        # TVM wants as many lanes to choose from as are chosen
        return [tirx.Shuffle([read] * -(-width // lanes), indices) for indices in taken]

    def right(self, tile: Tile, at: Sequence[Expr], vector: int, lane: Expr) -> Expr:
        """The element that a column of the tile reads for a product."""
        if self.panel is not None:
            return tirx.BufferLoad(self.panel, [self._in_panel(tile, at, vector, lane)])
        if not self._packed:
            return self._given(tile, at, vector, lane)
        return tirx.BufferLoad(self._right, [self._in_repacked(tile, at, vector, lane)])

    def interleaved_right(self, tile: Tile, at: Sequence[Expr], vector: int) -> Expr:
        """The elements that all columns of a vector read for a product."""
        offset = self._in_repacked(tile, at, vector, 0)
        return tirx.BufferLoad(self._right, [lanes_from(offset, tile.columns.widths[vector])])

    def _in_repacked(self, tile: Tile, at: Sequence[Expr], vector: int, lane: Expr) -> Expr:
        offset = _plus(self._in_panel(tile, at, vector, lane), tile.columns.offset, 1)
        if self._c.groups > 1:
            offset = _plus(offset, self._positions.at[0], self._group_stride)
        size = len(tile.columns.widths) * self._vector
        return _plus(offset, tile.block, self.products * size)

    def gather(self, columns: Columns, block: Expr) -> Stmt:
        """One block of a right operand whose columns lie apart, copied to `panel`: where products lie beside
        each other, in squares that are transposed in registers."""
        *outer, last = self._c.summed
        around = [Axis(variable("k"), s.extent) for s in outer]
        at, tile, side = [a.var for a in around], Tile(0, 1, columns, block), self._vector
        body: list[Stmt] = []
        for v, width in enumerate(columns.widths):
            squares = last.extent // side if last.right == 1 and width == side and side in SIDES else 0
            if squares:
                k = variable("k")
                body.append(loop(k, squares, self._transposed(tile, at, k * side, v)))
            k, lane = variable("k"), variable("l")
            steps = [*at, k + squares * side]
            store = tirx.BufferStore(
                self.panel, self._given(tile, steps, v, lane), [self._in_panel(tile, steps, v, lane)]
            )
            if rest := last.extent - squares * side:
                body.append(loop(lane, width, loop(k, rest, store)))
        return nested(around, sequence(body))

    def _transposed(self, tile: Tile, at: Sequence[Expr], first: Expr, vector: int) -> Stmt:
        """A square of the right operand from product `first` on."""
        return transposed_square(
            self._right,
            lambda lane: self._given_at(tile, [*at, first], vector, lane),
            self.panel,
            lambda k: self._in_panel(tile, [*at, first + k], vector, 0),
            self._vector,
        )

    def _given(self, tile: Tile, at: Sequence[Expr], vector: int, lane: Expr) -> Expr:
        return tirx.BufferLoad(self._right, [self._given_at(tile, at, vector, lane)])

    def _given_at(self, tile: Tile, at: Sequence[Expr], vector: int, lane: Expr) -> Expr:
        total: Expr = 0
        for axis, k in self._positions.outer:
            total = _plus(total, axis.var, k.right)
        for s, k in zip(self._c.summed, at, strict=True):
            total = _plus(total, k, s.right)
        total = _plus(total, self.column_at(tile, vector) + lane, self._c.column.right)
        return tirx.convert(total)

    def _in_panel(self, tile: Tile, at: Sequence[Expr], vector: int, lane: Expr) -> Expr:
        size = len(tile.columns.widths) * self._vector
        total: Expr = vector * self._vector + lane
        for level, k in enumerate(at):
            total = _plus(total, k, size * math.prod(s.extent for s in self._c.summed[level + 1 :]))
        return total


def _plus(total: Expr, index: Expr, stride: int) -> Expr:
    if not stride or (isinstance(index, int) and not index):
        return total
    term = index if stride == 1 else index * stride
    return term if isinstance(total, int) and not total else total + term
