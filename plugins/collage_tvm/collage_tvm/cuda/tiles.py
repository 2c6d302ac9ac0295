"""Sums of products, tile by tile: a block of threads brings the part of both operands that its tile needs to
shared memory, some products at a time, and each thread adds up a smaller tile in registers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from collage_tvm.cuda.contraction import Sums
from collage_tvm.cuda.elements import place
from collage_tvm.cuda.launch import Grid, Launch, Registers, local_buffer, shared_buffer, whole_blocks
from collage_tvm.nest import (
    Axis,
    integer,
    lanes_from,
    loop,
    sequence,
    stride_of,
    substituted,
    variable,
)
from collage_tvm.tensor import constant

__all__ = ["Tile", "tile_of", "tiled_launch"]

Expr = Any
Stmt = Any

_QUAD = 4
"""Neighbours that a thread has: it reads them from shared memory as one."""
_PROCESSORS = 128
"""About how many blocks are wanted at least, so that each multiprocessor has one."""


@dataclass(frozen=True)
class Tile:
    """side: threads along each side of a block. each: rows and columns of a thread. steps: products that are
    brought at a time.
    """

    side: int
    each: int
    steps: int

    @property
    def size(self) -> int:
        """Rows and columns of a block."""
        return self.side * self.each

    @property
    def threads(self) -> int:
        return self.side * self.side

    @property
    def parts(self) -> int:
        """Elements of an operand that a thread brings at a time."""
        return self.size * self.steps // self.threads

    def blocks(self, rows: int, columns: int) -> int:
        return whole_blocks(rows, self.size) * whole_blocks(columns, self.size)


_TILES = (Tile(16, 8, 8), Tile(16, 4, 16), Tile(8, 4, 16))
_LARGEST = {"float32": 0, "float64": 1}
"""Which of them is the first that finds room in registers."""


def tile_of(rows: int, columns: int, batch: int, dtype: str) -> Tile:
    """The largest tile of which there are enough; the smallest, if there are not."""
    tiles = _TILES[_LARGEST[dtype] :]
    enough = (tile for tile in tiles if batch * tile.blocks(rows, columns) >= _PROCESSORS)
    return next(enough, tiles[-1])


def tiled_launch(sums: Sums) -> Launch:
    """Of sums whose columns read the same of the left operand."""
    return _Schedule(sums).launch()


@dataclass(frozen=True)
class _Operand:
    """shared: where a block keeps some products of it. next: where a thread keeps what comes then. along:
    whether neighbouring threads read along rows (or columns), or else along products. read: an element, by
    its row (or column) in the tile, and its product."""

    shared: Any
    next: Any
    along: bool
    read: Callable[[Expr, Expr], Expr]


class _Schedule:
    def __init__(self, sums: Sums) -> None:
        self._sums = sums
        self._grid = Grid()
        columns = sums.column.extent
        self._tile = tile_of(sums.row_count, columns, sums.batch_count, sums.dtype)
        tile = self._tile
        self._row_tiles = whole_blocks(sums.row_count, tile.size)
        self._column_tiles = whole_blocks(columns, tile.size)
        row_tile = Axis(variable("row_tile"), self._row_tiles)
        column_tile = Axis(variable("column_tile"), self._column_tiles)
        blocks = place([*sums.batch, row_tile, column_tile], self._grid.block)
        self._batch = {a.var: blocks[a.var] for a in sums.batch}
        self._first_row = blocks[row_tile.var] * tile.size
        self._first_column = blocks[column_tile.var] * tile.size
        thread = self._grid.thread
        outer, inner = tirx.indexdiv(thread, integer(tile.side)), tirx.indexmod(thread, integer(tile.side))
        # neighbouring threads write neighbours
        self._row_thread, self._column_thread = (
            (inner, outer) if self._rows_are_neighbours() else (outer, inner)
        )
        self._left = self._operand(self._is_along(sums.left, sums.rows[-1:]), self._read_left)
        self._right = self._operand(self._is_along(sums.right, [sums.column]), self._read_right)
        self._totals = local_buffer("totals", sums.dtype, tile.each * tile.each)
        self._buffers: list[Any] = [self._totals]
        for operand in (self._left, self._right):
            self._buffers += [operand.shared, operand.next]

    def _operand(self, along: bool, read: Callable[[Expr, Expr], Expr]) -> _Operand:
        tile, dtype = self._tile, self._sums.dtype
        shared = shared_buffer("shared", dtype, tile.steps * (tile.size + _QUAD))
        return _Operand(shared, local_buffer("next", dtype, tile.parts), along, read)

    def _rows_are_neighbours(self) -> bool:
        rows, strides = self._sums.rows, self._sums.output_strides
        return bool(rows) and strides[rows[-1].var] == 1 and strides[self._sums.column.var] != 1

    def launch(self) -> Launch:
        sums, tile = self._sums, self._tile
        chunk, operands = variable("chunk"), (self._left, self._right)
        body: list[Stmt] = [self._cleared(), *(self._fetched(o, integer(0)) for o in operands)]
        synchronised = tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared"))
        steps = [self._shared(o) for o in operands]
        steps += [synchronised, *(self._fetched(o, chunk + 1) for o in operands)]
        steps += [self._multiplied(), synchronised]
        body.append(loop(chunk, whole_blocks(sums.products, tile.steps), sequence(steps)))
        body.append(self._stored())
        blocks = sums.batch_count * self._row_tiles * self._column_tiles
        return Launch(self._grid, blocks, tile.threads, sequence(body), self._buffers)

    def _is_along(self, offset: Expr, axes: list[Axis]) -> bool:
        """Whether elements along the innermost of these loops are neighbours."""
        return bool(axes) and stride_of(offset, axes[-1].var) == 1

    def _cleared(self) -> Stmt:
        k = variable("k")
        store = tirx.BufferStore(self._totals, constant(0, self._sums.dtype), [k])
        return loop(k, self._tile.each * self._tile.each, store, tirx.ForKind.UNROLLED)

    def _place_of(self, operand: _Operand, part: Expr) -> tuple[Expr, Expr]:
        """Which row (or column) of the tile, and which product, a part of this thread is."""
        tile = self._tile
        element = part * tile.threads + self._grid.thread
        inner = integer(tile.size if operand.along else tile.steps)
        outer, inner = tirx.indexdiv(element, inner), tirx.indexmod(element, inner)
        return (inner, outer) if operand.along else (outer, inner)

    def _fetched(self, operand: _Operand, chunk: Expr) -> Stmt:
        """A thread's parts of a chunk of products, to registers: they arrive while it multiplies."""
        part = variable("part")
        at, step = self._place_of(operand, part)
        store = tirx.BufferStore(operand.next, operand.read(at, chunk * self._tile.steps + step), [part])
        return loop(part, self._tile.parts, store, tirx.ForKind.UNROLLED)

    def _shared(self, operand: _Operand) -> Stmt:
        """What was fetched, to shared memory."""
        part = variable("part")
        at, step = self._place_of(operand, part)
        value = tirx.BufferLoad(operand.next, [part])
        store = tirx.BufferStore(operand.shared, value, [step * (self._tile.size + _QUAD) + at])
        return loop(part, self._tile.parts, store, tirx.ForKind.UNROLLED)

    def _read_left(self, row: Expr, product: Expr) -> Expr:
        sums = self._sums
        position = self._first_row + row
        at = {**self._batch, **place(sums.rows, position), **place(sums.summed, product)}
        conditions = [product < sums.products]
        if sums.row_count % self._tile.size:
            conditions.append(position < sums.row_count)
        if (border := sums.condition(at)) is not None:
            conditions.append(border)
        return self._read(sums.contraction.left, substituted(sums.left, at), conditions)

    def _read_right(self, column: Expr, product: Expr) -> Expr:
        sums = self._sums
        position = self._first_column + column
        at = {**self._batch, sums.column.var: position, **place(sums.summed, product)}
        conditions = [product < sums.products]
        if sums.column.extent % self._tile.size:
            conditions.append(position < sums.column.extent)
        return self._read(sums.right_buffer, substituted(sums.right, at), conditions)

    def _read(self, buffer: Any, offset: Expr, conditions: list[Expr]) -> Expr:
        """Zero where a condition does not hold: there is nothing to add."""
        value = tirx.BufferLoad(buffer, [offset])
        return tirx.if_then_else(tirx.all(*conditions), value, constant(0, self._sums.dtype))

    def _multiplied(self) -> Stmt:
        """All products that are in shared memory added to the sums."""
        tile, step = self._tile, variable("step")
        lefts, read_left = self._quads(step, self._left, self._row_thread)
        rights, read_right = self._quads(step, self._right, self._column_thread)
        r, c = variable("r"), variable("c")
        place_of = r * tile.each + c
        total = tirx.BufferLoad(self._totals, [place_of])
        product = tirx.BufferLoad(lefts, [r]) * tirx.BufferLoad(rights, [c])
        add = tirx.BufferStore(self._totals, total + product, [place_of])
        inner = loop(c, tile.each, add, tirx.ForKind.UNROLLED)
        added = loop(r, tile.each, inner, tirx.ForKind.UNROLLED)
        body = sequence([*read_left, *read_right, added])
        return loop(step, tile.steps, body, tirx.ForKind.UNROLLED)

    def _quads(self, step: Any, operand: _Operand, thread: Expr) -> tuple[Any, list[Stmt]]:
        """A thread's part of one product's operand, in registers."""
        held = local_buffer("held", self._sums.dtype, self._tile.each)
        self._buffers.append(held)
        reads: list[Stmt] = []
        # two doubles, as four floats, are the most that one instruction reads
        width = _QUAD if self._sums.dtype == "float32" else _QUAD // 2
        for start in range(0, self._tile.each, width):
            offset = step * (self._tile.size + _QUAD) + self._place(start, thread)
            value = tirx.BufferLoad(operand.shared, [lanes_from(offset, width)])
            reads.append(tirx.BufferStore(held, value, [lanes_from(integer(start), width)]))
        return held, reads

    def _place(self, number: int, thread: Expr) -> Expr:
        """Where in the tile the row (or column) `number` of a thread is."""
        return thread * _QUAD + (number // _QUAD * _QUAD * self._tile.side + number % _QUAD)

    def _stored(self) -> Stmt:
        """What follows each sum."""
        sums, tile = self._sums, self._tile
        own = Registers()
        statements: list[Stmt] = []
        for r in range(tile.each):
            row = self._first_row + self._place(r, self._row_thread)
            of_row: list[Stmt] = []
            for c in range(tile.each):
                column = self._first_column + self._place(c, self._column_thread)
                total = tirx.BufferLoad(self._totals, [integer(r * tile.each + c)])
                at = {**self._batch, **place(sums.rows, row), sums.column.var: column, sums.total: total}
                body = sums.body.instantiate(at, own)
                if sums.column.extent % tile.size:
                    body = tirx.IfThenElse(column < sums.column.extent, body, None)
                of_row.append(body)
            body = sequence(of_row)
            if sums.row_count % tile.size:
                body = tirx.IfThenElse(row < sums.row_count, body, None)
            statements.append(body)
        self._buffers += own.buffers
        return sequence(statements)
