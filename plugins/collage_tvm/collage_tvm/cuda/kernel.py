"""Kernels of machine code for the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from collage_cuda.constants import upload
from collage_cuda.device import DEVICE

from collage_core.backend import Bound, Kernel
from collage_core.devices import DeviceArray, Queue
from collage_core.formats import Array
from collage_tvm.cuda.library import Module, launcher

__all__ = ["CudaKernel"]


class CudaKernel(Kernel):
    """Functions of a cubin, launched in their order over the same buffers: inputs, constants, outputs.

    The cubin is loaded, and the constants are uploaded, once: when the kernel is built.
    """

    def __init__(
        self,
        cubin: bytes,
        entries: Sequence[str],
        shapes: Sequence[tuple[int, int, int]],
        constants: Sequence[Array],
    ) -> None:
        DEVICE.current()
        self._module = Module(cubin)
        self._functions = [self._module.function(entry) for entry in entries]
        self._shapes = list(shapes)
        self._constants = [upload(constant) for constant in constants]

    def bind(
        self, inputs: Sequence[DeviceArray], outputs: Sequence[DeviceArray], workspace: Any, queue: Queue
    ) -> Bound:
        DEVICE.current()
        addresses = [x.address for x in inputs]
        addresses += [constant.address for constant in self._constants]
        addresses += [x.address for x in outputs]
        values = np.array(addresses, np.uint64)
        pointers = values.ctypes.data + np.arange(values.size, dtype=np.uint64) * values.itemsize
        address = pointers.ctypes.data
        calls = [
            launcher(function, shape, address, queue.handle)
            for function, shape in zip(self._functions, self._shapes, strict=True)
        ]
        return partial(_launched, calls, (self, values, pointers))


def _launched(calls: Sequence[Bound], kept: object) -> object:
    """All of them, until one fails. kept: what the calls read."""
    for call in calls:
        if failed := call():
            return failed
    return None
