"""What a measured cost depends on besides the kernel: plugin, library, machine, threads. Loads no vendor
library.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from collage_core.backend import Backend, BackendKind
from collage_core.costs.limits import settling_limit_s
from collage_core.formats import CPU
from collage_core.plugins import Registry, default_registry
from collage_core.sources import source_hash
from collage_core.target import Target, cpuinfo

__all__ = [
    "MEASURER_VERSION",
    "cache_sizes_bytes",
    "device_fingerprint",
    "devices_environment",
    "environment_of",
]

MEASURER_VERSION = "7"
"""To be raised when the way of measuring changes such that old figures no longer compare with new ones."""

_CPU = Path("/sys/devices/system/cpu/cpu0/cache")
_UNKNOWN_CACHE_BYTES = 32 << 20


def environment_of(
    backend: Backend, target: Target, device: str | None = None, registry: Registry | None = None
) -> dict[str, str]:
    """The environment that belongs into the `CostKey` of everything that `backend` runs on a device of
    `target`. device: None for what is about the backend itself, on all devices that it runs on. registry:
    that knows the devices, of the installed packages where None.

    handover: core's code that makes the models of graph libraries; others have none.
    """
    info = backend.info()
    devices = info.devices if device is None else (device,)
    handover = {"handover": source_hash("collage_core.ir")} if info.kind is BackendKind.GRAPH else {}
    return {
        "measurer": MEASURER_VERSION,
        "plugin": info.version,
        "source": source_hash(type(backend).__module__),
        "library": info.library_version or "",
        "threads": str(target.threads),
        **handover,
        **device_fingerprint(target.device),
        **devices_environment({*devices} & {*target.accelerators}, registry),
    }


def devices_environment(names: Iterable[str], registry: Registry | None = None) -> dict[str, str]:
    """Of devices beside the CPU: which they are, and the code that works on them."""
    facts: dict[str, str] = {}
    for name in sorted({*names} - {CPU}):
        device = (registry or default_registry()).device(name)
        facts |= {f"{name}.{k}": v for k, v in device.facts().items()}
        facts[f"{name}.source"] = source_hash(type(device).__module__)
    return facts


@cache
def _cpu_fingerprint() -> tuple[tuple[str, str], ...]:
    facts = cpuinfo()
    flags = " ".join(sorted(set((facts.get("flags") or facts.get("Features") or "").split())))
    numbers = [facts.get(x86) or facts.get(arm) or "" for x86, arm in _CPU_NUMBERS]
    caches = [f"L{level}:{size}" for level, size in sorted(_caches().items()) if level > 1]
    return (
        ("cpu", facts.get("model name") or platform.processor() or platform.machine()),
        ("cpu_stepping", "/".join(numbers)),
        ("cpu_flags", hashlib.sha256(flags.encode()).hexdigest()[:16]),
        ("cores", str(os.cpu_count())),
        ("caches", ",".join(caches)),
    )


_CPU_NUMBERS = (("cpu family", "CPU architecture"), ("model", "CPU part"), ("stepping", "CPU revision"))


def device_fingerprint(device: str = "cpu") -> dict[str, str]:
    """Model, stepping, instruction set, cores and caches (bytes) of the machine's processor, and how many of
    its cores this process may use: libraries and plugins ask that, whatever number of threads they are told.
    Measured wherever the host has moved them, they count as another machine.
    """
    moved = {} if settling_limit_s() else {"processors": "not watched"}
    return {"device": device, "cpus": str(len(os.sched_getaffinity(0))), **moved, **dict(_cpu_fingerprint())}


@cache
def cache_sizes_bytes() -> tuple[int, ...]:
    """Sizes of the data caches that the first core sees, from the first level to the last; 32 MiB alone where
    the system does not tell.
    """
    return tuple(size for _, size in sorted(_caches().items())) or (_UNKNOWN_CACHE_BYTES,)


def _caches() -> dict[int, int]:
    """Bytes of the data or unified cache of each level."""
    found: dict[int, int] = {}
    for index in sorted(_CPU.glob("index*")):
        try:
            level, kind, size = ((index / f).read_text().strip() for f in ("level", "type", "size"))
        except OSError:
            continue
        if kind != "Instruction":
            found[int(level)] = _bytes(size)
    return found


def _bytes(size: str) -> int:
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(size[-1:], 1)
    return int(size.rstrip("KMG")) * unit
