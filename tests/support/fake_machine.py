"""A /proc and a /sys made of ordinary files, as those of a machine that is fit to measure on."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["OWN", "FakeMachine"]

OWN = 100
"""The process that asks."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_FREQUENCY = "sys/devices/system/cpu/cpu{}/cpufreq/"
_PROCESS = (
    "{pid} ({name}) S {parent} 1 1 0 -1 4194304 500 0 0 0 {user} {system} 7 7 20 0 1 0 {begun} 1000 100"
)


@dataclass
class FakeMachine:
    """root: where the files are. What runs is written when the clock is moved by `sleep`, as a sample does.

    processors: numbers of those that have files in /sys.
    """

    root: Path
    processors: tuple[int, ...] = (0, 1)
    now_s: float = 0.0
    meanwhile: list[Callable[[], object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.write("proc/stat", "cpu  100 0 50 1000 5 0 0 0 0 0\ncpu0 100 0 50 1000 5 0 0 0 0 0\n")
        self.write("proc/loadavg", "0.10 0.20 0.30 1/100 4711\n")
        self.write(
            "proc/cpuinfo", "processor\t: 0\nmodel name\t: One\nflags\t\t: fpu avx2\n\nprocessor\t: 1\n"
        )
        self.write("proc/self/cgroup", "0::/user/me\n")
        self.write(
            "proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n"
        )
        self.write("sys/fs/cgroup/user/cpu.max", "max 100000\n")
        self.write("sys/fs/cgroup/user/memory.max", "max\n")
        self.write("sys/fs/cgroup/user/me/cgroup.procs", "")
        self.write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
        for number in self.processors:
            folder = _FREQUENCY.format(number)
            self.write(folder + "scaling_governor", "performance\n")
            for name in ("cpuinfo_max_freq", "scaling_max_freq", "scaling_cur_freq"):
                self.write(folder + name, "3000000\n")
        self.process(OWN, "collage")

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def process(self, pid: int, name: str, ran_s: float = 0.0, parent: int = 1, begun: int = 5) -> None:
        """It has run so long until now, half of it in the kernel."""
        ticks = round(ran_s * _TICKS_PER_S / 2)
        about = _PROCESS.format(pid=pid, name=name, parent=parent, user=ticks, system=ticks, begun=begun)
        self.write(f"proc/{pid}/stat", about + "\n")

    def processor_ticks(self, *, user: int = 0, idle: int = 0, steal: int = 0) -> None:
        """More than at first."""
        self.write("proc/stat", f"cpu  {100 + user} 0 50 {1000 + idle} 5 0 0 {steal} 0 0\n")

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        for change in self.meanwhile:
            change()
