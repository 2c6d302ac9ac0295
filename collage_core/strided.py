"""Tensors as sizes and strides: what plugins plan matrix products with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collage_core.formats import Layout, element_strides

__all__ = ["Strided"]


@dataclass(frozen=True, slots=True)
class Strided:
    """Sizes and strides (in elements) of the dimensions; the last two are a matrix. A stride of 0 repeats.
    Strides of dimensions of size 1 say nothing.
    """

    dims: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def dense(cls, shape: Sequence[int], layout: Layout) -> Strided:
        """What is dense in that order of its dimensions."""
        return cls(tuple(shape), element_strides(shape, layout))

    def broadcast_to(self, dims: Sequence[int]) -> Strided:
        """To `dims`, to which it does broadcast, as ONNX and NumPy do."""
        missing = len(dims) - len(self.dims)
        own = [s if d != 1 else 0 for d, s in zip(self.dims, self.strides, strict=True)]
        return Strided(tuple(dims), (*[0] * missing, *own))

    def with_dimension(self, position: int) -> Strided:
        """With a dimension of size 1 put in at `position`."""
        dims, strides = list(self.dims), list(self.strides)
        dims.insert(position, 1)
        strides.insert(position, 0)
        return Strided(tuple(dims), tuple(strides))

    def swapped(self) -> Strided:
        """The transposed matrices."""
        dims, strides = self.dims, self.strides
        return Strided((*dims[:-2], dims[-1], dims[-2]), (*strides[:-2], strides[-1], strides[-2]))

    def with_merged_rows(self) -> Strided | None:
        """All rows of the batch as those of one matrix; None where strides forbid it."""
        size, stride = 1, 0
        for d, s in zip(reversed(self.dims[:-1]), reversed(self.strides[:-1]), strict=True):
            if d == 1:
                continue
            if size > 1 and s != size * stride:
                return None
            size, stride = size * d, stride if size > 1 else s
        return Strided((size, self.dims[-1]), (stride, self.strides[-1]))
