"""The processor that figures belong to, and whether it is free to be measured on."""

from __future__ import annotations

import os
import platform
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

import psutil

from collage_core.errors import CollageError
from collage_core.target import cpuinfo, processor

__all__ = [
    "MOST_BUSY",
    "OthersCpu",
    "end_on_sigterm",
    "os_version",
    "processor_json",
    "require_idle",
    "slug_of",
    "title_of",
    "watching",
]

MOST_BUSY = 0.05
"""Share of all processors that may be in use before a run, and by others meanwhile."""
_LOOK_S = 3.0
_EVERY_S = 15.0
_UNUSED = {"idle", "iowait"}
_COUNTED_TWICE = {"guest", "guest_nice"}
_GENERATIONS = (
    ("AuthenticAMD", 25, (range(0x10, 0x20), range(0x60, 0x80), range(0xA0, 0xB0)), "Zen 4"),
    ("AuthenticAMD", 26, (range(0x100),), "Zen 5"),
)
"""Vendor, family, models: a virtual machine's model name may not say more than "AMD EPYC"."""


def processor_json() -> dict[str, Any]:
    """This machine's processor. cores: of the machine; cpus: those that this process may use."""
    facts = cpuinfo()
    return {
        "vendor": facts.get("vendor_id") or facts.get("CPU implementer") or "",
        "name": processor().model,
        "family": facts.get("cpu family") or facts.get("CPU architecture") or "",
        "model": facts.get("model") or facts.get("CPU part") or "",
        "stepping": facts.get("stepping") or facts.get("CPU revision") or "",
        "cores": os.cpu_count(),
        "cpus": len(os.sched_getaffinity(0)),
    }


def slug_of(processor: dict[str, Any]) -> str:
    """The kind of a processor, from `processor_json`, as the name of a folder."""
    text = "{name} family {family} model {model} {cpus} cpus".format(**processor)
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def title_of(processor: dict[str, Any]) -> str:
    """The same as a heading."""
    generation = ""
    with suppress(ValueError):
        family, model = int(processor["family"]), int(processor["model"])
        names = (
            f"{name}; "
            for vendor, its, models, name in _GENERATIONS
            if (vendor, its) == (processor["vendor"], family) and any(model in known for known in models)
        )
        generation = next(names, "")
    cpus = processor["cpus"]
    cores = f"{cpus} of {processor['cores']} cores" if cpus != processor["cores"] else f"{cpus} cores"
    return (
        f"{processor['name']} ({generation}family {processor['family']}, model {processor['model']}), {cores}"
    )


def os_version() -> str:
    """The distribution and the kernel's version, without what its builder has added."""
    release = re.match(r"[\d.]*", platform.release())
    kernel = f"{platform.system()} {release.group() if release else ''}".strip()
    try:
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {kernel}"
    except OSError:
        return kernel


def require_idle() -> None:
    """CollageError where more than a twentieth of all processors is in use now, by whomever, or taken by the
    host; it names the process that uses most.
    """
    with watching() as others:
        before = psutil.cpu_times()
        time.sleep(_LOOK_S)
        after = psutil.cpu_times()
    spent = {
        field: getattr(after, field) - getattr(before, field)
        for field in after._fields
        if field not in _COUNTED_TWICE
    }
    share = 1.0 - sum(s for field, s in spent.items() if field in _UNUSED) / max(sum(spent.values()), 1e-9)
    if share > MOST_BUSY:
        busiest = f"; most by {others.busiest}" if others.busiest else ""
        raise CollageError(f"this machine is busy: {share:.0%} of its processors are in use{busiest}")


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    started_s: float


class OthersCpu:
    """CPU time that processes use which are neither this one nor its descendants, looked at now and then:
    what begins and ends between two looks is missed.

    spent_s: so far, by their names; total_s: all together. busiest: the name of the one that has used most of
    it, None where there is none.
    """

    def __init__(self) -> None:
        self._ours: set[_Process] = set()
        self._seen_s: dict[_Process, float] = {}
        self.spent_s: dict[str, float] = {}
        self._stop = threading.Event()
        self.look(first=True)

    @property
    def total_s(self) -> float:
        return sum(self.spent_s.values())

    @property
    def busiest(self) -> str | None:
        return max(self.spent_s, key=self.spent_s.__getitem__, default=None)

    def watch(self) -> None:
        """Until `stop`."""
        while not self._stop.wait(_EVERY_S):
            self.look()

    def stop(self) -> None:
        self._stop.set()

    def look(self, first: bool = False) -> None:
        """Once more. first: what was used before does not count."""
        us = psutil.Process()
        for process in [us, *us.children(recursive=True)]:
            with suppress(psutil.Error):
                # For good: an orphan of ours is nobody else's.
                self._ours.add(_Process(process.pid, process.create_time()))
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                key, times = _Process(process.pid, process.create_time()), process.cpu_times()
                used_s = times.user + times.system
                spent_s = used_s - self._seen_s.get(key, used_s if first else 0.0)
                self._seen_s[key] = used_s
                if spent_s > 0 and key not in self._ours:
                    name = process.name()
                    self.spent_s[name] = self.spent_s.get(name, 0.0) + spent_s


def end_on_sigterm() -> None:
    """Have SIGTERM end this process as an exception does, so that `with` blocks end, as on Ctrl-C."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)


@contextmanager
def watching() -> Iterator[OthersCpu]:
    """What others use while the block runs."""
    others = OthersCpu()
    watcher = threading.Thread(target=others.watch, daemon=True)
    watcher.start()
    try:
        yield others
    finally:
        others.stop()
        watcher.join()
        others.look()
