"""One handle of the library's for each stream: making one takes milliseconds, and it queues on one stream."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

__all__ = ["Held", "StreamHandles"]


class Held:
    """A handle that nobody else uses as long as somebody holds this."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle


class StreamHandles:
    """Handles by stream. One that nobody holds any more is given to the next stream: to destroy it would wait
    for the GPU.
    """

    def __init__(self, make: Callable[[], Any], set_stream: Callable[[Any, int], object]) -> None:
        self._make, self._set_stream = make, set_stream
        self._held: weakref.WeakValueDictionary[int, Held] = weakref.WeakValueDictionary()
        self._free: list[Any] = []
        self._lock = threading.Lock()

    def of(self, stream: int) -> Held:
        with self._lock:
            held = self._held.get(stream)
            if held is None:
                handle = self._free.pop() if self._free else self._make()
                self._set_stream(handle, stream)
                held = self._held[stream] = Held(handle)
                weakref.finalize(held, self._free.append, handle)
            return held
