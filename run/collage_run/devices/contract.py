"""The contract between core and a device: memory, queues of work on it, and the ways there and back.

Which process calls what: `info` and `fingerprint` run in the process of the user and must not load the
vendor's library; all the rest runs in workers, and in the process that runs the finished executable.

A device may fail at any call, by raising whatever it likes: it costs what was being measured, or the run.
What was being measured is tried again in a new process. In a process that goes on, the next `Device.queue`,
`Device.allocate` or `Device.fenced` starts a device again that can be; memory, queues and kernels of before
are gone with it.

Queues, memory and kernels are let go of when nobody holds them any more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from collage_run.devices.dlpack import capsule
from collage_run.formats import Array, Format, byte_strides

__all__ = ["Buffers", "Device", "DeviceArray", "DeviceInfo", "Memory", "Queue"]


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What can be told about a device without loading its library. reason: why it is not available; None when
    it is.
    """

    name: str
    version: str
    """Of the plugin's package."""
    description: str
    """The model, for people."""
    reason: str | None = None

    @property
    def available(self) -> bool:
        return self.reason is None


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """Elements in a device's memory, which the host does not read. The logical shape, and strides in bytes
    that follow the value's format, as NumPy has them; address: as the device counts.

    What takes DLPack takes it as well (`cupy.from_dlpack`, `torch.from_dlpack`), if dlpack_device is known:
    DLPack's type of device, and its number. Nothing is synchronised by that: work on it belongs on the queue.
    owner: what holds the memory, which whoever takes it so holds as well.
    """

    device: str
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    dlpack_device: tuple[int, int] | None = None
    owner: object = field(default=None, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        address: int,
        shape: Sequence[int],
        format: Format,
        dlpack_device: tuple[int, int] | None = None,
        owner: object = None,
    ) -> DeviceArray:
        strides = byte_strides(shape, format)
        return cls(format.device, address, tuple(shape), strides, format.dtype, dlpack_device, owner)

    def __dlpack_device__(self) -> tuple[int, int]:
        if self.dlpack_device is None:
            raise BufferError(f"{self.device} is no device that DLPack knows")
        return self.dlpack_device

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """See https://data-apis.org/array-api/latest/API_specification/generated/array_api.array.__dlpack__.html.
        BufferError where a copy is asked for.
        """
        device = self.__dlpack_device__()
        if copy or dl_device not in (None, device):
            raise BufferError(f"elements on {self.device} are lent where they are")
        return capsule(device, self.address, self.shape, self.strides, self.dtype, self.owner)


class Queue(ABC):
    """Work on one device, done in the order in which it is told. Not for two threads at once; two queues may
    be used by two threads.
    """

    handle: int = 0
    """What the libraries that run on the device call it (a stream's address, say)."""

    @abstractmethod
    def synchronize(self) -> None:
        """Return when all work so far is done. Raises what any of it failed with."""

    @abstractmethod
    def mark(self) -> Any:
        """A point in the queue, for `elapsed_ms`: it is passed when the work before it is done."""

    @abstractmethod
    def elapsed_ms(self, first: Any, last: Any) -> float:
        """What the device took from one mark to another; both are passed (`synchronize`). Asked once of each
        mark.
        """

    def hold(self) -> None:  # noqa: B027  # nothing is needed where a launch costs the host next to nothing
        """Queue what keeps the device busy for longer than a launch costs the host, and its caches as they
        are. What is queued behind it is there when it ends: between two marks lies the device's time alone.
        """

    def capture(self, calls: Sequence[Callable[[], object]]) -> Callable[[], object] | None:
        """One call that queues what all of these would, which are of this queue, in their order; None where
        the device cannot, and the same if it raises: they are called one by one then. They have not been
        called before. A call that returns an error code cannot be captured.
        """
        return None


class Memory(ABC):
    """One allocation, cut into arrays by whoever plans it."""

    size_bytes: int

    @abstractmethod
    def array(self, offset: int, shape: Sequence[int], format: Format) -> Any:
        """The bytes from `offset` on as a value of logical `shape`: a NumPy array on the CPU, else a
        `DeviceArray`.
        """


class Buffers(ABC):
    """Allocations between fences of known bytes: whoever writes beside one is found out."""

    @abstractmethod
    def array(self, shape: Sequence[int], format: Format, name: str) -> Any:
        """A new array, uninitialised, 64-byte aligned, or 256-byte on other devices than the CPU; `name` says
        what it is, as in "output 'y'".
        """

    @abstractmethod
    def trespass(self) -> str | None:
        """Beside what somebody has written ("behind output 'y'"); None if nobody has. All queues of the
        device are idle.
        """


class Device(ABC):
    """What values can lie on, and work be done on."""

    name: str
    """Unique, lower case: what formats call it."""

    @abstractmethod
    def info(self) -> DeviceInfo:
        """What it is and whether it is here. Cheap, and often asked; loads nothing."""

    @abstractmethod
    def fingerprint(self) -> Mapping[str, str]:
        """What its costs depend on: model, driver, memory. Cheap, and often asked; loads nothing."""

    def facts(self) -> dict[str, str]:
        """All that tells it from another: the plugin's version, and the fingerprint."""
        return {"version": self.info().version, **self.fingerprint()}

    @abstractmethod
    def queue(self) -> Queue:
        """A new queue."""

    @abstractmethod
    def allocate(self, size_bytes: int) -> Memory:
        """Uninitialised, 256-byte aligned. CollageError if there is no room for it."""

    @abstractmethod
    def fenced(self, protect: bool) -> Buffers:
        """Buffers for a kernel that is to be checked. protect: whether touching what lies around them may end
        the process at once.
        """

    @abstractmethod
    def upload(self, source: Array, destination: Any, queue: Queue) -> None:
        """Queue a copy from the host; both have one shape, dtype and strides. `source` has been read when the
        call returns.
        """

    @abstractmethod
    def download(self, source: Any, destination: Array, queue: Queue) -> None:
        """Queue a copy to the host; `destination` has it once the queue is synchronised."""

    def disturbances(self) -> int:
        """How often, so far, something has kept the device from its work or slowed it down: others on it, its
        clock that was lowered. What is timed meanwhile is left out, as long as enough else remains.
        """
        return 0

    def evict(self, size_bytes: int, queue: Queue) -> None:  # noqa: B027  # without caches there is nothing
        """Queue what leaves the device's caches as if so much other memory had been read."""
