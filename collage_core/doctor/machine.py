"""What kind of machine this is, and how it is set."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from collage_core.doctor.finding import Finding, Level, unseen
from collage_core.target import cpuinfo

__all__ = ["at_work", "frequency", "huge_pages", "virtualisation"]

_WARM_UP_S = 0.1
_SLOW = 0.7
"""Of the maximum: a processor that works while the others rest comes near it."""
_STEADY = "performance"
_MARKS = (".dockerenv", "run/.containerenv", "run/systemd/container")
_CONTAINER = re.compile("docker|kubepods|containerd|libpod|lxc")


@contextmanager
def at_work(processor: int) -> Iterator[None]:
    """Within, this thread is on that processor, which has just worked."""
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {processor})
        end_s = time.monotonic() + _WARM_UP_S
        while time.monotonic() < end_s:
            pass
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def frequency(
    root: Path,
    processors: Collection[int],
    working: Callable[[int], AbstractContextManager[object]] = at_work,
) -> list[Finding]:
    """Whether these processors may always be as fast as they can, and whether the first is while it works.

    OSError where the system does not tell.
    """
    folders = [root / f"sys/devices/system/cpu/cpu{n}/cpufreq" for n in sorted(processors)]
    found = []
    governors = {(f / "scaling_governor").read_text().strip() for f in folders}
    if governors != {_STEADY}:
        what = f"The governor is {' and '.join(sorted(governors))}: what has just begun runs slower."
        advice = f"As root: `cpupower frequency-set --governor {_STEADY}`."
        found.append(Finding(Level.WARNING, what, advice))
    limit, highest = min(
        ((_khz(f / "scaling_max_freq"), _khz(f / "cpuinfo_max_freq")) for f in folders),
        key=lambda pair: pair[0] / pair[1],
    )
    with working(min(processors)):
        now = _khz(folders[0] / "scaling_cur_freq")
    if limit < _SLOW * highest:
        what = f"Processors may run at no more than {_ghz(limit)} of {_ghz(highest)} GHz."
        advice = "Choose another power profile, or as root: `cpupower frequency-set --max`."
        found.append(Finding(Level.WARNING, what, advice))
    elif now < _SLOW * (highest := _khz(folders[0] / "cpuinfo_max_freq")):
        what = f"A processor at work runs at {_ghz(now)} of {_ghz(highest)} GHz."
        advice = "Let the machine cool down, plug it in, or choose another power profile."
        found.append(Finding(Level.WARNING, what, advice))
    whole = f"A processor at work runs at {_ghz(now)} of {_ghz(highest)} GHz; the governor is {_STEADY}."
    return found or [Finding(Level.OK, whole)]


def _khz(file: Path) -> int:
    return int(file.read_text())


def _ghz(khz: int) -> str:
    return f"{khz / 1e6:.1f}"


def virtualisation(root: Path) -> list[Finding]:
    """Whether somebody else has a say in what these processors do."""
    found = []
    flags = cpuinfo(root / "proc/cpuinfo").get("flags")
    if flags is None:
        found.append(unseen("/proc/cpuinfo has no flags of a processor"))
    elif "hypervisor" in flags.split():
        what = "A virtual machine: its host may move its processors and slow them down, unseen."
        advice = "Trust ratios more than milliseconds."
        found.append(Finding(Level.WARNING, what, advice))
    if _is_container(root):
        what = "A container: what runs outside of it has no name here."
        advice = "Look on the host as well."
        found.append(Finding(Level.WARNING, what, advice))
    return found or [Finding(Level.OK, "No virtual machine, and no sign of a container.")]


def _is_container(root: Path) -> bool:
    if any((root / mark).exists() for mark in _MARKS):
        return True
    with suppress(OSError):
        return _CONTAINER.search((root / "proc/self/cgroup").read_text()) is not None
    return False


def huge_pages(root: Path) -> list[Finding]:
    """Whether large buffers may lie on huge pages. OSError where the system does not tell."""
    said = (root / "sys/kernel/mm/transparent_hugepage/enabled").read_text()
    chosen = said.partition("[")[2].partition("]")[0]
    if chosen in ("always", "madvise"):
        return [Finding(Level.OK, f"They are there for large buffers ({chosen}).")]
    if chosen != "never":
        raise ValueError(said)
    what = "They are switched off: large buffers take longer to read."
    advice = "As root: `echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`."
    return [Finding(Level.WARNING, what, advice)]
