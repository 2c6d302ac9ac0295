"""A product as cublasLtMatmul sees it: column-major matrices in memory
(https://docs.nvidia.com/cuda/cublas/#cublasltmatmul).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

__all__ = ["NARROW", "Matrix", "Product"]

NARROW = ("bfloat16", "float16")
"""Types that are multiplied with float32 accumulation."""

_ALIGNMENT_BYTES = 64
"""Of every value's first element (`Kernel.bind`)."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A batch of matrices as they are stored, column by column. leading: elements from a column to the next.
    stride: elements from a matrix of the batch to the next; 0 where all are one.
    """

    rows: int
    columns: int
    leading: int
    stride: int


@dataclass(frozen=True, slots=True)
class Product:
    """D = activation(alpha * op(A) @ op(B) + beta * C + bias), for every matrix of a batch.

    op(A) [m, k], op(B) [k, n], C and D [m, n], all column-major; op transposes where `transpose_a` or
    `transpose_b` says so. bias [m] is added to each column. activation: "", "Relu" or "Gelu" (its tanh form).
    dtype: of A and B; out_dtype: of C, D and bias. starts: one call for each, with elements from the start of
    A, B, C and D to its first matrix.
    """

    dtype: str
    out_dtype: str
    m: int
    n: int
    k: int
    batch: int
    a: Matrix
    b: Matrix
    c: Matrix | None
    d: Matrix
    transpose_a: bool
    transpose_b: bool
    alpha: float
    beta: float
    has_bias: bool
    activation: str
    starts: tuple[tuple[int, int, int, int], ...]

    @property
    def scale_dtype(self) -> str:
        """Of alpha, beta and the sums."""
        return "float64" if self.dtype == "float64" else "float32"

    @property
    def start_bytes(self) -> list[tuple[int, ...]]:
        """`starts` in bytes."""
        narrow, wide = (np.dtype(d).itemsize for d in (self.dtype, self.out_dtype))
        sizes = (narrow, narrow, wide, wide)
        return [tuple(s * size for s, size in zip(start, sizes, strict=True)) for start in self.starts]

    @property
    def alignment_bytes(self) -> list[int]:
        """Of A, B, C and D, whatever buffers they lie in."""
        return [math.gcd(_ALIGNMENT_BYTES, *each) for each in zip(*self.start_bytes, strict=True)]
