"""The first visible GPU as a device of Collage."""

from __future__ import annotations

from collections.abc import Mapping

from collage_core.devices import Buffers, Device, DeviceArray, DeviceInfo, Queue
from collage_core.formats import Array
from collage_cuda import NAME, __version__
from collage_cuda.context import context
from collage_cuda.facts import facts
from collage_cuda.memory import CudaBuffers, CudaMemory
from collage_cuda.queue import CudaQueue
from collage_cuda.support import missing

__all__ = ["DEVICE", "CudaDevice", "CudaMemory", "CudaQueue"]


class CudaDevice(Device):
    """Its primary context: memory and streams of PyTorch, CuPy and of pycuda's `autoprimaryctx` are its as
    well.
    """

    name = NAME

    def __init__(self) -> None:
        self._scratch: CudaMemory | None = None

    def info(self) -> DeviceInfo:
        reason = missing([])
        return DeviceInfo(self.name, __version__, "" if reason else facts()["model"], reason)

    def fingerprint(self) -> Mapping[str, str]:
        return {} if missing([]) else facts()

    @property
    def compute_capability(self) -> tuple[int, int]:
        """(9, 0) of Hopper. Loads the driver."""
        opened = context()
        found: tuple[int, int] = opened.library.compute_capability(opened.device)
        return found

    def current(self) -> None:
        """Make the primary context this thread's, for libraries that look for one."""
        context().current()

    def queue(self) -> CudaQueue:
        return CudaQueue(context())

    def allocate(self, size_bytes: int) -> CudaMemory:
        """Zeros, so that what runs before there are values reads no index that leads elsewhere."""
        opened = context()
        memory = CudaMemory(opened, size_bytes)
        opened.set_bytes(memory.address, 0, size_bytes)
        return memory

    def fenced(self, protect: bool) -> Buffers:
        return CudaBuffers(context())

    def upload(self, source: Array, destination: DeviceArray, queue: Queue) -> None:
        assert isinstance(queue, CudaQueue)
        queue.upload(source, destination)

    def download(self, source: DeviceArray, destination: Array, queue: Queue) -> None:
        assert isinstance(queue, CudaQueue)
        queue.download(source, destination)

    def disturbances(self) -> int:
        """Its clock was lowered: by heat, or by the power that it may take."""
        return context().clocks.slowed()

    def evict(self, size_bytes: int, queue: Queue) -> None:
        """By writing as much, and no less than twice the L2 cache."""
        assert isinstance(queue, CudaQueue)
        opened = context()
        opened.current()
        needed_bytes = max(size_bytes, 2 * opened.l2_bytes)
        if self._scratch is None or self._scratch.size_bytes < needed_bytes:
            self._scratch = CudaMemory(opened, needed_bytes)
        opened.library.set_bytes(self._scratch.address, 0, self._scratch.size_bytes, queue.stream)


DEVICE = CudaDevice()
"""The one of this process."""
