"""The device's memory, and the host's that it reaches by itself."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence

from collage_core.devices import Buffers, DeviceArray, Memory
from collage_core.formats import Format
from collage_cuda.context import Context

__all__ = ["DLPACK_DEVICE", "CudaBuffers", "CudaMemory", "Pinned"]

DLPACK_DEVICE = (2, 0)
"""kDLCUDA, and the first GPU (https://dmlc.github.io/dlpack/latest/c_api.html)."""
_FENCE_BYTES = 256
_FENCE = 0xA5


class CudaMemory(Memory):
    """One allocation: address, and size_bytes. It is freed when nobody holds it."""

    def __init__(self, context: Context, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.address = context.allocate(size_bytes)
        weakref.finalize(self, context.release, context.library.free, self.address)

    def array(self, offset: int, shape: Sequence[int], format: Format) -> DeviceArray:
        return DeviceArray.of(self.address + offset, shape, format, DLPACK_DEVICE, self)


class CudaBuffers(Buffers):
    """256 known bytes before and behind each."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._made: list[tuple[str, CudaMemory, int]] = []

    def array(self, shape: Sequence[int], format: Format, name: str) -> DeviceArray:
        size_bytes = format.size_bytes(shape)
        memory = CudaMemory(self._context, size_bytes + 2 * _FENCE_BYTES)
        self._context.set_bytes(memory.address, _FENCE, memory.size_bytes)
        self._made.append((name, memory, size_bytes))
        return memory.array(_FENCE_BYTES, shape, format)

    def trespass(self) -> str | None:
        whole = bytes([_FENCE]) * _FENCE_BYTES
        for name, memory, size_bytes in self._made:
            for where, offset in (("before", 0), ("behind", _FENCE_BYTES + size_bytes)):
                if self._context.read(memory.address + offset, _FENCE_BYTES) != whole:
                    return f"{where} {name}"
        return None


class Pinned:
    """So many bytes of the host's memory, page-locked: copies there and back need nobody's help."""

    def __init__(self, context: Context, size_bytes: int) -> None:
        context.current()
        self.size_bytes = size_bytes
        self.address = context.library.allocate_pinned(size_bytes)
        weakref.finalize(self, context.release, context.library.free_pinned, self.address)

    def write(self, source_address: int) -> None:
        ctypes.memmove(self.address, source_address, self.size_bytes)

    def read(self, destination_address: int) -> None:
        ctypes.memmove(destination_address, self.address, self.size_bytes)
