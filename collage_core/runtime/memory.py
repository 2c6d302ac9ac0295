"""Memory planning: one arena for each device, buffers sharing bytes where their lifetimes allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collage_run.devices import ALIGNMENT_BYTES

__all__ = ["Block", "plan_offsets"]


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
