"""Streams: work in order, events as marks, and stretches of calls captured as graphs."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from collage_core.devices import DeviceArray, Queue
from collage_core.errors import BackendError
from collage_core.formats import Array
from collage_cuda.context import Context
from collage_cuda.memory import Pinned

__all__ = ["CudaQueue"]

_HOLD_NS = 60_000
"""Longer than any library takes to queue a kernel."""
_MOST_PINNED_BYTES = 1 << 28
"""Of one copy: page-locked memory is taken from everybody."""


class CudaQueue(Queue):
    """A stream that waits for no other. handle: the address of its CUstream."""

    def __init__(self, context: Context) -> None:
        context.current()
        self._context = context
        self._library = context.library
        self.stream = self._library.create_stream()
        self.handle = int(self.stream)
        self._events: list[Any] = []
        self._copied: dict[tuple[int, int, bool], _Site] = {}
        self._arriving: list[tuple[Pinned, Array]] = []
        weakref.finalize(self, _end, context, self.stream, self._events)

    def synchronize(self) -> None:
        self._context.current()
        arriving, self._arriving = self._arriving, []
        self._library.synchronize_stream(self.stream)
        for pinned, destination in arriving:
            pinned.read(destination.ctypes.data)

    def mark(self) -> Any:
        event = self._events.pop() if self._events else self._library.create_event()
        self._library.record_event(event, self.stream)
        return event

    def elapsed_ms(self, first: Any, last: Any) -> float:
        elapsed_ms: float = self._library.elapsed_ms(first, last)
        self._events += (first, last)
        return elapsed_ms

    def hold(self) -> None:
        self._context.hold.queue(_HOLD_NS, self.stream)

    def capture(self, calls: Sequence[Callable[[], object]]) -> Callable[[], object] | None:
        """As a CUDA graph, which holds them: what it launches is theirs. They are called once before: what
        libraries load at first cannot be captured.
        https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-graphs
        """
        self._context.current()
        self._call(calls)
        self.synchronize()
        with self._context.capturing():
            self._library.begin_capture(self.stream)
            try:
                self._call(calls)
            finally:
                graph = self._library.end_capture(self.stream)
        launchable = self._library.instantiate(graph)
        launch, stream, current = self._library.launch_graph, self.stream, self._context.current

        def replay(_held: Sequence[Callable[[], object]] = tuple(calls)) -> None:
            current()
            launch(launchable, stream)

        weakref.finalize(replay, _forget, self._context, launchable)
        return replay

    def upload(self, source: Array, destination: DeviceArray) -> None:
        """See `Device.upload`."""
        self._context.current()
        if not source.nbytes:
            return
        pinned = self._pinned(destination.address, source.nbytes, is_upload=True)
        if pinned is None:
            self._library.copy_to_device(destination.address, source.ctypes.data, source.nbytes, self.stream)
            self._library.synchronize_stream(self.stream)  # where the GPU reads pageable memory by itself
            return
        site = self._copied[destination.address, source.nbytes, True]
        site.wait(self._library)
        pinned.write(source.ctypes.data)
        self._library.copy_to_device(destination.address, pinned.address, source.nbytes, self.stream)
        site.passed(self._library, self.stream)

    def download(self, source: DeviceArray, destination: Array) -> None:
        """See `Device.download`."""
        self._context.current()
        if not destination.nbytes:
            return
        pinned = self._pinned(source.address, destination.nbytes, is_upload=False)
        if pinned is None:
            target = destination.ctypes.data
            self._library.copy_to_host(target, source.address, destination.nbytes, self.stream)
            self._library.synchronize_stream(self.stream)
            return
        self._library.copy_to_host(pinned.address, source.address, destination.nbytes, self.stream)
        self._arriving.append((pinned, destination))

    def _pinned(self, address: int, size_bytes: int, is_upload: bool) -> Pinned | None:
        """Of a copy that comes again. Locking pages takes longer than the copy that it saves."""
        site = self._copied.get((address, size_bytes, is_upload))
        if site is None:
            self._copied[address, size_bytes, is_upload] = _Site()
            return None
        if site.pinned is None and size_bytes <= _MOST_PINNED_BYTES:
            site.pinned = Pinned(self._context, size_bytes)
        return site.pinned

    def _call(self, calls: Sequence[Callable[[], object]]) -> None:
        for call in calls:
            if status := call():
                raise BackendError(f"a call that is captured returns {status!r}")


class _Site:
    """Where one copy happens again and again."""

    def __init__(self) -> None:
        self.pinned: Pinned | None = None
        self._event: Any = None

    def wait(self, library: Any) -> None:
        """Until the last copy from here is done."""
        if self._event is not None:
            library.synchronize_event(self._event)

    def passed(self, library: Any, stream: Any) -> None:
        if self._event is None:
            self._event = library.create_event()
            weakref.finalize(self, _destroy, library, self._event)
        library.record_event(self._event, stream)


def _destroy(library: Any, event: Any) -> None:
    with contextlib.suppress(BackendError):
        library.destroy_event(event)


def _end(context: Context, stream: Any, events: list[Any]) -> None:
    with contextlib.suppress(BackendError):  # the process may be ending, the context be dead
        context.current()
        for event in events:
            context.library.destroy_event(event)
        context.library.destroy_stream(stream)


def _forget(context: Context, launchable: Any) -> None:
    with contextlib.suppress(BackendError):
        context.current()
        context.library.destroy_graph(launchable)
