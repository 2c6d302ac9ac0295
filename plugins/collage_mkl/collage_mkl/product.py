"""A product as GEMM sees it: matrices in memory."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Matrix", "Product"]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A batch of matrices of one value. transposed: whether they are stored the other way round than the
    product's order says. leading: elements from the start of a stored line to that of the next. offsets: of
    each matrix of the batch, in elements from the start of the value.
    """

    transposed: bool
    leading: int
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Product:
    """out = alpha * left @ right + beta * out, of left [m, k] and right [k, n], for every matrix of a batch.

    column_major: whether the lines of `out` are its columns; `transposed` of the others is relative to that.
    """

    dtype: str
    column_major: bool
    m: int
    n: int
    k: int
    left: Matrix
    right: Matrix
    out: Matrix
    alpha: float
    beta: float

    @property
    def batch(self) -> int:
        return len(self.out.offsets)

    @property
    def packs(self) -> bool:
        """Whether a constant operand is worth packing: not where each of its elements is read but once."""
        return self.batch == 1 and min(self.m, self.n) > 1
