"""Sums of products on the GPU: how positions of the output and of a sum lie in the operands.

`tiles` shares the sums of a block's tile out to its threads, `thin` those of a few rows; `direct` gives each
thread one sum, where columns read different parts of the left operand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import ir, sym, tirx

from collage_core.formats import Array
from collage_tvm.contraction import Contraction, Inside, Kept
from collage_tvm.nest import Axis, Template, integer, new_scope, stride_of, template, variable
from collage_tvm.operands import Hold
from collage_tvm.output import Output
from collage_tvm.pointwise import stored_value
from collage_tvm.reductions import contraction_of

__all__ = ["Border", "Sums", "sums_of"]

Expr = Any


@dataclass(frozen=True)
class Border:
    """A condition of a product: position `at * stride + step * dilation - before` is one of `size`. kept,
    summed: the variables of the loops."""

    inside: Inside
    kept: Expr
    summed: Any


@dataclass(frozen=True)
class Sums:
    """A contraction and what follows it.

    rows: loops over positions that share the right operand. batch: over the others. column, summed: the rest.
    body: stores the element whose sum is `total`. output_strides: by how much the place of the element
    advances, by variable, None where it does not do so evenly.
    """

    contraction: Contraction
    dtype: str
    rows: list[Axis]
    batch: list[Axis]
    column: Axis
    summed: list[Axis]
    total: Any
    body: Template
    left: Expr
    right: Expr
    right_buffer: Any
    borders: list[Border]
    output_strides: Mapping[Any, int | None]

    @property
    def products(self) -> int:
        return math.prod(a.extent for a in self.summed)

    @property
    def row_count(self) -> int:
        return math.prod(a.extent for a in self.rows)

    @property
    def batch_count(self) -> int:
        return math.prod(a.extent for a in self.batch)

    @property
    def is_shared(self) -> bool:
        """Whether all columns read the same of the left operand."""
        return not self.contraction.column.left and self.contraction.interleaved is None

    def condition(self, replace: Mapping[Any, Expr]) -> Expr | None:
        """Whether there is such a product."""
        found: list[Expr] = []
        for border in self.borders:
            i = border.inside
            kept = replace.get(border.kept, border.kept) if not isinstance(border.kept, int) else border.kept
            place = kept * i.stride + replace.get(border.summed, border.summed) * i.dilation - i.before
            found += [place >= 0, place < i.size]
        return tirx.all(*found) if found else None


def sums_of(output: Output, hold: Hold) -> Sums:
    """Of an output that is computed from a contraction."""
    root = output.tensor
    x = contraction_of(root)
    assert x is not None
    assert x.contraction is not None
    c = x.contraction
    analyzer = sym.Analyzer()
    at = [_loop(analyzer, "i", k.extent) for k in c.kept]
    column = variable("column")
    analyzer.bind(column, ir.Range(0, c.column.extent))
    steps = [_loop(analyzer, "k", s.extent) for s in c.summed]
    index: list[Expr] = [0] * len(root.shape)
    for k, i in zip((*c.kept, c.column), (*at, column), strict=True):
        if k.dim >= 0 and k.extent > 1:
            index[k.dim] = index[k.dim] + i * k.step
    scope = new_scope(analyzer, [root])
    total = tirx.Var("total", ir.PrimType(x.dtype))
    scope.stored[id(x)] = lambda i: total
    value = stored_value(scope.value(root, tuple(index)), root.dtype)
    offset = tirx.convert(output.offset(tuple(index)))
    body = template(scope, [(output.buffer, offset, value)], [offset])
    loops = [(Axis(v, k.extent), k) for v, k in zip(at, c.kept, strict=True) if k.extent > 1]
    beside = [_is_beside(c, k) for _, k in loops]
    right_buffer, right = _right(c, x.dtype, at, steps, column, hold)
    return Sums(
        c,
        x.dtype,
        [a for (a, _), b in zip(loops, beside, strict=True) if not b],
        [a for (a, _), b in zip(loops, beside, strict=True) if b],
        Axis(column, c.column.extent),
        [Axis(v, s.extent) for v, s in zip(steps, c.summed, strict=True) if s.extent > 1],
        total,
        body,
        _left(c, at, steps, column),
        right,
        right_buffer,
        _borders(c, at, steps),
        {v: stride_of(offset, v) for v in (*(a.var for a, _ in loops), column)},
    )


def _loop(analyzer: Any, name: str, extent: int) -> Expr:
    if extent == 1:
        return 0
    var = variable(name)
    analyzer.bind(var, ir.Range(0, extent))
    return var


def _is_beside(c: Contraction, kept: Kept) -> bool:
    """Whether positions along a loop read different parts of the right operand."""
    return bool(kept.right) or (c.groups > 1 and kept is c.kept[0])


def _left(c: Contraction, at: Sequence[Expr], steps: Sequence[Expr], column: Any) -> Expr:
    total: Expr = c.base
    for kept, i in zip(c.kept, at, strict=True):
        total = total + i * kept.left
    if c.interleaved is not None:
        inputs, outputs = c.interleaved
        total = total + tirx.indexdiv(column, integer(outputs)) * inputs
    elif c.column.left:
        total = total + column * c.column.left
    for summed, k in zip(c.summed, steps, strict=True):
        total = total + k * summed.left
    return tirx.convert(total)


def _right(
    c: Contraction, dtype: str, at: Sequence[Expr], steps: Sequence[Expr], column: Any, hold: Hold
) -> tuple[Any, Expr]:
    """The buffer, and the offset of an element of it."""
    total: Expr = column * (c.column.right if not isinstance(c.right, np.ndarray) else 1)
    if not isinstance(c.right, np.ndarray):
        for kept, i in zip(c.kept, at, strict=True):
            total = total + i * kept.right
        for summed, k in zip(c.summed, steps, strict=True):
            total = total + k * summed.right
        return c.right, tirx.convert(total)
    products, columns = math.prod(s.extent for s in c.summed), c.column.extent
    shape = (c.groups, products, columns)
    weights = c.right

    def packed() -> Array:
        return np.ascontiguousarray(weights.reshape(shape))

    memory = hold(shape, str(weights.dtype), packed).memory
    assert memory is not None
    stride = columns
    for summed, k in zip(reversed(c.summed), reversed(steps), strict=True):
        total = total + k * stride
        stride *= summed.extent
    if c.groups > 1:
        total = total + at[0] * (products * columns)
    return memory.buffer, tirx.convert(total)


def _borders(c: Contraction, at: Sequence[Expr], steps: Sequence[Expr]) -> list[Border]:
    found: list[Border] = []
    for summed, step in zip(c.summed, steps, strict=True):
        inside = summed.inside
        if inside is not None and not inside.is_whole(c.kept[inside.kept].extent, summed.extent):
            found.append(Border(inside, at[inside.kept], step))
    return found
