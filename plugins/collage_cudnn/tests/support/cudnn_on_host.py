"""A device whose memory is the host's, and a cuDNN that is NumPy: what is built, bound and called runs as it
would on a GPU.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from collage_cudnn.description import Call, Description, Tensor
from collage_cudnn.stream_handles import Held, StreamHandles
from cudnn_emulator import emulate

from collage_core.devices import DeviceArray, Queue
from collage_core.formats import Array, Format

__all__ = ["HostCall", "HostDevice", "HostGraph", "HostLibrary", "HostMemory", "HostQueue"]


class HostMemory:
    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.data = np.zeros(size_bytes, np.uint8)
        self.address = self.data.ctypes.data

    def array(self, offset: int, shape: Sequence[int], format: Format) -> DeviceArray:
        return DeviceArray.of(self.address + offset, shape, format, owner=self)


class HostQueue(Queue):
    def __init__(self, handle: int) -> None:
        self.handle = handle

    def synchronize(self) -> None:
        pass

    def mark(self) -> float:
        return time.perf_counter()

    def elapsed_ms(self, first: float, last: float) -> float:
        return (last - first) * 1e3

    def capture(self, calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
        def replay() -> None:
            for call in calls:
                call()

        return replay


class HostDevice:
    def __init__(self) -> None:
        self.queues = 0

    def current(self) -> None:
        pass

    def queue(self) -> HostQueue:
        self.queues += 1
        return HostQueue(self.queues)

    def allocate(self, size_bytes: int) -> HostMemory:
        return HostMemory(size_bytes)

    def upload(self, source: Array, destination: DeviceArray, queue: Queue) -> None:
        ctypes.memmove(destination.address, source.ctypes.data, source.nbytes)

    def download(self, source: DeviceArray, destination: Array, queue: Queue) -> None:
        ctypes.memmove(destination.ctypes.data, source.address, destination.nbytes)

    def keep(self, array: Array) -> HostMemory:
        """What `collage_cuda.constants.upload` does."""
        memory = HostMemory(array.nbytes)
        memory.data[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return memory


class HostGraph:
    """Three plans: one that cannot be built, one that makes zeros of NaN, and one that is right."""

    count = 3

    def __init__(self, description: Description) -> None:
        self._description = description
        self.chosen = -1
        self.handles: list[Any] = []

    def build(self, index: int) -> bool:
        return index > 0

    def select(self, index: int) -> None:
        self.chosen = index

    def plan_name(self, index: int) -> str:
        return f"plan {index}"

    def workspace_bytes(self, index: int) -> int:
        return 64 * index

    def runner(
        self, index: int, addresses: Mapping[int, int], workspace: int | None, handle: Any
    ) -> Callable[[], object]:
        description = self._description
        self.handles.append(handle)
        assert (workspace is not None) == (index > 0)

        def run() -> None:
            # What the host passes is read when the call is queued.
            numbers = {n: ctypes.c_float.from_address(addresses[n]).value for n in description.numbers}
            assert numbers == {n: np.float32(v) for n, v in description.numbers.items()}
            places = {i: n for n, i in description.inputs.items()}
            given = [_read(addresses[places[i]], description.tensors[places[i]]) for i in sorted(places)]
            found = emulate(description, given)
            if index == 1:
                found = np.nan_to_num(found)
            _write(addresses[description.output], description.tensors[description.output], found)

        return run

    def selected(
        self, addresses: Mapping[int, int], workspace: int | None, handle: Any
    ) -> Callable[[], object]:
        return self.runner(self.chosen, addresses, workspace, handle)


class HostCall:
    workspace_bytes = 0

    def __init__(self, call: Call) -> None:
        self._call = call

    def runner(self, handle: Any, source: int, result: int, workspace: int | None) -> Callable[[], int]:
        def run() -> int:
            found = emulate(self._call, [_read(source, self._call.source)])
            _write(result, self._call.result, found)
            return 0

        return run


class HostLibrary:
    def __init__(self) -> None:
        self.graphs: list[HostGraph] = []
        self._handles = StreamHandles(list, lambda handle, stream: handle.append(stream))

    def handle(self, stream: int) -> Held:
        return self._handles.of(stream)

    def graph(self, description: Description) -> HostGraph:
        self.graphs.append(HostGraph(description))
        return self.graphs[-1]

    def old_call(self, call: Call) -> HostCall:
        return HostCall(call)


def _flat(address: int, tensor: Tensor) -> Array:
    dtype = np.dtype(tensor.dtype)
    size_bytes = math.prod(tensor.dims) * dtype.itemsize
    there = (ctypes.c_byte * size_bytes).from_address(address)
    return np.ndarray((size_bytes // dtype.itemsize,), dtype, memoryview(there))


def _read(address: int, tensor: Tensor) -> Array:
    return _flat(address, tensor).astype(np.float64)


def _write(address: int, tensor: Tensor, found: Array) -> None:
    _flat(address, tensor)[:] = found.astype(np.dtype(tensor.dtype))
