"""What this process may use of the machine."""

from __future__ import annotations

import os
from pathlib import Path

from collage_core.costs.control_groups import cpu_quota, memory_limits_bytes
from collage_core.costs.limits import machine_memory_bytes
from collage_core.counted import counted
from collage_core.doctor.finding import Finding, Level

__all__ = ["memory", "processor_quota", "processors_allowed"]

_LITTLE_BYTES, _TOO_LITTLE_BYTES = 4 << 30, 1 << 30


def processor_quota(root: Path, threads: int) -> list[Finding]:
    """Whether the control group gives every thread a processor. OSError where that cannot be seen."""
    quota = cpu_quota(root)
    if quota is None or quota >= threads:
        given = "no limit" if quota is None else f"{quota:.3g} processors"
        return [Finding(Level.OK, f"{threads} would be used; the control group has {given}.")]
    given = f"{quota:.3g} of a processor" if quota < 1 else f"{quota:.3g} processors"
    run = f"{counted(threads, 'thread')} would run: they are halted again and again."
    what = f"The control group may use {given}, and {run}"
    fewer = f", or use --threads {int(quota)}" if quota >= 1 else ""
    return [Finding(Level.PROBLEM, what, f"Raise its limit to {threads} processors{fewer}.")]


def processors_allowed(allowed: int) -> list[Finding]:
    """Whether this process is kept from some of the machine's processors."""
    there = os.cpu_count() or allowed
    if allowed >= there:
        return [Finding(Level.OK, f"All {there} of this machine may be used.")]
    what = f"This process may use {allowed} of {there} processors."
    advice = "If that was not meant: start it without `taskset`, or widen the container's set."
    return [Finding(Level.WARNING, what, advice)]


def memory(root: Path) -> list[Finding]:
    """Whether there is memory for workers. OSError where the limits cannot be seen."""
    machine = machine_memory_bytes()
    limit = min([machine, *memory_limits_bytes(root)])
    who = "The control group may use" if limit < machine else "This machine has"
    what = f"{who} {limit / (1 << 30):.1f} GiB of memory."
    if limit >= _LITTLE_BYTES:
        return [Finding(Level.OK, what)]
    level = Level.PROBLEM if limit < _TOO_LITTLE_BYTES else Level.WARNING
    return [Finding(level, what, "Give it 4 GiB or more, or keep to small models.")]
