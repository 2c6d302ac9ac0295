"""The schedule of groups without a reduction: one nest per part of the output, its innermost loop in vectors."""

from __future__ import annotations

import math
from typing import Any

from tvm import sym, tirx

from collage_tvm.nest import (
    Axis,
    Box,
    Lanes,
    Nest,
    axes_of,
    boxes_of,
    integer,
    merge,
    new_scope,
    template,
    variable,
    vectorized,
)
from collage_tvm.output import Output

__all__ = ["pointwise_nests", "segments", "stored_value", "work"]


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
    nests: list[Nest] = []
    for start, blocks, width in segments(inner.extent, lanes):
        block, lane = variable("b"), variable("l")
        position = block * width + lane + start
        moved = {v: position if e is inner.var else e for v, e in replace.items()} | {inner.var: position}
        own = Lanes(lane, width)
        statement = vectorized(lane, width, body.instantiate(moved, own))
        nests.append(Nest([*outer, Axis(block, blocks)], statement, own.buffers))
    return nests


def segments(extent: int, lanes: int) -> list[tuple[int, int, int]]:
    """(start, blocks, lanes) that cover 0..extent: whole vectors, then one of what is left."""
    blocks, rest = divmod(extent, lanes)
    parts = [(0, blocks, lanes)] if blocks else []
    return [*parts, (blocks * lanes, 1, rest)] if rest else parts


def work(output: Output) -> int:
    """Elements computed, weighted by what one costs."""
    seen: set[int] = set()
    queue = [output.tensor]
    weight = 0
    while queue:
        x = queue.pop()
        if id(x) not in seen:
            seen.add(id(x))
            weight += x.weight
            queue += x.inputs
    return math.prod(output.tensor.shape) * max(1, weight // 4)
