"""A device that is called "cuda" and is the host: its memory is the host's, its work waits in queues."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from collage_core.devices import Buffers, Device, DeviceArray, DeviceInfo, Memory, Queue
from collage_core.formats import Array, Format

__all__ = ["EmulatedDevice", "EmulatedQueue"]

_FENCE_BYTES = 64
_FENCE = 0xA5


class EmulatedQueue(Queue):
    """Work, done when somebody waits. holds: how often it was held."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.holds = 0
        self.now_ms = 0.0
        self._waiting: list[Callable[[], None]] = []

    def put(self, work: Callable[[], None], cost_ms: float) -> None:
        def done() -> None:
            work()
            self.now_ms += cost_ms

        self._waiting.append(done)

    def synchronize(self) -> None:
        waiting, self._waiting = self._waiting, []
        for work in waiting:
            work()

    def mark(self) -> list[float]:
        passed: list[float] = []
        self._waiting.append(lambda: passed.append(self.now_ms))
        return passed

    def elapsed_ms(self, first: list[float], last: list[float]) -> float:
        return last[0] - first[0]

    def hold(self) -> None:
        self.holds += 1


class EmulatedMemory(Memory):
    """offset: bytes by which it is less aligned than a GPU's."""

    def __init__(self, size_bytes: int, name: str, offset: int = 0) -> None:
        self.size_bytes, self._name = size_bytes, name
        self._raw = np.zeros(size_bytes + 512, np.uint8)
        self.address = self._raw.ctypes.data + -self._raw.ctypes.data % 256 + offset

    def array(self, offset: int, shape: Sequence[int], format: Format) -> DeviceArray:
        return DeviceArray.of(self.address + offset, shape, format, owner=self)


class EmulatedBuffers(Buffers):
    """Each begins 64 bytes behind what is aligned to 256, as the contract allows."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._made: list[tuple[str, EmulatedMemory]] = []

    def array(self, shape: Sequence[int], format: Format, name: str) -> DeviceArray:
        memory = EmulatedMemory(format.size_bytes(shape) + 2 * _FENCE_BYTES, self._name)
        ctypes.memset(memory.address, _FENCE, memory.size_bytes)
        self._made.append((name, memory))
        return memory.array(_FENCE_BYTES, shape, format)

    def trespass(self) -> str | None:
        whole = bytes([_FENCE]) * _FENCE_BYTES
        for name, memory in self._made:
            for where, offset in (("before", 0), ("behind", memory.size_bytes - _FENCE_BYTES)):
                if ctypes.string_at(memory.address + offset, _FENCE_BYTES) != whole:
                    return f"{where} {name}"
        return None


class EmulatedDevice(Device):
    """made: all queues so far. uploads: how many constants were uploaded."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.made: list[EmulatedQueue] = []
        self.uploads = 0

    def info(self) -> DeviceInfo:
        return DeviceInfo(self.name, "0", "the host")

    def fingerprint(self) -> Mapping[str, str]:
        return {"model": "the host"}

    def current(self) -> None:
        return None

    def queue(self) -> EmulatedQueue:
        self.made.append(EmulatedQueue(len(self.made) + 1))
        return self.made[-1]

    def queue_of(self, handle: int) -> Callable[[Callable[[], None], float], None]:
        return self.made[handle - 1].put

    def allocate(self, size_bytes: int) -> EmulatedMemory:
        return EmulatedMemory(size_bytes, self.name)

    def fenced(self, protect: bool) -> Buffers:
        return EmulatedBuffers(self.name)

    def upload(self, source: Array, destination: Any, queue: Queue) -> None:
        assert isinstance(queue, EmulatedQueue)
        staged = np.array(source)
        queue.put(lambda: np.copyto(self.view(destination), staged), 0.0)

    def download(self, source: Any, destination: Array, queue: Queue) -> None:
        assert isinstance(queue, EmulatedQueue)
        queue.put(lambda: np.copyto(destination, self.view(source)), 0.0)

    def constant(self, array: Array) -> EmulatedMemory:
        """What `collage_cuda.constants.upload` does."""
        self.uploads += 1
        dense = np.ascontiguousarray(array)
        memory = EmulatedMemory(dense.nbytes, self.name)
        ctypes.memmove(memory.address, dense.ctypes.data, dense.nbytes)
        return memory

    def view(self, array: DeviceArray) -> Array:
        dtype = np.dtype(array.dtype)
        elements = sum((n - 1) * s for n, s in zip(array.shape, array.strides, strict=True))
        memory: Any = (ctypes.c_char * (elements + dtype.itemsize)).from_address(array.address)
        flat = np.frombuffer(memory, dtype)
        return np.lib.stride_tricks.as_strided(flat, array.shape, array.strides)
