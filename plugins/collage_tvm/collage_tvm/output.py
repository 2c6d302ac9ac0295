"""An output of a kernel and where its elements go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collage_core.costs.fingerprint import cache_sizes_bytes
from collage_core.formats import Layout
from collage_tvm.tensor import Index, Tensor, linear

__all__ = ["Output", "beyond_caches", "strides_of"]


def strides_of(shape: Sequence[int], layout: Layout) -> tuple[int, ...]:
    """Elements between neighbours along each logical dimension; 0 along dimensions of size 1."""
    return tuple(
        0 if shape[d] == 1 else math.prod(shape[e] for e in layout[layout.index(d) + 1 :])
        for d in range(len(shape))
    )


def last_cache_bytes() -> int:
    return cache_sizes_bytes()[-1]


def beyond_caches(elements: int, dtype: str) -> bool:
    """Whether so much is larger than the last cache."""
    return elements * np.dtype(dtype).itemsize > last_cache_bytes()


@dataclass(frozen=True)
class Output:
    """`tensor`, stored densely in `layout` in the flat `buffer`.

    streams: whether it may be stored past the caches: the kernel does not read it again, and it is larger
    than the last cache, so that whoever reads it next would find little of it there.
    """

    tensor: Tensor
    buffer: Any
    layout: Layout
    streams: bool

    def offset(self, index: Index) -> Any:
        return linear(index, strides_of(self.tensor.shape, self.layout))
