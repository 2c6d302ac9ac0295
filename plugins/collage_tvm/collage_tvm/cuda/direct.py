"""Sums of products, one by each thread."""

from __future__ import annotations

import math
from typing import Any

from tvm import tirx

from collage_tvm.cuda.contraction import Sums
from collage_tvm.cuda.elements import place
from collage_tvm.cuda.launch import Grid, Launch, Registers, first_of, local_buffer, whole_blocks
from collage_tvm.nest import integer, nested, sequence, substituted
from collage_tvm.tensor import constant

__all__ = ["direct_launch"]

_THREADS = 128


def direct_launch(sums: Sums) -> Launch:
    """Threads that are neighbours write neighbours."""
    zero, grid, own = integer(0), Grid(), Registers()
    axes = sorted(
        [*sums.batch, *sums.rows, sums.column],
        key=lambda a: -abs(sums.output_strides[a.var] or 0),
    )
    count = math.prod(a.extent for a in axes)
    position = grid.block * _THREADS + grid.thread
    at = place(axes, position)
    total = local_buffer("total", sums.dtype, 1)
    so_far = tirx.BufferLoad(total, [zero])
    left = tirx.BufferLoad(sums.contraction.left, [substituted(sums.left, at)])
    right = tirx.BufferLoad(sums.right_buffer, [substituted(sums.right, at)])
    step: Any = tirx.BufferStore(total, so_far + left * right, [zero])
    if (condition := sums.condition(at)) is not None:
        step = tirx.IfThenElse(condition, step, None)
    body = [
        tirx.BufferStore(total, constant(0, sums.dtype), [zero]),
        nested(sums.summed, step),
        sums.body.instantiate({**at, sums.total: so_far}, own),
    ]
    blocks = whole_blocks(count, _THREADS)
    whole = first_of(count, blocks * _THREADS, position, sequence(body))
    return Launch(grid, blocks, _THREADS, whole, [total, *own.buffers])
