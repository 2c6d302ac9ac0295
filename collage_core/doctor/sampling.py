"""What ran on this machine during a second, by the kernel's own account."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

__all__ = ["Busy", "Sample", "sample"]

_SECONDS = 1.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_IDLE, _IOWAIT, _STEAL, _ALL = 3, 4, 7, 8
"""Fields of /proc/stat; what follows the first eight, guests' time, is part of them."""


class Busy(NamedTuple):
    """A process that has run. share: of one processor's time, so that of several threads it may exceed 1."""

    pid: int
    name: str
    share: float


@dataclass(frozen=True, slots=True)
class Sample:
    """Shares are of one processor's time.

    processes: of others, the busiest first. elsewhere: the share of those that have no name here: they are
    outside of this container, or have come and gone. stolen: the share of all processors' time that the host
    of a virtual machine took. Both are None where the system keeps no account of its processors.
    """

    processes: tuple[Busy, ...]
    elsewhere: float | None
    stolen: float | None


class _Process(NamedTuple):
    name: str
    parent: int
    ticks: int
    begun_ticks: int


@dataclass(frozen=True, slots=True)
class _Account:
    """processors: ticks of all processors together, by kind; None where there is no account."""

    at_s: float
    processes: dict[int, _Process]
    processors: tuple[int, ...] | None


def sample(root: Path, clock: Callable[[], float], sleep: Callable[[float], object], own: int) -> Sample:
    """Sleep for a second, and tell what ran meanwhile but the process `own` and its descendants.

    OSError where there is no /proc in `root`.
    """
    before = _account(root, clock)
    sleep(_SECONDS)
    after = _account(root, clock)
    ticks = {pid: _ran(before.processes.get(pid), process) for pid, process in after.processes.items()}
    whole = _TICKS_PER_S * (after.at_s - before.at_s)
    ours = set(_tree(own, after.processes))
    busy = [
        Busy(pid, after.processes[pid].name, ran / whole)
        for pid, ran in ticks.items()
        if ran > 0 and pid not in ours
    ]
    elsewhere = stolen = None
    if before.processors is not None and after.processors is not None:
        passed = [b - a for a, b in zip(before.processors, after.processors, strict=True)]
        worked = sum(passed) - passed[_IDLE] - passed[_IOWAIT] - passed[_STEAL]
        elsewhere = max(0.0, (worked - sum(ticks.values())) / whole)
        stolen = passed[_STEAL] / max(1, sum(passed))
    return Sample(tuple(sorted(busy, key=lambda b: -b.share)), elsewhere, stolen)


def _account(root: Path, clock: Callable[[], float]) -> _Account:
    folders = [p for p in (root / "proc").iterdir() if p.name.isdigit()]
    processes = {}
    for folder in folders:
        with suppress(OSError):  # it has ended
            processes[int(folder.name)] = _process((folder / "stat").read_text(errors="replace"))
    processors = None
    with suppress(OSError):
        first = (root / "proc/stat").read_text().splitlines()[0]
        processors = tuple(map(int, first.split()[1 : 1 + _ALL]))
    return _Account(clock(), processes, processors)


def _process(stat: str) -> _Process:
    """From its stat file; a name may hold spaces and brackets."""
    before, _, after = stat.rpartition(")")
    fields = after.split()
    return _Process(
        before.partition("(")[2], int(fields[1]), int(fields[11]) + int(fields[12]), int(fields[19])
    )


def _ran(before: _Process | None, after: _Process) -> int:
    """Ticks that a process ran between two accounts; all, if it began meanwhile."""
    known = before is not None and before.begun_ticks == after.begun_ticks
    return after.ticks - (before.ticks if before is not None and known else 0)


def _tree(pid: int, processes: dict[int, _Process]) -> Iterator[int]:
    yield pid
    for child, process in processes.items():
        if process.parent == pid:
            yield from _tree(child, processes)
