"""What kernels keep in the device's memory."""

from __future__ import annotations

import numpy as np

from collage_core.formats import Array
from collage_cuda.context import context
from collage_cuda.memory import CudaMemory

__all__ = ["upload"]


def upload(array: Array) -> CudaMemory:
    """A copy of these elements on the device, row-major. It is there when this returns."""
    dense = np.ascontiguousarray(array)
    opened = context()
    memory = CudaMemory(opened, dense.nbytes)
    opened.write(memory.address, dense.ctypes.data, dense.nbytes)
    return memory
