"""Engines and contexts that keep what is asked of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from collage_core.devices import Queue

__all__ = ["Kept", "RecordedContext", "RecordedEngine", "RecordedGpu", "RecordedQueue"]


@dataclass
class RecordedContext:
    memory_address: int
    placed: dict[str, int] = field(default_factory=dict)
    streams: list[int] = field(default_factory=list)

    def place(self, name: str, address: int) -> None:
        assert address % 256 == 0
        self.placed[name] = address

    def queue(self, stream: int) -> None:
        self.streams.append(stream)


@dataclass
class RecordedEngine:
    memory_bytes: int
    contexts: list[RecordedContext] = field(default_factory=list)

    def context(self, memory_address: int) -> RecordedContext:
        self.contexts.append(RecordedContext(memory_address))
        return self.contexts[-1]


@dataclass
class RecordedGpu:
    currents: int = 0
    released: list[Any] = field(default_factory=list)

    def current(self) -> None:
        self.currents += 1

    def release(self, function: Callable[[Any], object], handle: Any) -> None:
        self.released.append(handle)


class RecordedQueue(Queue):
    def __init__(self, handle: int) -> None:
        self.handle = handle

    def synchronize(self) -> None:
        return None

    def mark(self) -> None:
        return None

    def elapsed_ms(self, first: object, last: object) -> float:
        return 0.0


class Kept(dict[str, bytes]):
    """As `collage_cuda.choices.Choices`, in memory."""

    def known(self, kernel: str) -> bytes | None:
        return self.get(kernel)

    def keep(self, kernel: str, choice: bytes) -> None:
        self[kernel] = choice
