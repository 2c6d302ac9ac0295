"""Buffers that notice when somebody writes beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from collage_core.formats import Array, Format, view

__all__ = ["GuardedBuffers"]

_ALIGNMENT = 64
_FENCE_BYTES = 64
_FENCE = 0xA5


class GuardedBuffers:
    """Arrays aligned as executables align them, each between two fences of known bytes."""

    def __init__(self) -> None:
        self._fences: list[Array] = []

    def array(self, shape: Sequence[int], format: Format) -> Array:
        """A new uninitialised array of logical `shape`."""
        return view(self.bytes(math.prod(shape) * np.dtype(format.dtype).itemsize), shape, format)

    def bytes(self, size_bytes: int) -> Array:
        """A new uninitialised uint8 array."""
        raw = np.empty(size_bytes + 2 * _FENCE_BYTES + _ALIGNMENT, np.uint8)
        start = _FENCE_BYTES + -(raw.ctypes.data + _FENCE_BYTES) % _ALIGNMENT
        for fence in (
            raw[start - _FENCE_BYTES : start],
            raw[start + size_bytes : start + size_bytes + _FENCE_BYTES],
        ):
            fence[...] = _FENCE
            self._fences.append(fence)
        return raw[start : start + size_bytes]

    @property
    def intact(self) -> bool:
        """Whether nobody has written beside an array."""
        return all((fence == _FENCE).all() for fence in self._fences)
