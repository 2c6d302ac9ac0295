"""The schedule of groups without a reduction: one nest per part of the output, its innermost loop in
vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm import sym, tirx

from collage_tvm.nest import (
    Axis,
    Box,
    Lanes,
    Nest,
    Template,
    axes_of,
    boxes_of,
    free_variables,
    integer,
    loop,
    merge,
    new_scope,
    put,
    sequence,
    stride_of,
    substitute,
    template,
    variable,
    vectorized,
)
from collage_tvm.output import Output
from collage_tvm.squares import SIDES, transposed_square

_TILE = 16
"""Rows of a transposition that are written together, so that a cache line that is read is used whole."""
_SQUARES_TOGETHER = 4
"""Squares of a transposition whose lines are neighbours where they are read, as the memory likes it."""

__all__ = ["pointwise_nests", "segments", "stored_value"]


def stored_value(value: Any, dtype: str) -> Any:
    """What is written to memory for an element."""
    if dtype != "bool":
        return value
    return tirx.Select(value, tirx.const(1, "uint8"), tirx.const(0, "uint8"))


def pointwise_nests(output: Output, lanes: int) -> list[Nest]:
    root = output.tensor
    nests: list[Nest] = []
    for box in boxes_of(root.shape, root.cuts):
        if all(low < high for low, high in box):
            nests += _box_nests(output, box, lanes)
    return nests


@dataclass(frozen=True)
class _Written:
    """A box's body over `axes`, outermost first; replace: what became of the loops over single digits. reads:
    buffer and offset of all loads outside conditions, over those."""

    body: Template
    axes: list[Axis]
    replace: dict[Any, Any]
    reads: list[tuple[Any, Any]]

    def stride(self, offset: Any, axis: Axis) -> int | None:
        """By how much an offset advances along a loop; None if not evenly."""
        sources = {e: v for v, e in self.replace.items() if isinstance(e, type(axis.var))}
        return stride_of(offset, sources.get(axis.var, axis.var))


def _write(output: Output, box: Box, taken: Mapping[int, Any]) -> _Written:
    """taken: what stands for some of the reads, by their number."""
    root = output.tensor
    analyzer = sym.Analyzer()
    axes, index = axes_of(analyzer, box, root.factors, root.shape, output.layout)
    scope = new_scope(analyzer, [root])
    scope.taken = taken
    logical = tuple(index[d] for d in range(len(root.shape)))
    value = scope.value(root, logical)
    offset = tirx.convert(output.offset(logical))
    body = template(scope, [(output.buffer, offset, stored_value(value, root.dtype))], [offset])
    [merged], replace = merge([body], [axes])
    own = {a.var for a in axes}
    reads = [(b, e) if free_variables(e) <= own else (b, tirx.const(0, "int32")) for b, e in scope.reads]
    return _Written(body, merged, replace, reads)


def _box_nests(output: Output, box: Box, lanes: int) -> list[Nest]:
    written = _write(output, box, {})
    if not written.axes:
        single = Lanes(integer(0), 1)
        return [Nest([], written.body.instantiate(written.replace, single), single.buffers)]
    tiled = _read_along(written)
    if tiled is None:
        return [_strip(written, part) for part in segments(written.axes[-1].extent, lanes)]
    turned = _Turned(output, box, written, tiled, lanes)
    nests: list[Nest] = []
    for part in segments(written.axes[-1].extent, lanes):
        first = 0
        for squares in (_SQUARES_TOGETHER, 1):
            count = (written.axes[tiled].extent - first) // (squares * lanes)
            if count and part[2] == lanes and turned.reads:
                nests.append(turned.nest(part, first, count, squares))
                first += count * squares * lanes
        nests += [
            _strip(written, part, tiled, (first + start, tiles, rows))
            for start, tiles, rows in segments(written.axes[tiled].extent - first, _TILE)
        ]
    return nests


def _strip(
    written: _Written,
    part: tuple[int, int, int],
    tiled: int | None = None,
    tile: tuple[int, int, int] = (0, 0, 0),
) -> Nest:
    """A part of the innermost loop in vectors; of each, `tile[2]` rows along the loop `tiled` together."""
    *outer, inner = written.axes
    start, blocks, width = part
    block, lane = variable("b"), variable("l")
    own = Lanes(lane, width)
    moved = put(written.replace, inner.var, block * width + lane + start)
    statement = vectorized(lane, width, written.body.instantiate(moved, own))
    loops = [*outer, Axis(block, blocks)]
    if tiled is not None:
        along, (first, tiles, size) = loops.pop(tiled), tile
        around, row = variable("t"), variable("r")
        statement = loop(row, size, substitute(statement, {along.var: around * size + row + first}))
        loops.insert(len(loops) - 1, Axis(around, tiles))
    return Nest(loops, statement, own.buffers)


def _read_along(written: _Written) -> int | None:
    """The outer loop along which a transposed input is contiguous, when none is along the inner one and the
    tile is worth it."""
    *outer, inner = written.axes
    for offset in written.body.accesses[:-1]:
        if (written.stride(offset, inner) or 0) <= 1:
            continue
        for k, axis in enumerate(outer):
            if axis.extent >= _TILE // 2 and written.stride(offset, axis) == 1:
                return k
    return None


class _Turned:
    """Nests whose transposed inputs are first turned, square by square, in buffers that the body reads."""

    def __init__(self, output: Output, box: Box, plain: _Written, tiled: int, lanes: int) -> None:
        self._side, self._tiled = lanes, tiled
        self._row, self._lane = variable("row"), variable("column")
        self.reads = [
            k
            for k, (_, offset) in enumerate(plain.reads)
            if (plain.stride(offset, plain.axes[-1]) or 0) > 1
            and plain.stride(offset, plain.axes[tiled]) == 1
            and lanes in SIDES
        ]
        self._squares = [
            tirx.decl_buffer((lanes * lanes,), plain.reads[k][0].dtype, name="square") for k in self.reads
        ]
        place = self._row * lanes + self._lane
        taken = {k: tirx.BufferLoad(s, [place]) for k, s in zip(self.reads, self._squares, strict=True)}
        self._written = _write(output, box, taken)

    def nest(self, part: tuple[int, int, int], first: int, count: int, squares: int) -> Nest:
        """`squares` beside each other for each block of columns: so many neighbours of a line that has been
        read are read next."""
        written, side = self._written, self._side
        *outer, inner = written.axes
        along = outer.pop(self._tiled)
        start, blocks, width = part
        around, block, square = variable("t"), variable("b"), variable("s")
        row, lane = variable("r"), variable("l")
        corner = (around * squares + square) * side + first
        own = Lanes(lane, width)
        moved = put(written.replace, inner.var, block * width + lane + start)
        moved |= {self._row: row, self._lane: lane}
        body = vectorized(lane, width, written.body.instantiate(moved, own))
        statements = [self._turn(k, s) for k, s in zip(self.reads, self._squares, strict=True)]
        at = put(written.replace, inner.var, block * width + start)
        turned = substitute(substitute(sequence(statements), at), {along.var: corner})
        rows = loop(row, side, substitute(body, {along.var: corner + row}))
        loops = [*outer, Axis(around, count), Axis(block, blocks), Axis(square, squares)]
        return Nest(loops, sequence([turned, rows]), [*own.buffers, *self._squares])

    def _turn(self, read: int, square: Any) -> Any:
        buffer, offset = self._written.reads[read]
        apart = self._written.stride(offset, self._written.axes[-1]) or 0
        return transposed_square(
            buffer, lambda k: offset + k * apart, square, lambda k: integer(k * self._side), self._side
        )


def segments(extent: int, lanes: int) -> list[tuple[int, int, int]]:
    """(start, blocks, lanes) that cover 0..extent: whole vectors, then one of what is left."""
    blocks, rest = divmod(extent, lanes)
    parts = [(0, blocks, lanes)] if blocks else []
    return [*parts, (blocks * lanes, 1, rest)] if rest else parts
