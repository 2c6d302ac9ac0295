"""A device as a check needs it: one queue, fenced buffers, and a way to see what lies in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from collage_run.devices import Device

from collage_core.errors import BackendError
from collage_core.formats import CPU, Array, Format, empty, view

__all__ = ["Station"]


class Station:
    """protect: see `Device.fenced`."""

    @classmethod
    def for_formats(
        cls, formats: Iterable[Format], device: Callable[[str], Device], protect: bool
    ) -> dict[str, Station]:
        """One for each device that these lie on, by name. device: the one of a name."""
        return {name: cls(device(name), protect) for name in {f.device for f in formats}}

    def __init__(self, device: Device, protect: bool) -> None:
        self.device = device
        self.queue = device.queue()
        self.buffers = device.fenced(protect)
        self.byte_format = Format("uint8", (0,), device.name)

    def array(self, shape: Sequence[int], format: Format, name: str) -> Any:
        """A new array in that format; `name` says what it is, as in "output 'y'"."""
        return self.buffers.array(shape, format, name)

    def bytes(self, size_bytes: int, name: str) -> Any:
        """The same of so many bytes (uint8). BackendError where nothing can be so large."""
        if size_bytes < 0:
            raise BackendError(f"{name} would have {size_bytes} bytes")
        return self.array((size_bytes,), self.byte_format, name)

    def fill(self, destination: Any, format: Format, byte: int) -> None:
        """Put so many equal bytes into an array."""
        shape = destination.shape
        bytes = np.full(format.size_bytes(shape), byte, np.uint8)
        self.write(destination, format, view(bytes, shape, format))

    def write(self, destination: Any, format: Format, value: Array) -> None:
        """Put a value into an array, rounded where that is of another type."""
        if self.device.name == CPU:
            destination[...] = value
            return
        staged = empty(value.shape, format.on(CPU))
        staged[...] = value
        self.device.upload(staged, destination, self.queue)

    def read(self, source: Any, format: Format) -> Array:
        """A copy of what lies there, once all that is queued is done."""
        if self.device.name == CPU:
            return np.array(source)
        staged = empty(source.shape, format.on(CPU))
        self.device.download(source, staged, self.queue)
        self.queue.synchronize()
        return staged
