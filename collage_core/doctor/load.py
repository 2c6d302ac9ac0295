"""Who else uses this machine's processors."""

from __future__ import annotations

from pathlib import Path

from collage_core.doctor.finding import Finding, Level, unseen
from collage_core.doctor.sampling import Sample

__all__ = ["load_average", "other_processes", "stolen_time"]

_NOTICED, _BUSY = 0.05, 0.5
"""Shares of one processor: of a process to be named, and of all together to be a problem."""
_ELSEWHERE = 0.25
"""Processors are billed by whole ticks, processes are not: less is no more than a difference of these."""
_LOAD = 1.0
_STOLEN, _MUCH_STOLEN = 0.01, 0.05


def other_processes(sample: Sample) -> list[Finding]:
    """Each process that was busy during the sampled second; this one's own tree is not in it."""
    named = [p for p in sample.processes if p.share >= _NOTICED]
    elsewhere = sample.elsewhere or 0.0
    whole = sum(p.share for p in named) + (elsewhere if elsewhere >= _ELSEWHERE else 0.0)
    level = Level.PROBLEM if whole >= _BUSY else Level.WARNING
    found = [
        Finding(
            level,
            f"{p.name} (process {p.pid}) uses {p.share:.0%} of a processor.",
            "Wait until it is done, or end it.",
        )
        for p in named
    ]
    if elsewhere >= _ELSEWHERE:
        what = f"What cannot be seen here, or is over, used {elsewhere:.0%} of a processor."
        found.append(Finding(level, what, "Look for it on the host, or with `top`."))
    return found or [Finding(Level.OK, "Nothing else is busy.")]


def load_average(root: Path) -> list[Finding]:
    """How many processes wanted a processor during the last minute."""
    load = float((root / "proc/loadavg").read_text().split()[0])
    what = f"In the last minute {load:.1f} processes on average wanted a processor or a disk."
    if load < _LOAD:
        return [Finding(Level.OK, what)]
    return [Finding(Level.WARNING, what, "Wait, unless it was your own and is done.")]


def stolen_time(sample: Sample) -> list[Finding]:
    """How much of the sampled second the host of a virtual machine gave to others."""
    if sample.stolen is None:
        return [unseen("there is no account of the processors, /proc/stat")]
    what = f"The host took {sample.stolen:.0%} of the processors' time for others."
    if sample.stolen < _STOLEN:
        return [Finding(Level.OK, "The host took no time for others.")]
    level = Level.PROBLEM if sample.stolen >= _MUCH_STOLEN else Level.WARNING
    return [Finding(level, what, "Measure at another hour, or on another machine.")]
