"""The schedule of groups without a reduction: one nest per part of the output, its innermost loop in
vectors."""

from __future__ import annotations

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
    integer,
    loop,
    merge,
    new_scope,
    put,
    stride_of,
    substitute,
    template,
    variable,
    vectorized,
)
from collage_tvm.output import Output

_TILE = 16
"""Rows of a transposition that are written together, so that a cache line that is read is used whole."""

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


def _box_nests(output: Output, box: Box, lanes: int) -> list[Nest]:
    root = output.tensor
    analyzer = sym.Analyzer()
    axes, index = axes_of(analyzer, box, root.factors, root.shape, output.layout)
    scope = new_scope(analyzer, [root])
    logical = tuple(index[d] for d in range(len(root.shape)))
    value = scope.value(root, logical)
    offset = tirx.convert(output.offset(logical))
    body = template(scope, [(output.buffer, offset, stored_value(value, root.dtype))], [offset])
    [axes], replace = merge([body], [axes])
    if not axes:
        single = Lanes(integer(0), 1)
        return [Nest([], body.instantiate(replace, single), single.buffers)]
    *outer, inner = axes
    tiled = _read_along(body, outer, inner, replace)
    others = [a for a in outer if a is not tiled]
    nests: list[Nest] = []
    for start, blocks, width in segments(inner.extent, lanes):
        for first, tiles, size in segments(tiled.extent, _TILE) if tiled else [(0, 0, 0)]:
            block, lane = variable("b"), variable("l")
            own = Lanes(lane, width)
            moved = put(replace, inner.var, block * width + lane + start)
            statement = vectorized(lane, width, body.instantiate(moved, own))
            loops = [*others, Axis(block, blocks)]
            if tiled:
                tile, row = variable("t"), variable("r")
                statement = loop(row, size, substitute(statement, {tiled.var: tile * size + row + first}))
                loops.insert(len(others), Axis(tile, tiles))
            nests.append(Nest(loops, statement, own.buffers))
    return nests


def _read_along(body: Template, outer: list[Axis], inner: Axis, replace: dict[Any, Any]) -> Axis | None:
    """The outer loop along which a transposed input is contiguous, when none is along the inner one and the
    tile is worth it."""
    sources = {e: v for v, e in replace.items() if isinstance(e, type(inner.var))}

    def stride(offset: Any, axis: Axis) -> int | None:
        return stride_of(offset, sources.get(axis.var, axis.var))

    reads = body.accesses[:-1]
    for offset in reads:
        if (stride(offset, inner) or 0) <= 1:
            continue
        for axis in outer:
            if axis.extent >= _TILE // 2 and stride(offset, axis) == 1:
                return axis
    return None


def segments(extent: int, lanes: int) -> list[tuple[int, int, int]]:
    """(start, blocks, lanes) that cover 0..extent: whole vectors, then one of what is left."""
    blocks, rest = divmod(extent, lanes)
    parts = [(0, blocks, lanes)] if blocks else []
    return [*parts, (blocks * lanes, 1, rest)] if rest else parts
