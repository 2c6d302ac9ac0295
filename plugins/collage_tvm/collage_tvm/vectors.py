"""A body for the lanes of a vector, with loads and stores that LLVM would not find by itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tvm import ir, sym, tirx

from collage_tvm.nest import (
    Lanes,
    Template,
    free_variables,
    integer,
    lanes_from,
    prefetched,
    sequence,
    stride_of,
    substituted,
    vectorized,
)
from collage_tvm.output import Output, beyond_caches
from collage_tvm.squares import SIDES
from collage_tvm.tensor import Read

__all__ = ["fence", "lines_ahead", "vector_body", "with_streams"]

Expr = Any
Stmt = Any

_LLVM_TYPES = {"float32": "float", "float64": "double", "int32": "i32", "int64": "i64"}
"""Of the elements that are stored past the caches."""
_LINE_BYTES = 64
_ELEMENTS_AHEAD = 2048
"""How much later what is asked for now will be read."""
_FENCE = "define void @collage_fence() {\n  fence seq_cst\n  ret void\n}\n"


def vector_body(
    template: Template,
    replace: Mapping[Any, Expr],
    own: Lanes,
    lanes: int,
    *,
    taken: Mapping[Any, Expr] | None = None,
    output: Output | None = None,
) -> Stmt:
    """`template` for all lanes of `own` at once. lanes: of a vector of this processor. taken: what stands for
    some of the reads. output: what the template's last store writes, if it is one."""
    taken = dict(taken or {})
    before = _read_every_other(template, replace, own, lanes, taken)
    after: list[Stmt] = []
    if output is not None and output.streams:
        template, after = _streamed(template, replace, own, lanes)
    body = vectorized(own.lane, own.width, template.instantiate(replace, own, taken))
    return sequence([*before, body, *after])


def _read_every_other(
    template: Template, replace: Mapping[Any, Expr], own: Lanes, lanes: int, taken: dict[Any, Expr]
) -> list[Stmt]:
    """What loads those reads that are two elements apart in neighbouring lanes, as pooling with strides of
    two does; they are added to `taken`. LLVM would load them element by element."""
    before: list[Stmt] = []
    if own.width % lanes or lanes not in SIDES:
        return before
    bound = {v for v, _ in template.bindings}
    for read in template.reads:
        if read.var in taken:
            continue
        offset = substituted(read.offset, replace)
        if stride_of(offset, own.lane) == 2 and not bound & free_variables(offset):
            slot = own.buffer(read.var.ty)
            for first in range(0, own.width, lanes):
                before.append(_every_other(read, substituted(offset, {own.lane: first}), slot, first, lanes))
            taken[read.var] = tirx.BufferLoad(slot, [own.lane])
    return before


def _every_other(read: Read, offset: Expr, slot: Any, first: int, lanes: int) -> Stmt:
    """slot[first + k] = element offset + 2 k: two vectors that overlap by one, so that nothing behind the
    last element is touched."""
    halves = [tirx.BufferLoad(read.buffer, [lanes_from(offset + more, lanes)]) for more in (0, lanes - 1)]
    which = [integer(2 * k if 2 * k < lanes else 2 * k + 1) for k in range(lanes)]
    return tirx.BufferStore(slot, tirx.Shuffle(halves, which), [lanes_from(integer(first), lanes)])


def _streamed(
    template: Template, replace: Mapping[Any, Expr], own: Lanes, lanes: int
) -> tuple[Template, list[Stmt]]:
    """The template with its last store into a buffer of its own, and what stores that past the caches: lines
    that are written whole need not be read first. Both as they are where not every vector is whole, aligned
    and contiguous."""
    *stores, (buffer, index, value) = template.stores
    offset = substituted(index, replace)
    firsts = [substituted(offset, {own.lane: first}) for first in range(0, own.width, lanes)]
    if (
        buffer.dtype not in _LLVM_TYPES
        or own.width % lanes
        or stride_of(offset, own.lane) != 1
        or not sym.Analyzer().can_prove(tirx.floormod(firsts[0], lanes) == 0)
    ):
        return template, []
    slot = own.buffer(buffer.dtype)
    after: list[Stmt] = []
    for k, first in enumerate(firsts):
        stored = tirx.BufferLoad(slot, [lanes_from(integer(k * lanes), lanes)])
        to = tirx.address_of(tirx.BufferLoad(buffer, [first]))
        after.append(tirx.Evaluate(tirx.call_extern("void", _stream_name(buffer.dtype), to, stored)))
    return dataclasses.replace(template, stores=[*stores, (slot, own.lane, value)]), after


def lines_ahead(template: Template, replace: Mapping[Any, Expr], first: Mapping[Any, Expr]) -> list[Stmt]:
    """Asks for what will be read somewhat later than the elements at `first`, where it lies in no cache."""
    bound = {v for v, _ in template.bindings}
    lines: list[Stmt] = []
    for read in template.reads:
        far = beyond_caches(int(read.buffer.shape[0]), read.buffer.dtype)
        offset = substituted(substituted(read.offset, replace), first)
        if far and not bound & free_variables(offset):
            lines.append(prefetched(read.buffer, offset + _ELEMENTS_AHEAD, 1))
    return lines


def fence() -> Stmt:
    """Behind it, other threads see what has been stored past the caches: such stores are not ordered with the
    ordinary one by which a thread tells the others that it is done."""
    return tirx.Evaluate(tirx.call_extern("void", "collage_fence"))


def with_streams(body: Stmt, dtypes: set[str], lanes: int) -> Stmt:
    """`body` beside the functions that it calls to store vectors of these dtypes past the caches."""
    texts = [_FENCE, *(_stream(dtype, lanes) for dtype in sorted(dtypes & _LLVM_TYPES.keys()))]
    for text in texts:
        body = tirx.AttrStmt("default", "pragma_import_llvm", ir.StringImm(text), body)
    return body


def _stream_name(dtype: str) -> str:
    return f"collage_stream_{dtype}"


def _stream(dtype: str, lanes: int) -> str:
    vector = f"<{lanes} x {_LLVM_TYPES[dtype]}>"
    alignment = min(_LINE_BYTES, lanes * int(dtype[-2:]) // 8)
    return f"""define void @{_stream_name(dtype)}(ptr %to, {vector} %value) {{
  store {vector} %value, ptr %to, align {alignment}, !nontemporal !0
  ret void
}}
!0 = !{{i32 1}}
"""
