"""A product of what: its operands as the kernel's inputs or constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from collage_core.formats import Array
from collage_cublas.product import Product

__all__ = ["Constant", "Operand", "Operation"]


@dataclass(frozen=True, slots=True)
class Constant:
    """Elements of one of the graph's constants: those that dims and strides (in elements) name of it as it
    is stored row by row, times `factor`, as `dtype`.
    """

    name: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    factor: float = 1.0

    def values(self, data: Array) -> Array:
        """Dense, row-major; `data` is the constant. What `dtype` cannot hold becomes infinite."""
        flat = np.ascontiguousarray(data).reshape(-1)
        strides = [s * flat.itemsize for s in self.strides]
        taken = np.lib.stride_tricks.as_strided(flat, self.dims, strides, writeable=False)
        with np.errstate(over="ignore"):
            if self.factor != 1.0:
                taken = taken.astype(np.float64) * self.factor
            return np.ascontiguousarray(taken.astype(np.dtype(self.dtype)))


Operand = int | Constant
"""The kernel's input of that index, or a constant."""


@dataclass(frozen=True, slots=True)
class Operation:
    """a, b, c, bias: what the product is of; None where it has none. may_alias: as `Kernel.may_alias`."""

    product: Product
    a: Operand
    b: Operand
    c: Operand | None
    bias: Operand | None
    may_alias: Mapping[int, int]

    @property
    def operands(self) -> tuple[Operand | None, ...]:
        return (self.a, self.b, self.c, self.bias)
