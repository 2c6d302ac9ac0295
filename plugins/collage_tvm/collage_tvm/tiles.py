"""The schedule of contractions: tiles of rows x vectors of columns, whose sums stay in registers, then the
arithmetic that follows them.

Rows are positions along the innermost kept loop (pixels of a line, rows of a matrix), or along several that
advance evenly. A constant right operand is repacked so that a tile reads it from front to end. Windows that
reach over the border are cut into the steps in which the same rows of the tile take part; there are no
conditions in the loops.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import ir, sym, tirx

from collage_tvm.contraction import Contraction, Inside, Kept, blocking, even_parts
from collage_tvm.nest import (
    Axis,
    Lanes,
    Nest,
    Template,
    integer,
    lanes_from,
    loop,
    merge,
    nested,
    new_scope,
    sequence,
    template,
    variable,
    vectorized,
)
from collage_tvm.operands import Columns, Hold, Operands, Positions, Tile
from collage_tvm.output import Output
from collage_tvm.pointwise import stored_value
from collage_tvm.reductions import contraction_of, tensors_below
from collage_tvm.tensor import Tensor

__all__ = ["contraction_nests"]

Expr = Any
Stmt = Any

_RESIDENT_BYTES = 256 << 10
"""A right operand up to this size stays in the second-level cache while rows pass by."""
_UNROLLED = 128
"""Multiplications up to which the innermost loop over products is written out."""
_MOST_AT_BORDERS = 256
"""Rows of pieces of tiles at borders, each of which has code of its own."""
_CHEAP = 128
"""Cost of the arithmetic after a tile's sums up to which it is written out for each of them."""


def contraction_nests(output: Output, lanes: int, hold: Hold) -> list[Nest]:
    """`lanes`: float32 elements of a vector."""
    x = contraction_of(output.tensor)
    assert x is not None
    return _Schedule(output, x, lanes, hold).nests()


class _Schedule:
    def __init__(self, output: Output, x: Tensor, lanes: int, hold: Hold) -> None:
        assert x.contraction is not None
        self._c: Contraction = x.contraction
        self._dtype = x.dtype
        self._lanes = lanes * 4 // np.dtype(x.dtype).itemsize
        self._registers = 32 if lanes == 16 else 16
        self._sum = tirx.Var("sum", x.dtype)
        self._column = variable("c")
        self._buffers: list[Any] = []
        self._sums: dict[tuple[int, int, int], Any] = {}
        self._body, axes, at, self._weight = self._epilogue(output, x)
        self._at = at
        self._outer, self._row = self._split(axes)
        extent = self._c.column.extent
        along = self._c.interleaved[0] if self._c.interleaved else self._c.column.left
        # a repacked right operand has whole vectors, which may reach over the last column
        self._whole = isinstance(self._c.right, np.ndarray) and not along
        vector = min(self._lanes, 1 << (extent - 1).bit_length() if self._whole else extent)
        best = blocking(self._row[0].extent, -(-extent // vector), self._registers, along)
        self._vector, self._rows = vector, best.rows
        positions = Positions(at, self._outer, self._row)
        self._operands = Operands(self._c, x.dtype, positions, vector, best.vectors, hold)
        if self._operands.panel is not None:
            self._buffers.append(self._operands.panel)

    def _epilogue(
        self, output: Output, x: Tensor
    ) -> tuple[Template, list[tuple[Axis, Kept]], list[Expr], int]:
        """The body that stores a sum; the loops over positions, those joined that can be; each kept loop's
        position; what the body costs."""
        root, kept = output.tensor, self._c.kept
        analyzer = sym.Analyzer()
        analyzer.bind(self._column, ir.Range(0, self._c.column.extent))
        at: list[Expr] = []
        axes: list[tuple[Axis, Kept]] = []
        for k in kept:
            at.append(variable("i") if k.extent > 1 else 0)
            if k.extent > 1:
                analyzer.bind(at[-1], ir.Range(0, k.extent))
                axes.append((Axis(at[-1], k.extent), k))
        index: list[Expr] = [0] * len(root.shape)
        for k, i in zip((*kept, self._c.column), (*at, self._column), strict=True):
            if k.dim >= 0 and k.extent > 1:
                index[k.dim] = index[k.dim] + i * k.step
        scope = new_scope(analyzer, [root])
        scope.stored[id(x)] = lambda i: self._sum
        value = stored_value(scope.value(root, tuple(index)), root.dtype)
        offset = tirx.convert(output.offset(tuple(index)))
        body = template(scope, [(output.buffer, offset, value)], [offset])
        weight = sum(y.weight for y in tensors_below(root)) + 1
        return body, self._joined(body, axes, at), at, weight

    def _joined(
        self, body: Template, axes: list[tuple[Axis, Kept]], at: list[Expr]
    ) -> list[tuple[Axis, Kept]]:
        """The innermost loops over positions joined as far as the operands and the output advance evenly."""
        fixed = {
            id(at[s.inside.kept]) for s in self._c.summed if s.inside and self._bordered(s.inside, s.extent)
        }
        if self._c.groups > 1:
            fixed.add(id(at[0]))
        free = len(axes)
        while free and id(axes[free - 1][0].var) not in fixed:
            free -= 1
        outer, inner = axes[:free], axes[free:]
        reads = [
            sum((a.var * getattr(k, side) for a, k in inner), tirx.const(0, "int32"))
            for side in ("left", "right")
        ]
        probe = replace(body, accesses=body.accesses + reads)
        [merged], self._replace = merge([probe], [[a for a, _ in inner]])
        # a joined loop advances as the innermost of those in it does
        source = {id(self._replace.get(a.var, a.var)): k for a, k in inner}
        return [*outer, *[(a, source[id(a.var)]) for a in merged]]

    def _bordered(self, inside: Inside, extent: int) -> bool:
        return not inside.is_whole(self._c.kept[inside.kept].extent, extent)

    def _split(self, axes: list[tuple[Axis, Kept]]) -> tuple[list[tuple[Axis, Kept]], tuple[Axis, Kept]]:
        """The outer loops, and the one along which the rows of a tile lie: they share the right operand."""
        if axes and not axes[-1][1].right and not (self._c.groups > 1 and len(axes) == 1):
            return axes[:-1], axes[-1]
        return axes, (Axis(variable("one"), 1), Kept(-1, 1, 0))

    # loops

    def nests(self) -> list[Nest]:
        c = self._c
        beside = [a for a, k in self._outer if k.right or (c.groups > 1 and k is c.kept[0])]
        others = [a for a, _ in self._outer if a not in beside]
        itemsize = np.dtype(self._dtype).itemsize
        resident = self._operands.products * c.column.extent * itemsize <= _RESIDENT_BYTES
        nests: list[Nest] = []
        for columns in self._operands.columns:
            block = Axis(variable("b"), columns.count)
            bordered = self._row_inside() is not None
            if self._operands.panel is not None:
                rows_of = self._rows_of(others, columns, block.var)
                body = sequence([self._operands.gather(columns, block.var), *rows_of])
                nests.append(Nest([*beside, block], body))
            elif bordered and resident:
                body = sequence([self._lines(p, columns) for p in self._row_parts()])
                nests.append(Nest([*beside, *others], body))
            elif bordered:
                body = sequence([self._lines(p, columns, block.var) for p in self._row_parts()])
                nests.append(Nest([*beside, block, *others], body))
            else:
                for start, count, size in self._row_parts():
                    rows = Axis(variable("r"), count)
                    tile = Tile(rows.var * size + start, size, columns, block.var)
                    order = [*others, rows, block] if resident else [block, *others, rows]
                    nests.append(Nest([*beside, *order], self._sums_of(tile)))
        for nest in nests:
            nest.buffers = [*self._sums.values(), *self._buffers]
        return nests

    def _rows_of(self, others: list[Axis], columns: Columns, block: Expr) -> Iterator[Stmt]:
        """All tiles of one block of columns."""
        for start, count, size in self._row_parts():
            rows = Axis(variable("r"), count)
            tile = Tile(rows.var * size + start, size, columns, block)
            yield nested([*others, rows], self._sums_of(tile))

    def _row_inside(self) -> tuple[Inside, int] | None:
        """The window along the rows, and the extent of its loop, where some of it reach over the border."""
        for s in self._c.summed:
            if s.inside is not None and self._is_row(s.inside) and self._bordered(s.inside, s.extent):
                return s.inside, s.extent
        return None

    def _is_row(self, inside: Inside) -> bool:
        return self._at[inside.kept] is self._row[0].var

    def _row_parts(self) -> Iterator[tuple[int, int, int]]:
        """(start, count, size) of tiles; those that touch a border are on their own, or where that would be
        too much code, single rows."""
        extent = self._row[0].extent
        window = self._row_inside()
        if window is None:
            yield from even_parts(extent, self._rows)
            return
        inside, steps = window
        tiles = [
            (start + b * size, size)
            for start, count, size in even_parts(extent, self._rows)
            for b in range(count)
        ]
        whole = [p for p in range(extent) if inside.steps(p, steps) == (0, steps)]
        first, end = (whole[0], whole[-1] + 1) if whole else (extent, extent)
        borders = [(start, size) for start, size in tiles if start < first or start + size > end]
        pieces = [p for start, size in borders for p in inside.pieces(start, range(size), steps)]
        if sum(len(rows) for _, _, rows in pieces) > _MOST_AT_BORDERS:
            inner = [
                (first + start, count, size) for start, count, size in even_parts(end - first, self._rows)
            ]
            parts = [(0, first, 1), *inner, (end, extent - end, 1)]
            yield from (p for p in parts if p[1])
            return
        for _, run in itertools.groupby(tiles, lambda t: t[1] if t not in borders else t):
            alike = list(run)
            yield alike[0][0], len(alike), alike[0][1]

    def _lines(self, part: tuple[int, int, int], columns: Columns, block: Expr = None) -> Stmt:
        """All tiles of a part, for one block of columns or for all."""
        start, count, size = part
        row = variable("r")
        first = row * size + start if count > 1 else start
        own = variable("b")
        body = self._sums_of(Tile(first, size, columns, own if block is None else block))
        if block is None:
            body = loop(own, columns.count, body)
        return loop(row, count, body) if count > 1 else body

    # one tile

    def _sums_of(self, tile: Tile) -> Stmt:
        body: list[Stmt] = []
        for r in range(tile.rows):
            for v, (_, width) in enumerate(self._vectors(tile.columns)):
                lane = variable("l")
                zero = tirx.const(0.0, self._dtype)
                body.append(
                    vectorized(lane, width, tirx.BufferStore(self._sum_at(r, v, width), zero, [lane]))
                )
        body.append(self._steps(tile, [], range(tile.rows)))
        return sequence([*body, *self._finish(tile)])

    def _vectors(self, columns: Columns) -> list[tuple[int, int]]:
        """(columns, lanes computed) of each vector: what is repacked has whole vectors."""
        return [(w, self._vector if self._whole else w) for w in columns.widths]

    def _sum_at(self, row: int, vector: int, width: int) -> Any:
        key = row, vector, width
        if key not in self._sums:
            self._sums[key] = tirx.decl_buffer((width,), self._dtype, name=f"sum{row}_{vector}")
        return self._sums[key]

    def _steps(self, tile: Tile, at: list[Expr], rows: Sequence[int]) -> Stmt:
        """The loops over products from level len(at) on, for some rows of the tile."""
        level = len(at)
        if self._c.interleaved is not None and level == len(self._c.summed) - 1:
            return self._interleaved_at(tile, at, rows)
        if level == len(self._c.summed):
            return self._products_at(tile, at, rows)
        s = self._c.summed[level]
        if s.inside is None or not self._bordered(s.inside, s.extent):
            return self._steps_between(tile, at, rows, 0, s.extent)
        if not self._is_row(s.inside):
            position = self._at[s.inside.kept]
            if isinstance(position, int):
                return self._steps_between(tile, at, rows, *s.inside.steps(position, s.extent))
            return self._steps_between(tile, at, rows, *_bounds(s.inside, position, s.extent))
        if not isinstance(tile.first, int):
            bounds = _bounds(s.inside, tile.first, s.extent) if tile.rows == 1 else (0, s.extent)
            return self._steps_between(tile, at, rows, *bounds)
        pieces = s.inside.pieces(tile.first, rows, s.extent)
        body = [self._steps_between(tile, at, taking, low, high) for low, high, taking in pieces]
        return sequence(body) if body else _nothing()

    def _steps_between(self, tile: Tile, at: list[Expr], rows: Sequence[int], low: Expr, high: Expr) -> Stmt:
        if isinstance(low, int) and isinstance(high, int):
            if high <= low:
                return _nothing()
            if high - low == 1:
                return self._steps(tile, [*at, low], rows)
        k = variable("k")
        body = self._steps(tile, [*at, k + low], rows)
        innermost = len(at) == len(self._c.summed) - (2 if self._c.interleaved else 1)
        extent = high - low
        small = isinstance(extent, int) and extent * len(rows) * len(tile.columns.widths) <= _UNROLLED
        # tiles at a border are few, and each has code of its own
        often = self._c.column.left or self._c.interleaved or not isinstance(tile.first, int)
        kind = tirx.ForKind.UNROLLED if innermost and small and often else tirx.ForKind.SERIAL
        return loop(k, extent, body, kind)

    def _products_at(self, tile: Tile, at: list[Expr], rows: Sequence[int]) -> Stmt:
        """One product added to the sums of some rows."""
        body: list[Stmt] = []
        vectors = self._vectors(tile.columns)
        for width in dict.fromkeys(w for _, w in vectors):
            lane = variable("l")
            mine = [v for v, (_, w) in enumerate(vectors) if w == width]
            steps: list[Stmt] = []
            right: dict[int, Any] = {}
            for v in mine:
                value = self._operands.right(tile, at, v, lane)
                right[v] = tirx.Var("w", value.ty)
                steps.append(tirx.Bind(right[v], value))
            for r in rows:
                for v in mine:
                    column = self._operands.column_at(tile, v) + lane
                    left = tirx.BufferLoad(self._c.left, [self._operands.left(tile, at, r, column)])
                    buffer = self._sum_at(r, v, width)
                    total = tirx.BufferLoad(buffer, [lane]) + left * right[v]
                    steps.append(tirx.BufferStore(buffer, total, [lane]))
            body.append(vectorized(lane, width, sequence(steps)))
        return sequence(body)

    def _interleaved_at(self, tile: Tile, at: list[Expr], rows: Sequence[int]) -> Stmt:
        """The products of the last loop added to the sums of some rows: written as vectors, for TVM shuffles
        nothing in its loops over lanes."""
        body: list[Stmt] = []
        for v, width in enumerate(tile.columns.widths):
            lanes = lanes_from(integer(0), width)
            right = []
            for k in range(self._c.summed[-1].extent):
                value = self._operands.interleaved_right(tile, [*at, k], v)
                right.append(tirx.Var("w", value.ty))
                body.append(tirx.Bind(right[-1], value))
            for r in rows:
                total = tirx.BufferLoad(self._sum_at(r, v, width), [lanes])
                for left, w in zip(self._operands.interleaved_left(tile, at, r, v), right, strict=True):
                    total = total + left * w
                body.append(tirx.BufferStore(self._sum_at(r, v, width), total, [lanes]))
        return sequence(body)

    def _finish(self, tile: Tile) -> list[Stmt]:
        """Every sum of the tile goes through the arithmetic after it to where it is stored."""
        vectors = self._vectors(tile.columns)
        if tile.rows * len(vectors) * self._weight <= _CHEAP:
            body = []
            for r in range(tile.rows):
                for v, (stored, width) in enumerate(vectors):
                    lane = variable("l")
                    value = tirx.BufferLoad(self._sum_at(r, v, width), [lane])
                    column = self._operands.column_at(tile, v)
                    body.append(self._stored(tile, value, tile.first + r, column, lane, stored))
            return body
        return self._finish_in_loops(tile, vectors)

    def _finish_in_loops(self, tile: Tile, vectors: list[tuple[int, int]]) -> list[Stmt]:
        held = tirx.decl_buffer((tile.rows * len(vectors) * self._vector,), self._dtype, name="tile")
        self._buffers.append(held)
        body: list[Stmt] = []
        for r in range(tile.rows):
            for v, (stored, width) in enumerate(vectors):
                lane = variable("l")
                value = tirx.BufferLoad(self._sum_at(r, v, width), [lane])
                place = (r * len(vectors) + v) * self._vector + lane
                body.append(vectorized(lane, stored, tirx.BufferStore(held, value, [place])))
        for width, run in itertools.groupby(range(len(vectors)), lambda v: vectors[v][0]):
            chosen = list(run)
            lane, r, v = variable("l"), variable("r"), variable("v")
            vector = v + chosen[0]
            value = tirx.BufferLoad(held, [(r * len(vectors) + vector) * self._vector + lane])
            column = self._operands.column_at(tile, vector)
            inner = self._stored(tile, value, tile.first + r, column, lane, width)
            body.append(loop(r, tile.rows, loop(v, len(chosen), inner)))
        return body

    def _stored(self, tile: Tile, value: Expr, row: Expr, column: Expr, lane: Expr, width: int) -> Stmt:
        own = Lanes(lane, width)
        replace = {v: row if e is self._row[0].var else e for v, e in self._replace.items()}
        replace = {**replace, self._row[0].var: row, self._column: column + lane, self._sum: value}
        body = self._body.instantiate(replace, own)
        self._buffers += own.buffers
        return vectorized(lane, width, body)


def _nothing() -> Stmt:
    return tirx.Evaluate(tirx.const(0, "int32"))


def _bounds(inside: Inside, position: Expr, extent: int) -> tuple[Expr, Expr]:
    """As `Inside.steps`, of a position that is known at run time only."""
    start = position * inside.stride - inside.before

    def ceiling(distance: Expr) -> Expr:
        if inside.dilation == 1:
            return distance
        return tirx.floordiv(distance + (inside.dilation - 1), tirx.const(inside.dilation, "int32"))

    low = tirx.max(tirx.const(0, "int32"), ceiling(-start))
    return low, tirx.min(tirx.const(extent, "int32"), ceiling(inside.size - start))
