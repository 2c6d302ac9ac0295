"""The schedule of a scan: one position after the other along its axis, vectors across the other axes."""

from __future__ import annotations

from tvm import sym, tirx

from collage_tvm.nest import (
    Axis,
    Lanes,
    Nest,
    axes_of,
    merge,
    nested,
    new_scope,
    put,
    sequence,
    template,
    variable,
    vectorized,
)
from collage_tvm.output import Output, strides_of
from collage_tvm.rows import WIDE, fill, row_groups
from collage_tvm.tensor import constant

__all__ = ["scan_nests"]

_ROWS_TOGETHER = 4
"""Rows whose elements are neighbours that are summed together: each addition waits for the one before it, so
some rows at a time; more would not find room in a set of the first-level cache when rows lie powers of two
apart."""


def scan_nests(output: Output, lanes: int) -> list[Nest]:
    """`lanes`: of a vector. The output is the scan itself."""
    root = output.tensor
    assert root.scan is not None
    scan, count = root.scan, root.shape[root.scan.axis]
    analyzer = sym.Analyzer()
    box = tuple((0, d) for d in root.shape)
    order = [d for d in output.layout if d != scan.axis]
    rows, index = axes_of(analyzer, box, root.factors, root.shape, order)
    steps, along = axes_of(analyzer, box, [(d,) for d in root.shape], root.shape, [scan.axis])
    step = along[scan.axis]
    index[scan.axis] = count - 1 - step if scan.reverse else step
    full = tuple(index[d] for d in range(len(root.shape)))
    scope = new_scope(analyzer, [root])
    value = scope.value(scan.source, full)
    offset = tirx.convert(output.offset(full))
    neighbours = strides_of(root.shape, output.layout)[scan.axis] == 1
    widths = (_ROWS_TOGETHER,) if neighbours else (lanes * WIDE, lanes)
    total = tirx.decl_buffer((max(widths),), root.dtype, name="total")
    lane = variable("l")
    so_far = tirx.BufferLoad(total, [lane])
    stores = [(total, lane, so_far + value), (output.buffer, offset, so_far)]
    body = template(scope, stores[::-1] if scan.exclusive else stores, [offset])
    (rows, steps), replace = merge([body], [rows, steps])
    *outer, inner = rows or [Axis(variable("one"), 1)]
    nests: list[Nest] = []
    for start, blocks, width in row_groups(inner.extent, widths):
        own, block = Lanes(lane, width), variable("b")
        moved = put(replace, inner.var, block * width + lane + start)
        inside = vectorized(lane, width, body.instantiate(moved, own))
        whole = sequence([fill(total, width, constant(0, root.dtype)), nested(steps, inside)])
        nests.append(Nest([*outer, Axis(block, blocks)], whole, [total, *own.buffers]))
    return nests
