"""What an executable runs, without the graph that it came from: which kernels, and where their values lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from collage_run.formats import CPU, Array, Format, device_of
from collage_run.open_outputs import OpenOutput

__all__ = ["Call", "Place", "Program"]


@dataclass(frozen=True, slots=True)
class Place:
    """A value of logical `shape`, `offset` bytes into the arena of its format's device."""

    offset: int
    shape: tuple[int, ...]
    format: Format


@dataclass(frozen=True, slots=True)
class Call:
    """One kernel's: what it reads and writes, and its workspace (uint8). name: for people, its backend
    in front.
    """

    name: str
    reads: tuple[Place, ...]
    writes: tuple[Place, ...]
    workspace: Place

    @property
    def device(self) -> str:
        """Which works on it: of a transfer the other one than the host."""
        return device_of(place.format for place in (*self.reads, *self.writes))

    @property
    def is_transfer(self) -> bool:
        """Whether it brings a value from the host's memory to another device's, or back."""
        return len({place.format.device for place in (*self.reads, *self.writes)}) > 1

    @property
    def is_download(self) -> bool:
        """Whether the host has to wait for it: it writes to the host's memory from another one."""
        return self.is_transfer and self.writes[0].format.device == CPU


@dataclass(frozen=True, slots=True)
class Program:
    """Calls in order; the model's inputs and outputs by name, in its order, row-major on the CPU; how large
    each device's arena is. Of an output that does not depend on the inputs: its elements. open_outputs: of
    those whose shapes are known only after a run. Behind the model's outputs come their sizes.
    """

    calls: tuple[Call, ...]
    inputs: Mapping[str, Place]
    outputs: Mapping[str, Place | Array]
    arena_bytes: Mapping[str, int]
    open_outputs: Mapping[str, OpenOutput] = field(default_factory=dict)
