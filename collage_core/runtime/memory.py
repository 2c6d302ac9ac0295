"""Memory planning: one arena for all activations, buffers sharing bytes where their lifetimes allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collage_core.errors import CollageError
from collage_core.formats import Array

__all__ = ["ALIGNMENT_BYTES", "Arena", "Block", "plan_offsets"]

ALIGNMENT_BYTES = 128
"""Two cache lines: adjacent-line prefetch of one buffer does not touch its neighbour."""


@dataclass(frozen=True, slots=True)
class Block:
    """Bytes that must be kept from step `first` to step `last`, both included."""

    size_bytes: int
    first: int
    last: int

    def overlaps(self, other: Block) -> bool:
        return self.first <= other.last and other.first <= self.last


def plan_offsets(blocks: Sequence[Block]) -> tuple[list[int], int]:
    """An offset for each block and the size of the arena: no two blocks that live at the same time share a
    byte.

    Greedy by size: the largest first, each at the lowest offset that is free over its whole life (Pisarchyk
    and Lee, "Efficient memory management for deep neural net inference", 2020, section 5.2).
    """
    offsets = [0] * len(blocks)
    placed: list[int] = []
    total = 0
    for i in sorted(range(len(blocks)), key=lambda i: (-blocks[i].size_bytes, blocks[i].first)):
        block = blocks[i]
        taken = sorted(
            (offsets[j], offsets[j] + _aligned(blocks[j].size_bytes))
            for j in placed
            if blocks[j].overlaps(block)
        )
        offset = 0
        for start, end in taken:
            if offset + block.size_bytes <= start:
                break
            offset = max(offset, end)
        offsets[i] = offset
        placed.append(i)
        total = max(total, offset + _aligned(block.size_bytes))
    return offsets, total


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class Arena:
    """One aligned allocation, cut into pieces. CollageError if there is no room for it."""

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

    @property
    def size_bytes(self) -> int:
        return self.buffer.nbytes

    def piece(self, offset: int, size_bytes: int) -> Array:
        return self.buffer[offset : offset + size_bytes]
