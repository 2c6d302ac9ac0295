"""Looking at processes and waiting for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from collage_core.worker.child import GUARDIAN

__all__ = ["children", "gone", "is_guardian", "processes_with", "state_of", "wait_until"]


def state_of(pid: int) -> str:
    """State letter of a process as the kernel names it; "" when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def gone(pid: int) -> bool:
    """Whether the process has ended (a zombie that nobody has collected counts)."""
    return state_of(pid) in ("Z", "")


def is_guardian(pid: int) -> bool:
    """Whether it is a worker's, which is never stopped."""
    return Path(f"/proc/{pid}/comm").read_text().strip() == GUARDIAN


def children(pid: int) -> list[int]:
    return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def processes_with(variable: str) -> set[int]:
    """Living processes whose environment holds "name=value"."""
    found = set()
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and variable.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.add(int(entry.name))
    return found


def wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> bool:
    """Whether the condition holds within that time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
