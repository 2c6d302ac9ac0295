"""Streams: work in order, events as marks, and stretches of calls captured as graphs."""

from __future__ import annotations

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
"""Of one queue's copies together: page-locked memory is taken from everybody."""


class CudaQueue(Queue):
    """A stream that waits for no other. handle: the address of its CUstream."""

    def __init__(self, context: Context) -> None:
        context.current()
        self._context = context
        self._library = context.library
        self.stream = self._library.create_stream()
        self.handle = int(self.stream)
        self._idle_events: list[Any] = []
        self._events: list[Any] = []
        self._copied: dict[tuple[int, int, bool], Pinned | None] = {}
        self._pinned_bytes = 0
        weakref.finalize(self, _end, context, self.stream, self._events)

    def synchronize(self) -> None:
        self._context.current()
        self._library.synchronize_stream(self.stream)

    def mark(self) -> Any:
        self._context.current()
        if not self._idle_events:
            self._idle_events.append(self._library.create_event())
            self._events.append(self._idle_events[-1])
        event = self._idle_events.pop()
        self._library.record_event(event, self.stream)
        return event

    def elapsed_ms(self, first: Any, last: Any) -> float:
        elapsed_ms: float = self._library.elapsed_ms(first, last)
        self._idle_events += (first, last)
        return elapsed_ms

    def hold(self) -> None:
        self._context.current()
        self._context.hold.queue(_HOLD_NS, self.stream)

    def capture(self, calls: Sequence[Callable[[], object]]) -> Callable[[], object] | None:
        """As a CUDA graph, which holds them: what it launches is theirs. They are called once before: what
        libraries load at first cannot be captured.
        https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-graphs
        """
        self._context.current()
        _call(calls)
        self.synchronize()
        launchable = self._library.instantiate(self._captured(calls))
        launch, stream, current = self._library.launch_graph, self.stream, self._context.current

        def replay(_held: object = (self, tuple(calls))) -> None:
            current()
            launch(launchable, stream)

        weakref.finalize(replay, self._context.release, self._library.destroy_launchable, launchable)
        return replay

    def _captured(self, calls: Sequence[Callable[[], object]]) -> Any:
        with self._context.capturing():
            self._library.begin_capture(self.stream)
            try:
                _call(calls)
            except BaseException:
                self._library.drop_capture(self.stream)
                raise
            return self._library.end_capture(self.stream)

    def upload(self, source: Array, destination: DeviceArray) -> None:
        """See `Device.upload`. What was queued before is done first: then the host's part of a copy lies
        between two marks as well, and its page-locked memory is free.
        """
        self.synchronize()
        if not source.nbytes:
            return
        copy, size_bytes = self._library.copy_to_device, source.nbytes
        pinned = self._pinned(destination.address, size_bytes, is_upload=True)
        if pinned is None:
            copy(destination.address, source.ctypes.data, size_bytes, self.stream)
            self.synchronize()  # where the GPU reads pageable memory by itself
            return
        pinned.write(source.ctypes.data)
        copy(destination.address, pinned.address, size_bytes, self.stream)

    def download(self, source: DeviceArray, destination: Array) -> None:
        """See `Device.download`. `destination` has it when this returns."""
        self._context.current()
        size_bytes = destination.nbytes
        if not size_bytes:
            return
        pinned = self._pinned(source.address, size_bytes, is_upload=False)
        target = destination.ctypes.data if pinned is None else pinned.address
        self._library.copy_to_host(target, source.address, size_bytes, self.stream)
        self.synchronize()
        if pinned is not None:
            pinned.read(destination.ctypes.data)

    def _pinned(self, address: int, size_bytes: int, is_upload: bool) -> Pinned | None:
        """Of a copy that comes again. Locking pages takes longer than the copy that it saves. None where
        there is none to be had: the copy goes without.
        """
        site = address, size_bytes, is_upload
        if site not in self._copied:
            self._copied[site] = None
        elif self._copied[site] is None and self._pinned_bytes + size_bytes <= _MOST_PINNED_BYTES:
            try:
                self._copied[site] = Pinned(self._context, size_bytes)
            except BackendError:
                return None
            self._pinned_bytes += size_bytes
        return self._copied[site]


def _call(calls: Sequence[Callable[[], object]]) -> None:
    for call in calls:
        if status := call():
            raise BackendError(f"a call that is captured returns {status!r}")


def _end(context: Context, stream: Any, events: Sequence[Any]) -> None:
    for event in events:
        context.release(context.library.destroy_event, event)
    context.release(context.library.destroy_stream, stream)
