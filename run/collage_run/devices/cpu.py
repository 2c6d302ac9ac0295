"""The host's own processor as a device: its queue is immediate, its arrays are NumPy's."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from time import perf_counter_ns

import numpy as np

from collage_run.devices.contract import Buffers, Device, DeviceInfo, Memory, Queue
from collage_run.devices.guarded import GuardedBuffers
from collage_run.errors import CollageError
from collage_run.formats import CPU, Array, Format, view

__all__ = ["ALIGNMENT_BYTES", "IMMEDIATE", "Arena", "CpuDevice", "CpuQueue"]

ALIGNMENT_BYTES = 256
"""What libraries on GPUs ask of a tensor. Two cache lines would do on a CPU: adjacent-line prefetch of one
buffer does not touch its neighbour then.
"""


_TASKS = "/proc/self/task"


class CpuQueue(Queue):
    """What is called is done when the call returns."""

    mark: Callable[[], int] = staticmethod(perf_counter_ns)

    def synchronize(self) -> None:
        """Nothing is ever left to be done."""

    def elapsed_ms(self, first: int, last: int) -> float:
        return (last - first) / 1e6


IMMEDIATE = CpuQueue()
"""The CPU's: it holds nothing, so that one serves all."""


class Arena(Memory):
    """One aligned allocation. CollageError if there is no room for it."""

    allocations = 0
    """How many arenas this process has made: a running executable makes none."""

    def __init__(self, size_bytes: int) -> None:
        Arena.allocations += 1
        try:
            raw = np.empty(size_bytes + ALIGNMENT_BYTES, np.uint8)
        except (MemoryError, OverflowError, ValueError):  # what numpy says of sizes that no array has
            raise CollageError(f"out of memory: values between steps take {size_bytes} bytes") from None
        start = -raw.ctypes.data % ALIGNMENT_BYTES
        self.buffer: Array = raw[start : start + size_bytes]
        self.size_bytes = size_bytes

    def array(self, offset: int, shape: Sequence[int], format: Format) -> Array:
        return view(self.buffer[offset : offset + format.size_bytes(shape)], shape, format)


class CpuDevice(Device):
    """The processor that this process runs on."""

    name = CPU

    def info(self) -> DeviceInfo:
        return DeviceInfo(self.name, "", "the host's processor")

    def fingerprint(self) -> Mapping[str, str]:
        """Nothing: the host is told apart from others wherever costs are (`costs.fingerprint`)."""
        return {}

    def queue(self) -> CpuQueue:
        return IMMEDIATE

    def allocate(self, size_bytes: int) -> Arena:
        return Arena(size_bytes)

    def fenced(self, protect: bool) -> Buffers:
        return GuardedBuffers(protect)

    def upload(self, source: Array, destination: Array, queue: Queue) -> None:
        np.copyto(destination, source)

    def download(self, source: Array, destination: Array, queue: Queue) -> None:
        np.copyto(destination, source)

    def disturbances(self) -> int:
        """How often the system has taken a processor away from a thread of this process that was using it,
        and how many milliseconds its threads have waited for one. Who sleeps until there is work, as those of
        a pool do, loses none: it comes late.
        """
        taken = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        return taken + _waited_ns() // 1_000_000

    def evict(self, size_bytes: int, queue: Queue) -> None:
        np.bitwise_or.reduce(_eviction_buffer(size_bytes))


def _waited_ns() -> int:
    """For a processor, all threads of this process together; 0 where the system does not tell."""
    waited_ns = 0
    with suppress(OSError):
        for task in os.listdir(_TASKS):
            with suppress(OSError, IndexError):  # it has ended meanwhile
                waited_ns += int(_read(f"{_TASKS}/{task}/schedstat").split()[1])
    return waited_ns


def _read(path: str) -> bytes:
    """A short file, for a third of what `Path.read_bytes` takes: it is read next to what is timed."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 256)
    finally:
        os.close(descriptor)


@cache
def _eviction_buffer(size_bytes: int) -> Array:
    # Written once: pages never written all map to one page of zeros, and reading that evicts nothing.
    return np.ones(-(-size_bytes // 8), np.uint64)
