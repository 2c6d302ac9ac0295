"""Buffers on the GPU for trying what is to become a kernel."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from collage_cuda import NAME

from collage_core.devices import Queue
from collage_core.formats import plain
from collage_cudnn.description import Tensor

__all__ = ["Buffer"]

_NAN, _ZERO = 0xFF, 0x00
"""Bytes: in every type of floats a number of nothing but ones is NaN."""


class Buffer:
    """Room for one tensor on `device`, full of zeros."""

    def __init__(self, device: Any, tensor: Tensor) -> None:
        self._device, self._dtype = device, np.dtype(tensor.dtype)
        self._size_bytes = math.prod(tensor.dims) * self._dtype.itemsize
        self._memory = device.allocate(self._size_bytes)
        self.address: int = self._memory.address

    def fill(self, is_nan: bool, queue: Queue) -> None:
        """With zeros, or with NaN."""
        elements = np.full(self._size_bytes, _NAN if is_nan else _ZERO, np.uint8)
        self._device.upload(elements, self._bytes(), queue)

    def is_nan(self, queue: Queue) -> bool:
        """Whether all of it is, once what is queued is done."""
        there = np.empty(self._size_bytes, np.uint8)
        self._device.download(self._bytes(), there, queue)
        queue.synchronize()
        return bool(np.isnan(there.view(self._dtype)).all())

    def _bytes(self) -> Any:
        shape = (self._size_bytes,)
        return self._memory.array(0, shape, plain("uint8", shape, NAME))
