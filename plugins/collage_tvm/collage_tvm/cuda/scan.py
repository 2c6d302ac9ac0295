"""The schedule of a scan: a thread sums up each row, one position after the other."""

from __future__ import annotations

import math
from typing import Any

from tvm import sym, tirx

from collage_tvm.cuda.elements import place
from collage_tvm.cuda.launch import Grid, Launch, Registers, first_of, local_buffer, whole_blocks
from collage_tvm.nest import axes_of, integer, merge, nested, new_scope, sequence, template
from collage_tvm.output import Output
from collage_tvm.tensor import constant

__all__ = ["scan_launch"]

_THREADS = 64


def scan_launch(output: Output) -> Launch:
    """The output is the scan itself."""
    root = output.tensor
    assert root.scan is not None
    scan, extent = root.scan, root.shape[root.scan.axis]
    analyzer = sym.Analyzer()
    box = tuple((0, d) for d in root.shape)
    order = [d for d in output.layout if d != scan.axis]
    rows, index = axes_of(analyzer, box, root.factors, root.shape, order)
    steps, along = axes_of(analyzer, box, [(d,) for d in root.shape], root.shape, [scan.axis])
    step = along[scan.axis]
    index[scan.axis] = extent - 1 - step if scan.reverse else step
    full = tuple(index[d] for d in range(len(root.shape)))
    scope = new_scope(analyzer, [root])
    value = scope.value(scan.source, full)
    offset = tirx.convert(output.offset(full))
    total, zero = local_buffer("total", root.dtype, 1), integer(0)
    so_far = tirx.BufferLoad(total, [zero])
    stores: list[tuple[Any, Any, Any]] = [(total, zero, so_far + value), (output.buffer, offset, so_far)]
    body = template(scope, stores[::-1] if scan.exclusive else stores, [offset])
    (rows, steps), replace = merge([body], [rows, steps])
    grid, own = Grid(), Registers()
    count = math.prod(a.extent for a in rows)
    position = grid.block * _THREADS + grid.thread
    at = place(rows, position)
    moved = {**{v: at.get(e, e) for v, e in replace.items()}, **at}
    inside = nested(steps, body.instantiate(moved, own))
    whole = sequence([tirx.BufferStore(total, constant(0, root.dtype), [zero]), inside])
    blocks = whole_blocks(count, _THREADS)
    whole = first_of(count, blocks * _THREADS, position, whole)
    return Launch(grid, blocks, _THREADS, whole, [total, *own.buffers])
