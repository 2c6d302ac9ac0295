"""Products of a few rows: what takes time is to read the right operand once.

A block has 32 columns. Its warps share out the products, and add up what they have found through shared
memory, in the same order every time.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from collage_tvm.cuda.contraction import Sums
from collage_tvm.cuda.elements import place
from collage_tvm.cuda.launch import Grid, Launch, Registers, local_buffer, shared_buffer, whole_blocks
from collage_tvm.nest import Axis, integer, loop, sequence, stride_of, substituted, variable
from collage_tvm.tensor import constant

__all__ = ["is_thin", "thin_launch"]

Expr = Any
Stmt = Any

_COLUMNS = 32
_WARPS = 16
_MOST_ROWS = 4


def is_thin(sums: Sums) -> bool:
    """Whether there are few rows, and columns that are neighbours."""
    return sums.row_count <= _MOST_ROWS and stride_of(sums.right, sums.column.var) == 1


def thin_launch(sums: Sums) -> Launch:
    zero, grid, own = integer(0), Grid(), Registers()
    rows, columns = sums.row_count, sums.column.extent
    warp, lane = (op(grid.thread, integer(_COLUMNS)) for op in (tirx.indexdiv, tirx.indexmod))
    part = Axis(variable("part"), whole_blocks(columns, _COLUMNS))
    of_block = place([*sums.batch, part], grid.block)
    batch = {a.var: of_block[a.var] for a in sums.batch}
    column = of_block[part.var] * _COLUMNS + lane
    # whoever has no column waits for the others all the same
    read = tirx.min(column, integer(columns - 1)) if columns % _COLUMNS else column
    totals = local_buffer("totals", sums.dtype, rows)
    shared = shared_buffer("found", sums.dtype, _WARPS * rows * _COLUMNS)
    first, row = variable("row"), variable("row")
    cleared = tirx.BufferStore(totals, constant(0, sums.dtype), [first])
    kept = tirx.BufferStore(shared, tirx.BufferLoad(totals, [row]), [(warp * rows + row) * _COLUMNS + lane])
    total = local_buffer("total", sums.dtype, 1)
    so_far, other = tirx.BufferLoad(total, [zero]), variable("other")
    found = tirx.BufferLoad(shared, [(other * rows + warp) * _COLUMNS + lane])
    at = {**batch, **place(sums.rows, warp), sums.column.var: column}
    stored = sequence(
        [
            tirx.BufferStore(total, constant(0, sums.dtype), [zero]),
            loop(other, _WARPS, tirx.BufferStore(total, so_far + found, [zero]), tirx.ForKind.UNROLLED),
            sums.body.instantiate({**at, sums.total: so_far}, own),
        ]
    )
    conditions = [warp < rows, *([column < columns] if columns % _COLUMNS else [])]
    body = [
        loop(first, rows, cleared, tirx.ForKind.UNROLLED),
        _added(sums, {**batch, sums.column.var: read}, warp, totals),
        loop(row, rows, kept, tirx.ForKind.UNROLLED),
        tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared")),
        tirx.IfThenElse(tirx.all(*conditions), stored, None),
    ]
    blocks = sums.batch_count * part.extent
    buffers = [totals, shared, total, *own.buffers]
    return Launch(grid, blocks, _WARPS * _COLUMNS, sequence(body), buffers)


def _added(sums: Sums, of_column: dict[Any, Expr], warp: Expr, totals: Any) -> Stmt:
    """The products of one warp, for all rows."""
    step, row = variable("step"), variable("row")
    product = step * _WARPS + warp
    at = {**of_column, **place(sums.summed, product), **place(sums.rows, row)}
    right = tirx.Var("right", sums.total.ty)
    left = tirx.BufferLoad(sums.contraction.left, [substituted(sums.left, at)])
    so_far = tirx.BufferLoad(totals, [row])
    add: Stmt = tirx.BufferStore(totals, so_far + left * right, [row])
    if (condition := sums.condition(at)) is not None:
        add = tirx.IfThenElse(condition, add, None)
    body = sequence(
        [
            tirx.Bind(right, tirx.BufferLoad(sums.right_buffer, [substituted(sums.right, at)])),
            loop(row, sums.row_count, add, tirx.ForKind.UNROLLED),
        ]
    )
    if sums.products % _WARPS:
        body = tirx.IfThenElse(product < sums.products, body, None)
    return loop(step, whole_blocks(sums.products, _WARPS), body)
