"""Engines and contexts that keep what is asked of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from collage_core.devices import Queue

__all__ = ["MISALIGNED", "Kept", "RecordedContext", "RecordedEngine", "RecordedQueue"]

MISALIGNED = "not aligned"


@dataclass
class RecordedContext:
    memory_address: int
    placed: dict[str, int] = field(default_factory=dict)
    streams: list[int] = field(default_factory=list)

    def place(self, name: str, address: int) -> None:
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

    def forget(self, kernel: str) -> None:
        del self[kernel]
