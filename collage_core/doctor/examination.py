"""All checks, one after the other."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

from collage_core.costs.database import default_path
from collage_core.doctor.disk import cost_database
from collage_core.doctor.finding import Finding, Level, unseen
from collage_core.doctor.libraries import libraries
from collage_core.doctor.limits import memory, processor_quota, processors_allowed
from collage_core.doctor.load import load_average, other_processes, stolen_time
from collage_core.doctor.machine import frequency, huge_pages, virtualisation
from collage_core.doctor.moves import moved_processors
from collage_core.doctor.sampling import Sample, sample
from collage_core.errors import CollageError
from collage_core.plugins import Registry
from collage_core.target import Target

__all__ = ["examine"]

_ROOT = Path("/")


def examine(
    registry: Registry,
    root: Path = _ROOT,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> list[Finding]:
    """All findings, the worst first; takes some three seconds. What cannot be looked at is a finding as well.

    root: where /proc and /sys are.
    """
    allowed = os.sched_getaffinity(0)

    @cache
    def second() -> Sample:
        return sample(root, clock, sleep, os.getpid())

    checks: dict[str, Callable[[], list[Finding]]] = {
        "processes": lambda: other_processes(second()),
        "load": lambda: load_average(root),
        "stolen time": lambda: stolen_time(second()),
        "moved processors": lambda: moved_processors(sleep),
        "threads": lambda: processor_quota(root, Target.default().threads),
        "processors allowed": lambda: processors_allowed(len(allowed)),
        "memory": lambda: memory(root),
        "frequency": lambda: frequency(root, allowed),
        "virtualisation": lambda: virtualisation(root),
        "huge pages": lambda: huge_pages(root),
        "disk": lambda: cost_database(default_path()),
        "libraries": lambda: libraries(registry),
    }
    found = [replace(f, check=name) for name, check in checks.items() for f in _looked(check)]
    return sorted(found, key=lambda f: list(Level).index(f.level))


def _looked(check: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return check()
    except CollageError as error:
        return [unseen(str(error), "Mend that, and look again.")]
    except OSError as error:
        said = error.strerror or str(error)
        return [unseen(f"{error.filename}: {said}" if error.filename else said)]
    except (ValueError, IndexError) as error:  # a file that says something else than it should
        return [unseen(f"the system tells something that is not understood ({error})")]
