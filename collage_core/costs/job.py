"""Measuring jobs: small picklable values that say what a worker process is to build, check and time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from collage_core.backend import Variant
from collage_core.costs.record import Policy
from collage_core.formats import CPU, Format
from collage_core.target import Target

__all__ = ["ConversionItem", "KernelItem", "MeasureItem", "MeasureJob"]


@dataclass(frozen=True, slots=True)
class KernelItem:
    """A kernel to be built, checked and timed. `index` is the caller's, and names the item in the results.

    nodes: their ids. outputs: those that the subgraph declares; None for those that escape. enough_ms: what
    takes longer than that in a few runs is not timed any further (`time_bound`).
    """

    index: int
    nodes: tuple[int, ...]
    variant: Variant
    outputs: tuple[str, ...] | None = None
    enough_ms: float = math.inf


@dataclass(frozen=True, slots=True)
class ConversionItem:
    """The same for a value, by its name, that is brought from one format into another."""

    index: int
    value: str
    source: Format
    destination: Format


MeasureItem = KernelItem | ConversionItem


@dataclass(frozen=True, slots=True)
class MeasureJob:
    """Items of one backend, measured one after the other in one worker. Small and picklable: any executor may
    carry it.

    graph_path: folder of `ir.save_stored`. values_path: folder of `costs.recording.record`. plugins:
    modules that bring backends besides the installed packages. item_limit_s: how long building one item
    may take, and then checking and timing it. memory_limit_bytes: resident memory of the worker.
    device: which works on all of the items.
    """

    graph_path: Path
    values_path: Path
    backend: str
    target: Target
    policy: Policy
    items: tuple[MeasureItem, ...]
    plugins: tuple[str, ...] = ()
    item_limit_s: float = 60.0
    memory_limit_bytes: int | None = None
    device: str = CPU
