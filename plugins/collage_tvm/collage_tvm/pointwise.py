"""The schedule of groups without a reduction: one nest per part of the output, its innermost loop in
vectors."""

from __future__ import annotations

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
    prefetched,
    put,
    sequence,
    stride_of,
    substitute,
    substituted,
    template,
    variable,
)
from collage_tvm.output import Output, beyond_caches
from collage_tvm.squares import SIDES, transposed_square
from collage_tvm.tensor import Read
from collage_tvm.vectors import vector_body

_TILE = 16
"""Rows of a transposition that are written together, so that a cache line that is read is used whole."""
_SQUARES_TOGETHER = 4
"""Squares of a transposition whose lines are neighbours where they are read, as the memory likes it; caches
like one at a time."""
_COLUMNS_AHEAD = 32
"""How many columns ahead lines of a transposed input are asked for."""

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
    """A box's body over `axes`, outermost first; replace: what became of the loops over single digits. own:
    the variables of those."""

    body: Template
    axes: list[Axis]
    replace: dict[Any, Any]
    own: set[Any]
    output: Output
    lanes: int

    @property
    def reads(self) -> list[Read]:
        """Loads outside conditions, whose place follows from the loops alone."""
        return [r for r in self.body.reads if free_variables(r.offset) <= self.own]

    def stride(self, offset: Any, axis: Axis) -> int | None:
        """By how much an offset advances along a loop; None if not evenly."""
        sources = {e: v for v, e in self.replace.items() if isinstance(e, type(axis.var))}
        return stride_of(offset, sources.get(axis.var, axis.var))


def _write(output: Output, box: Box, lanes: int) -> _Written:
    root = output.tensor
    analyzer = sym.Analyzer()
    axes, index = axes_of(analyzer, box, root.factors, root.shape, output.layout)
    scope = new_scope(analyzer, [root])
    logical = tuple(index[d] for d in range(len(root.shape)))
    value = scope.value(root, logical)
    offset = tirx.convert(output.offset(logical))
    body = template(scope, [(output.buffer, offset, stored_value(value, root.dtype))], [offset])
    [merged], replace = merge([body], [axes])
    return _Written(body, merged, replace, {a.var for a in axes}, output, lanes)


def _box_nests(output: Output, box: Box, lanes: int) -> list[Nest]:
    written = _write(output, box, lanes)
    if not written.axes:
        single = Lanes(integer(0), 1)
        return [Nest([], written.body.instantiate(written.replace, single), single.buffers)]
    tiled = _read_along(written)
    if tiled is None:
        return [_strip(written, part) for part in segments(written.axes[-1].extent, lanes)]
    turned = _Turned(written, tiled, lanes)
    nests: list[Nest] = []
    for part in segments(written.axes[-1].extent, lanes):
        first = 0
        for squares in (_SQUARES_TOGETHER, 1) if output.streams else (1,):
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
    before, taken = _read_first(written) if tiled is None else ([], {})
    statement = vector_body(written.body, moved, own, written.lanes, taken=taken, output=written.output)
    loops = [*outer, Axis(block, blocks)]
    if tiled is not None:
        along, (first, tiles, size) = loops.pop(tiled), tile
        around, row = variable("t"), variable("r")
        statement = loop(row, size, substitute(statement, {along.var: around * size + row + first}))
        loops.insert(len(loops) - 1, Axis(around, tiles))
    return Nest(loops, statement, own.buffers, before)


def _read_first(written: _Written) -> tuple[list[Any], dict[Any, Any]]:
    """Where places of elements are read from memory, as a gather's are: what reads before the innermost loop
    whatever is the same all along it, and what stands for these reads. LLVM would read it for every vector,
    as it must assume that stores past the caches change it."""
    before: list[Any] = []
    taken: dict[Any, Any] = {}
    if len(written.reads) == len(written.body.reads):
        return before, taken
    for read in written.reads:
        if written.stride(read.offset, written.axes[-1]) == 0:
            taken[read.var] = tirx.Var(read.var.name, read.var.ty)
            offset = substituted(read.offset, written.replace)
            before.append(tirx.Bind(taken[read.var], tirx.BufferLoad(read.buffer, [offset])))
    return before, taken


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

    def __init__(self, written: _Written, tiled: int, lanes: int) -> None:
        self._written, self._side, self._tiled = written, lanes, tiled
        self.reads = [
            read
            for read in written.reads
            if (written.stride(read.offset, written.axes[-1]) or 0) > 1
            and written.stride(read.offset, written.axes[tiled]) == 1
            and lanes in SIDES
        ]
        self._squares = [
            tirx.decl_buffer((lanes * lanes,), read.buffer.dtype, name="square") for read in self.reads
        ]

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
        pairs = list(zip(self.reads, self._squares, strict=True))
        taken = {read.var: tirx.BufferLoad(square, [row * side + lane]) for read, square in pairs}
        body = vector_body(written.body, moved, own, side, taken=taken, output=written.output)
        statements = [self._turn(*pair) for pair in pairs]
        statements += [line for read in self.reads for line in self._ahead(read)]
        at = put(written.replace, inner.var, block * width + start)
        turned = substitute(substitute(sequence(statements), at), {along.var: corner})
        rows = loop(row, side, substitute(body, {along.var: corner + row}))
        loops = [*outer, Axis(around, count), Axis(block, blocks), Axis(square, squares)]
        return Nest(loops, sequence([turned, rows]), [*own.buffers, *self._squares])

    def _ahead(self, read: Read) -> list[Any]:
        """Asks for the lines of the square that is read some columns later, where it lies in no cache; in the
        second level, as in the first those whose distance is a power of two would push each other out."""
        if not beyond_caches(int(read.buffer.shape[0]), read.buffer.dtype):
            return []
        apart = self._written.stride(read.offset, self._written.axes[-1]) or 0
        later = [read.offset + (_COLUMNS_AHEAD + k) * apart for k in range(self._side)]
        return [prefetched(read.buffer, offset, 2) for offset in later]

    def _turn(self, read: Read, square: Any) -> Any:
        apart = self._written.stride(read.offset, self._written.axes[-1]) or 0
        return transposed_square(
            read.buffer,
            lambda k: read.offset + k * apart,
            square,
            lambda k: integer(k * self._side),
            self._side,
        )


def segments(extent: int, lanes: int) -> list[tuple[int, int, int]]:
    """(start, blocks, lanes) that cover 0..extent: whole vectors, then one of what is left."""
    blocks, rest = divmod(extent, lanes)
    parts = [(0, blocks, lanes)] if blocks else []
    return [*parts, (blocks * lanes, 1, rest)] if rest else parts
