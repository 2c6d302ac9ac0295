"""The schedule of transpositions, alone or with arithmetic around them: square by square.

A block reads a square along the input's rows and writes it along the output's. In between it lies in shared
memory, whose rows are one longer, so that neither way threads meet in one bank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import tirx

from collage_tvm.cuda.elements import Elements, elements_of, place
from collage_tvm.cuda.launch import Grid, Launch, Registers, shared_buffer, whole_blocks
from collage_tvm.nest import Axis, integer, loop, sequence, substituted, variable
from collage_tvm.output import Output
from collage_tvm.tensor import Read

__all__ = ["turned_launch"]

Expr = Any
Stmt = Any

_SIDE = 32
_ROWS = 8
"""Of threads: each has every eighth row of a square."""
_LEAST = 16
"""Shorter sides leave too many threads without an element."""
_MOST_READS = 4
"""Of 4 to 8 kB each, of a block's shared memory."""


def turned_launch(outputs: Sequence[Output]) -> Launch | None:
    """None where nothing is transposed, or outputs lie in different ways."""
    if len({(o.tensor.shape, o.layout) for o in outputs}) > 1:
        return None
    elements = elements_of(outputs)
    if len(elements.axes) < 2 or elements.axes[-1].extent < _LEAST:
        return None
    for k, axis in enumerate(elements.axes[:-1]):
        reads = [r for r in elements.body.reads if axis.extent >= _LEAST and _is_turned(elements, r, k)]
        if reads:
            return _launch(elements, k, reads) if len(reads) <= _MOST_READS else None
    return None


def _is_turned(elements: Elements, read: Read, k: int) -> bool:
    """Whether neighbours of an input lie along the loop `k` instead of the innermost."""
    found = elements.strides(read.offset)
    return found is not None and found[0][k] == 1 and abs(found[0][-1]) > 1


def _launch(elements: Elements, k: int, reads: Sequence[Read]) -> Launch:
    inner, along = elements.axes[-1], elements.axes[k]
    others = [a for a in elements.axes if a not in (inner, along)]
    across = Axis(variable("across"), whole_blocks(inner.extent, _SIDE))
    down = Axis(variable("down"), whole_blocks(along.extent, _SIDE))
    grid, own = Grid(), Registers()
    axes = [*others, down, across]
    of_block = place(axes, grid.block)
    corner = of_block[across.var] * _SIDE, of_block[down.var] * _SIDE
    column = tirx.indexmod(grid.thread, integer(_SIDE))
    turns = variable("turn"), variable("turn")
    rows = [tirx.indexdiv(grid.thread, integer(_SIDE)) + turn * _ROWS for turn in turns]
    outside = {a.var: of_block[a.var] for a in others}

    def guarded(first: Expr, second: Expr, body: Stmt) -> Stmt:
        conditions = [
            position < axis.extent
            for axis, position in ((inner, first), (along, second))
            if axis.extent % _SIDE
        ]
        return tirx.IfThenElse(tirx.all(*conditions), body, None) if conditions else body

    squares = [shared_buffer("square", r.buffer.dtype, _SIDE * (_SIDE + 1)) for r in reads]
    # along the input's rows: a row of threads has neighbours along the loop `along`
    row = rows[0]
    first, second = corner[0] + row, corner[1] + column
    at = elements.at({**outside, inner.var: first, along.var: second})
    brought = [
        tirx.BufferStore(
            square,
            tirx.BufferLoad(read.buffer, [substituted(read.offset, at)]),
            [row * (_SIDE + 1) + column],
        )
        for read, square in zip(reads, squares, strict=True)
    ]
    bring = loop(turns[0], _SIDE // _ROWS, guarded(first, second, sequence(brought)), tirx.ForKind.UNROLLED)
    # along the output's
    row = rows[1]
    first, second = corner[0] + column, corner[1] + row
    at = elements.at({**outside, inner.var: first, along.var: second})
    taken = {
        read.var: tirx.BufferLoad(square, [column * (_SIDE + 1) + row])
        for read, square in zip(reads, squares, strict=True)
    }
    body = elements.body.instantiate(at, own, taken)
    write = loop(turns[1], _SIDE // _ROWS, guarded(first, second, body), tirx.ForKind.UNROLLED)
    synchronised = tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared"))
    blocks = math.prod(a.extent for a in axes)
    whole = sequence([bring, synchronised, write])
    return Launch(grid, blocks, _SIDE * _ROWS, whole, [*squares, *own.buffers])
