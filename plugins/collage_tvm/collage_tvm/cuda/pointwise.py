"""The schedule of groups without a reduction: one thread for each element, or for some neighbours.

Neighbours are read and written as one where all of them lie beside each other, and on their address's own
multiple. Outputs of one shape and layout share a thread; others are parts of the grid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import tirx

from collage_tvm.cuda.elements import Elements, elements_of, place
from collage_tvm.cuda.launch import Grid, Launch, Registers, first_of, local_buffer, whole_blocks
from collage_tvm.nest import Axis, integer, lanes_from, loop, sequence, substituted, variable
from collage_tvm.output import Output

__all__ = ["pointwise_launch"]

Expr = Any
Stmt = Any

_THREADS = 128
_WIDEST = 4
"""Elements that a thread handles at most: 16 bytes of float32, the most that one instruction reads."""
_WIDEST_BYTES = 16


def pointwise_launch(outputs: Sequence[Output]) -> Launch:
    """All outputs of a group."""
    together: dict[tuple[object, ...], list[Output]] = {}
    for output in outputs:
        together.setdefault((output.tensor.shape, output.layout), []).append(output)
    grid, own = Grid(), Registers()
    bodies: list[Stmt] = []
    blocks = 1
    for part in together.values():
        body, count = _body(elements_of(part), grid, own)
        bodies.append(body)
        blocks = max(blocks, whole_blocks(count, _THREADS))
    if len(bodies) > 1:
        bodies = [tirx.IfThenElse(grid.part == k, body, None) for k, body in enumerate(bodies)]
    return Launch(grid, blocks, _THREADS, sequence(bodies), own.buffers, len(together))


def _body(elements: Elements, grid: Grid, own: Registers) -> tuple[Stmt, int]:
    """Of a thread, and how many threads have something to do."""
    width, axes = _width(elements), list(elements.axes)
    if width > 1:
        axes[-1] = Axis(axes[-1].var, axes[-1].extent // width)
    count = math.prod(a.extent for a in axes)
    position = grid.block * _THREADS + grid.thread
    at = place(axes, position)
    if width == 1:
        body = elements.body.instantiate(elements.at(at), own)
    else:
        body = _several(elements, at, width, own)
    return first_of(count, whole_blocks(count, _THREADS) * _THREADS, position, body), count


def _width(elements: Elements) -> int:
    """How many neighbours a thread handles.

    One where it reads from elsewhere: for a transposition, by a table, or where a condition says so. Threads
    that are neighbours then read as near to each other as they can.
    """
    body = elements.body
    if not elements.axes or body.guarded:
        return 1
    buffers = [*(o.buffer for o in elements.outputs), *(r.buffer for r in body.reads)]
    itemsizes = [np.dtype(b.dtype).itemsize for b in buffers]
    width: int = min(_WIDEST, _WIDEST_BYTES // max(itemsizes))
    while width > 1:
        stores = [_advance(elements, offset, width) == 1 for _, offset, _ in body.stores]
        reads = [_advance(elements, read.offset, width) is not None for read in body.reads]
        if elements.axes[-1].extent % width == 0 and all(stores) and all(reads):
            break
        width //= 2
    return width


def _advance(elements: Elements, offset: Expr, width: int) -> int | None:
    """1 where an offset advances by one along the innermost loop, and `width` of them begin at a multiple of
    `width`; 0 where it does not advance; None otherwise.
    """
    if (found := elements.strides(offset)) is None:
        return None
    (*others, step), begin = found
    if step == 0:
        return 0
    return 1 if step == 1 and all(s % width == 0 for s in (*others, begin)) else None


def _several(elements: Elements, at: Mapping[Any, Expr], width: int, own: Registers) -> Stmt:
    """The body for `width` neighbours."""
    body, inner = elements.body, elements.axes[-1].var
    start, lane = at[inner] * width, variable("lane")
    before: list[Stmt] = []
    after: list[Stmt] = []
    taken: dict[Any, Expr] = {}
    stores: list[tuple[Any, Expr, Expr]] = []
    first = elements.at({**at, inner: start})
    for read in body.reads:
        offset = substituted(read.offset, first)
        if _advance(elements, read.offset, width) == 0:
            taken[read.var] = tirx.Var(read.var.name, read.var.ty)
            before.append(tirx.Bind(taken[read.var], tirx.BufferLoad(read.buffer, [offset])))
            continue
        held = local_buffer("read", read.buffer.dtype, width)
        own.buffers.append(held)
        whole = tirx.BufferLoad(read.buffer, [lanes_from(offset, width)])
        before.append(tirx.BufferStore(held, whole, [lanes_from(integer(0), width)]))
        taken[read.var] = tirx.BufferLoad(held, [lane])
    for buffer, offset, value in body.stores:
        result = local_buffer("result", buffer.dtype, width)
        own.buffers.append(result)
        stores.append((result, lane, value))
        whole = tirx.BufferLoad(result, [lanes_from(integer(0), width)])
        after.append(tirx.BufferStore(buffer, whole, [lanes_from(substituted(offset, first), width)]))
    each = replace(body, stores=stores)
    moved = elements.at({**at, inner: start + lane})
    steps = loop(lane, width, each.instantiate(moved, own, taken), tirx.ForKind.UNROLLED)
    return sequence([*before, steps, *after])
