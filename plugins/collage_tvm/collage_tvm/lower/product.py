"""Matrix products as sums of products."""

from __future__ import annotations

from typing import Any

import numpy as np

from collage_core.formats import Array
from collage_tvm.contraction import Contraction, Kept, Summed
from collage_tvm.lower import mathlib
from collage_tvm.lower.context import LoweringContext, lowering
from collage_tvm.lower.reduction import elementwise
from collage_tvm.tensor import ARITHMETIC, Expr, Index, Memory, Scope, Tensor, constant, make

__all__ = ["contracted", "operand"]


def contracted(shape: tuple[int, ...], dtype: str, inputs: list[Tensor], how: Contraction) -> Tensor:
    """The tensor of a contraction; the schedule computes it."""

    def element(s: Scope, i: Index) -> Expr:
        raise AssertionError("the schedule has not stored a contraction before reading it")

    return make(shape, dtype, inputs, element, contraction=how)


def operand(node: LoweringContext, index: int) -> tuple[Tensor, Memory]:
    """An operand that is read where it lies."""
    data = node.constant(index)
    x = node.tensor(index) if data is None else node.hold(data)
    assert x.memory is not None
    return x, x.memory


@lowering("MatMul")
def _matmul(node: LoweringContext) -> list[Tensor]:
    a, left = operand(node, 0)
    data = node.constant(1)
    b_shape = node.graph.shape_of(node.node.inputs[1])
    shape = node.shape()
    row, column = len(a.shape) > 1, len(b_shape) > 1
    batches = len(shape) - row - column
    left_strides = list(left.strides)
    products = left_strides.pop()
    along_rows = left_strides.pop() if row else 0
    kept = [Kept(d, shape[d], s) for d, s in enumerate([0] * (batches - len(left_strides)) + left_strides)]
    rows = [Kept(batches, shape[batches], along_rows)] if row else []
    columns = shape[-1] if column else 1
    dim = len(shape) - 1 if column else -1
    extent = a.shape[-1]
    if data is not None and data.size == extent * columns:
        right: Any = data.reshape(1, extent, columns)
        how = Contraction(
            (*kept, *rows), Kept(dim, columns, 0), (Summed(extent, products),), left.buffer, 0, right
        )
        return [contracted(shape, a.dtype, [a], how)]
    b, memory = operand(node, 1)
    right_strides = list(memory.strides)
    across = right_strides.pop() if column else 0
    down = right_strides.pop()
    own = [0] * (batches - len(right_strides)) + right_strides
    kept = [Kept(k.dim, k.extent, k.left, s) for k, s in zip(kept, own, strict=True)]
    how = Contraction(
        (*kept, *rows),
        Kept(dim, columns, 0, across),
        (Summed(extent, products, down),),
        left.buffer,
        0,
        memory.buffer,
    )
    return [contracted(shape, a.dtype, [a, b], how)]


@lowering("Gemm")
def _gemm(node: LoweringContext) -> list[Tensor]:
    a, left = operand(node, 0)
    rows, columns = node.shape()
    down, along = reversed(left.strides) if node.attribute("transA", 0) else left.strides
    extent = a.shape[0] if node.attribute("transA", 0) else a.shape[1]
    kept = (Kept(0, rows, down),)
    data, inputs = node.constant(1), [a]
    if data is not None:
        right: Array = data.T if node.attribute("transB", 0) else data
        how = Contraction(
            kept, Kept(1, columns, 0), (Summed(extent, along),), left.buffer, 0, np.asarray(right)[np.newaxis]
        )
    else:
        b, memory = operand(node, 1)
        inputs.append(b)
        below, across = reversed(memory.strides) if node.attribute("transB", 0) else memory.strides
        how = Contraction(
            kept, Kept(1, columns, 0, across), (Summed(extent, along, below),), left.buffer, 0, memory.buffer
        )
    result = contracted((rows, columns), a.dtype, inputs, how)
    alpha, beta = node.attribute("alpha", 1.0), node.attribute("beta", 1.0)
    if alpha != 1:
        result = elementwise(ARITHMETIC, lambda s, v: mathlib.times(v, constant(alpha, a.dtype)), result)
    if not node.has(2) or beta == 0:
        return [result]
    scale = constant(beta, a.dtype)
    added = [result, node.tensor(2)]
    if beta == 1:
        return [elementwise(ARITHMETIC, lambda s, v, c: v + c, *added)]
    return [elementwise(2 * ARITHMETIC, lambda s, v, c: v + scale * c, *added)]
