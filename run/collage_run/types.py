"""The type of a tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

__all__ = ["Dim", "TensorType"]

Dim = int | str
"""A size, or the name of a symbolic dimension."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type (numpy dtype name) and shape, whose entries are sizes or names of symbolic dimensions."""

    dtype: str
    shape: tuple[Dim, ...]

    @property
    def symbolic_dims(self) -> tuple[str, ...]:
        return tuple(d for d in self.shape if isinstance(d, str))

    @property
    def is_static(self) -> bool:
        """Whether it is known, and all of its dimensions are."""
        return not self.symbolic_dims

    @property
    def static_shape(self) -> tuple[int, ...]:
        """The shape, all of whose dimensions must be known; ValueError names the first that is not."""
        for d in self.shape:
            if not isinstance(d, int):
                raise ValueError(f"dimension {d!r} is not known")
        return self.shape  # type: ignore[return-value]  # the loop above has checked every entry

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.static_shape)

    @property
    def size_bytes(self) -> int:
        return self.size * np.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"
