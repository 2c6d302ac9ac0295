"""From a group to the arguments of cublasLtMatmul, found from shapes and layouts. Loads nothing.

ONNX's product is out [m, n] = left [m, k] @ right [k, n]; the library's matrices are column-major: element
(r, c) lies at r + c * leading. There are two ways to read the one as the other:

* by rows: the rows of `out` are in one piece. A row-major [m, n] matrix is, byte for byte, a column-major
  [n, m] one: D = out^T = (left @ right)^T = right^T @ left^T. So A stands for right^T [n, k] and B for
  left^T [k, m], and D has n rows and m columns.
* by columns: the columns of `out` are in one piece. D = out as it is: A stands for left, B for right, and D
  has m rows and n columns.

An operand whose own rows are in one piece where the way wants columns is stored as the transposed matrix:
that is what op (TRANSA, TRANSB) is for. So any layout that leaves rows or columns in one piece costs nothing.

The epilogue's bias is a vector of as many elements as D has *rows*, added to each column
(https://docs.nvidia.com/cuda/cublas/#cublasltepilogue-t: "Bias vector length must match matrix D rows").
By rows D's rows are n, so that bias [n] is ONNX's usual one, along the last axis. By columns they are m, and
bias is a value of shape [m, 1].
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from collage_core.backend import Variant
from collage_core.errors import Refusal
from collage_core.formats import Format
from collage_core.ir import Subgraph
from collage_core.strided import Strided
from collage_cublas.addends import Added, Term, added
from collage_cublas.chain import Chain, parse
from collage_cublas.operation import Constant, Operand, Operation
from collage_cublas.product import NARROW, Matrix, Product

__all__ = ["MOST_CALLS", "plan"]

MOST_CALLS = 16
"""Of one product whose batches are not one strided batch: others are declined."""


@dataclass(frozen=True, slots=True)
class _Tensors:
    """left [..., m, k], right [..., k, n], out and terms [..., m, n]."""

    left: Strided
    right: Strided
    out: Strided
    terms: tuple[Term, ...]

    def swapped(self) -> _Tensors:
        """out^T = right^T @ left^T."""
        terms = tuple(t.with_strided(t.strided.swapped()) for t in self.terms)
        return _Tensors(self.right.swapped(), self.left.swapped(), self.out.swapped(), terms)


def plan(subgraph: Subgraph, variant: Variant, *, swaps_constants: bool = False) -> Operation | Refusal:
    """The one product that a group is, in the variant's formats. swaps_constants: whether a constant factor
    is stored as its transposed matrices.
    """
    chain = parse(subgraph)
    if isinstance(chain, Refusal):
        return chain
    reader = _Reader(subgraph, variant, chain, swaps_constants)
    dtypes = reader.dtypes()
    if isinstance(dtypes, Refusal):
        return dtypes
    whole = reader.tensors()
    merged = _merged(whole)
    reasons = []
    for tensors in (merged, whole) if merged is not None else (whole,):
        ways = [(True, tensors.swapped()), (False, tensors)]
        for is_swapped, way in sorted(ways, key=lambda w: -w[1].out.dims[-2]):  # long columns first
            found = _product(way, dtypes, chain)
            if not isinstance(found, Refusal):
                return reader.operation(*found, is_swapped)
            reasons.append(found)
    return reasons[0]


class _Reader:
    """A group and a variant of it: what its values are, as tensors and as operands."""

    def __init__(self, subgraph: Subgraph, variant: Variant, chain: Chain, swaps_constants: bool) -> None:
        self.graph, self.chain, self.swaps_constants = subgraph.graph, chain, swaps_constants
        self.variant = variant
        self.index = {v: i for i, v in enumerate(subgraph.inputs)}

    def format(self, name: str) -> Format:
        """As the value is stored; a constant as the kernel stores it."""
        if name in self.index:
            return self.variant.inputs[self.index[name]]
        if name == self.chain.output:
            return self.variant.outputs[0]
        plain = self.graph.plain_format(name)
        rank = len(plain.layout)
        if self.swaps_constants and rank > 1 and name in (self.chain.left, self.chain.right):
            return Format.of(plain.dtype, self.graph.shape_of(name), (*range(rank - 2), rank - 1, rank - 2))
        return plain

    def dtypes(self) -> tuple[str, str] | Refusal:
        """In which the factors, and all else, are stored."""
        chain, name = self.chain, self.chain.anchor.name
        factors = {self.format(v).dtype for v in (chain.left, chain.right) if v in self.index}
        out = self.format(chain.output).dtype
        if len(factors) > 1:
            return Refusal("the factors are stored in different types", name)
        (factor,) = factors
        if factor != out and not (factor in NARROW and out == "float32"):
            return Refusal(f"a product of {factor} cannot be stored as {out}", name)
        if any(self.format(a.name).dtype != out for a in chain.addends if a.name in self.index):
            return Refusal("what is added is stored in another type than the result", name)
        return factor, out

    def tensors(self) -> _Tensors:
        """Vectors as matrices, transposed as Gemm says."""
        chain, graph = self.chain, self.graph

        def stored(name: str) -> Strided:
            return Strided.dense(graph.shape_of(name), self.format(name).layout)

        left, right, out = stored(chain.left), stored(chain.right), stored(chain.output)
        attributes = chain.anchor.attributes
        if chain.anchor.op_type == "Gemm":
            left = left.swapped() if attributes.get("transA", 0) else left
            right = right.swapped() if attributes.get("transB", 0) else right
        results = [out, *(stored(a.name).broadcast_to(out.dims) for a in chain.addends)]
        if len(right.dims) == 1:
            right, results = right.with_dimension(1), [r.with_dimension(len(r.dims)) for r in results]
        if len(left.dims) == 1:
            left, results = left.with_dimension(0), [r.with_dimension(len(r.dims) - 1) for r in results]
        terms = tuple(
            Term(a, self.index.get(a.name), r) for a, r in zip(chain.addends, results[1:], strict=True)
        )
        return _Tensors(left, right, results[0], terms)

    def operation(self, product: Product, found: Added, is_swapped: bool) -> Operation:
        chain = self.chain
        first, second = (chain.right, chain.left) if is_swapped else (chain.left, chain.right)
        return Operation(
            product,
            self._factor(first, product.dtype),
            self._factor(second, product.dtype),
            found.c,
            found.bias,
            self._may_alias(found),
        )

    def _factor(self, name: str, dtype: str) -> Operand:
        if name in self.index:
            return self.index[name]
        layout, shape = self.format(name).layout, self.graph.shape_of(name)
        plain = Strided.dense(shape, tuple(range(len(shape))))
        return Constant(name, tuple(shape[d] for d in layout), tuple(plain.strides[d] for d in layout), dtype)

    def _may_alias(self, found: Added) -> dict[int, int]:
        """Where C may lie in the output's buffer: nothing else is read from there."""
        if not isinstance(found.c, int):
            return {}
        names = [v for v, i in self.index.items() if i == found.c]
        others = [self.chain.left, self.chain.right, *(a.name for a in self.chain.addends)]
        others.remove(names[0])
        alike = self.variant.inputs[found.c] == self.variant.outputs[0]
        same = self.graph.type_of(names[0]) == self.graph.type_of(self.chain.output)
        return {0: found.c} if alike and same and names[0] not in others else {}


def _merged(whole: _Tensors) -> _Tensors | None:
    """A batch of left matrices times one: a single product of all their rows, where memory allows it."""
    if len(whole.out.dims) == 2 or math.prod(whole.right.dims[:-2]) != 1:
        return None
    left, out = whole.left.with_merged_rows(), whole.out.with_merged_rows()
    results = [t.strided.with_merged_rows() for t in whole.terms]
    if left is None or out is None or None in results:
        return None
    right = Strided(whole.right.dims[-2:], whole.right.strides[-2:])
    pairs = zip(whole.terms, results, strict=True)
    return _Tensors(left, right, out, tuple(t.with_strided(r) for t, r in pairs if r is not None))


def _product(way: _Tensors, dtypes: tuple[str, str], chain: Chain) -> tuple[Product, Added] | Refusal:
    """D = A @ B with A = left, B = right, D = out, all column-major."""
    name = chain.anchor.name
    a, b, d = _stored(way.left), _stored(way.right), _as_it_is(way.out)
    if a is None or b is None or d is None:
        return Refusal("a matrix has neither its rows nor its columns in one piece", name)
    found = added(way.terms, way.out, dtypes[1], name)
    if isinstance(found, Refusal):
        return found
    batch_dims = way.out.dims[:-2]
    c = found.c_strided or way.out
    tensors = (way.left, way.right, c, way.out)
    strides = [_batch_strides(t, batch_dims) for t in tensors]
    (count, steps), starts = _batches(batch_dims, strides)
    if len(starts) > MOST_CALLS:
        return Refusal(f"the batches would be {len(starts)} calls, at most {MOST_CALLS} are made", name)
    of_c = _as_it_is(c)
    (m, k), n = way.left.dims[-2:], way.right.dims[-1]
    return Product(
        *dtypes,
        m,
        n,
        k,
        count,
        replace(a[0], stride=steps[0]),
        replace(b[0], stride=steps[1]),
        None if found.c is None or of_c is None else replace(of_c, stride=steps[2]),
        replace(d, stride=steps[3]),
        a[1],
        b[1],
        chain.alpha,
        found.beta,
        found.bias is not None,
        chain.activation,
        starts,
    ), found


def _as_it_is(tensor: Strided) -> Matrix | None:
    """The matrices as they lie, column-major; None if their columns are not in one piece."""
    (rows, columns), (row, column) = tensor.dims[-2:], tensor.strides[-2:]
    if rows > 1 and row != 1:
        return None
    return Matrix(rows, columns, column if columns > 1 else rows, 0)


def _stored(tensor: Strided) -> tuple[Matrix, bool] | None:
    """The matrices as they lie, or the transposed ones (True). Where both can be said, those of the longer
    columns: what is in one piece is read in one piece.
    """
    plain, transposed = _as_it_is(tensor), _as_it_is(tensor.swapped())
    if plain is not None and (transposed is None or plain.rows >= transposed.rows):
        return plain, False
    return None if transposed is None else (transposed, True)


def _batch_strides(tensor: Strided, batch_dims: tuple[int, ...]) -> tuple[int, ...]:
    """Of the batch dimensions, broadcast to `batch_dims`."""
    return Strided(tensor.dims[:-2], tensor.strides[:-2]).broadcast_to(batch_dims).strides


def _batches(
    dims: tuple[int, ...], strides: list[tuple[int, ...]]
) -> tuple[tuple[int, tuple[int, ...]], tuple[tuple[int, int, int, int], ...]]:
    """The largest dimension of the batch as one strided batch (its size, and strides of A, B, C and D), and
    where each call's begins in them for all the others.
    """
    merged = _merged_batches(dims, strides)
    if not merged:
        return (1, (0, 0, 0, 0)), ((0, 0, 0, 0),)
    largest = max(range(len(merged)), key=lambda i: merged[i][0])
    batch = merged.pop(largest)
    starts = []
    for indices in itertools.product(*(range(size) for size, _ in merged)):
        offsets = [sum(i * steps[t] for i, (_, steps) in zip(indices, merged, strict=True)) for t in range(4)]
        starts.append((offsets[0], offsets[1], offsets[2], offsets[3]))
    return batch, tuple(starts)


def _merged_batches(
    dims: Sequence[int], strides: Sequence[Sequence[int]]
) -> list[tuple[int, tuple[int, ...]]]:
    """The fewest dimensions that batches of `dims` are, outermost first: the size of each, and its stride in
    every tensor. strides: those of each tensor.
    """
    merged: list[tuple[int, tuple[int, ...]]] = []
    for size, steps in zip(dims, zip(*strides, strict=True), strict=True):
        if size == 1:
            continue
        outer = merged[-1] if merged else None
        if outer is not None and all(o == size * s for o, s in zip(outer[1], steps, strict=True)):
            merged[-1] = (outer[0] * size, steps)
        else:
            merged.append((size, steps))
    return merged
