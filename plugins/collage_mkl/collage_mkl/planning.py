"""From a group to its product: matrices in memory, found from shapes and layouts. Loads nothing."""

from __future__ import annotations

import math

import numpy as np

from collage_core.backend import Variant
from collage_core.errors import Refusal
from collage_core.ir import Subgraph
from collage_core.strided import Strided
from collage_mkl.product import Matrix, Product
from collage_mkl.support import addend

__all__ = ["plan"]


def plan(subgraph: Subgraph, variant: Variant) -> Product | Refusal:
    """The product of a group of one node that `support.refusal` has let pass, in the variant's formats."""
    graph, node = subgraph.graph, subgraph.nodes[0]
    formats = dict(
        zip((*subgraph.inputs, *subgraph.outputs), (*variant.inputs, *variant.outputs), strict=True)
    )

    def stored(name: str) -> Strided:
        shape = graph.shape_of(name)
        return Strided.dense(shape, formats[name].layout if name in formats else tuple(range(len(shape))))

    left, right, out = (stored(v) for v in (*node.inputs[:2], node.outputs[0]))
    alpha, beta = 1.0, 0.0
    if node.op_type == "Gemm":
        left = left.swapped() if node.attributes.get("transA", 0) else left
        right = right.swapped() if node.attributes.get("transB", 0) else right
        alpha = float(node.attributes.get("alpha", 1.0))
        beta = float(node.attributes.get("beta", 1.0)) if addend(node) else 0.0
    if len(right.dims) == 1:
        right, out = right.with_dimension(1), out.with_dimension(len(out.dims))
    if len(left.dims) == 1:
        left, out = left.with_dimension(0), out.with_dimension(len(out.dims) - 1)
    if math.prod(right.dims[:-2]) == 1:
        rows, merged = left.with_merged_rows(), out.with_merged_rows()
        if rows is not None and merged is not None:
            left, right, out = rows, Strided(right.dims[-2:], right.strides[-2:]), merged
    found = _matrices(left, right, out)
    if found is None:
        return Refusal("a matrix has neither its rows nor its columns in one piece", node.name)
    column_major, matrices = found
    (m, k), n = left.dims[-2:], right.dims[-1]
    dtype = graph.type_of(node.outputs[0]).dtype
    return Product(dtype, column_major, m, n, k, *matrices, alpha, beta)


def _matrices(
    left: Strided, right: Strided, out: Strided
) -> tuple[bool, tuple[Matrix, Matrix, Matrix]] | None:
    """Whether the order is column-major, and the three; None where one of them is no matrix to GEMM."""
    batch = out.dims[:-2]
    as_rows = _matrix(out, batch)
    if as_rows is None:
        return None
    column_major = as_rows.transposed
    a, b, c = (_matrix(t.swapped() if column_major else t, batch) for t in (left, right, out))
    return None if a is None or b is None or c is None else (column_major, (a, b, c))


def _matrix(tensor: Strided, batch: tuple[int, ...]) -> Matrix | None:
    """As stored row by row, or transposed. What is dense has lines that do not overlap: the stride between
    them is at least their length.
    """
    (rows, columns), (row, column) = tensor.dims[-2:], tensor.strides[-2:]
    offsets = _offsets(tensor, batch)
    if columns == 1 or column == 1:
        return Matrix(False, row if rows > 1 else columns, offsets)
    if rows == 1 or row == 1:
        return Matrix(True, column, offsets)
    return None


def _offsets(tensor: Strided, batch: tuple[int, ...]) -> tuple[int, ...]:
    """Where each matrix begins, the tensor's batch dimensions broadcast to `batch`."""
    offsets = np.zeros(batch, np.int64)
    dims, strides = tensor.dims[:-2], tensor.strides[:-2]
    for i in range(1, len(dims) + 1):
        if dims[-i] > 1:
            offsets += (np.arange(dims[-i]) * strides[-i]).reshape((-1,) + (1,) * (i - 1))
    return tuple(offsets.reshape(-1).tolist())
