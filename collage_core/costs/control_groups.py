"""What the control groups of this process, version 1 or 2, let it have."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path, PurePosixPath

__all__ = ["cpu_quota", "memory_limits_bytes"]

_ROOT = Path("/")


def cpu_quota(root: Path = _ROOT) -> float | None:
    """How many processors' time this process may use, by the tightest of its groups; None without a limit.

    root: where /proc and /sys are. OSError where the groups cannot be looked at.
    """
    quotas = []
    for group in _groups("cpu", root):
        with suppress(FileNotFoundError):  # the topmost group has none
            quota, period = (group / "cpu.max").read_text().split()
            quotas.append((quota, period))
        with suppress(FileNotFoundError):
            quota = (group / "cpu.cfs_quota_us").read_text().strip()
            quotas.append((quota, (group / "cpu.cfs_period_us").read_text().strip()))
    return min((int(q) / int(p) for q, p in quotas if q not in ("max", "-1")), default=None)


def memory_limits_bytes(root: Path = _ROOT) -> list[int]:
    """What each of the groups of this process may use, where there is a limit. Version 1 says more than any
    machine has where there is none.

    root: where /proc and /sys are. OSError where the groups cannot be looked at.
    """
    limits = []
    for group in _groups("memory", root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(FileNotFoundError, ValueError):  # "max"; the topmost group has no file
                limits.append(int((group / name).read_text()))
    return limits


def _groups(controller: str, root: Path) -> list[Path]:
    """The folder of this process's group, and those above it; FileNotFoundError if it cannot be seen."""
    member = root / "proc/self/cgroup"
    names: dict[str, str] = {}
    for line in member.read_text().splitlines():
        _, controllers, name = line.split(":", 2)
        names.update(dict.fromkeys(controllers.split(","), name))
    version_1 = controller in names
    group = names.get(controller) or names.get("")  # version 2 is listed without controllers
    if group is None:
        raise FileNotFoundError(errno.ENOENT, f"no control group for {controller} in it", str(member))
    mounted, top = _mounted(controller if version_1 else None, root)
    # In a container the folder that is mounted may itself be a group's.
    inner = PurePosixPath(group)
    below = inner.relative_to(top) if inner.is_relative_to(top) and ".." not in inner.parts else "."
    folder = mounted / below
    folder.stat()
    return [folder, *(p for p in folder.parents if p.is_relative_to(mounted))]


def _mounted(controller: str | None, root: Path) -> tuple[Path, str]:
    """Where the hierarchy of a controller (of version 1; None: version 2) is mounted, and which group that
    folder is.
    """
    table = root / "proc/self/mountinfo"
    for line in table.read_text().splitlines():
        mount, _, about = line.partition(" - ")
        kind, *_, options = about.split()
        is_it = (
            kind == "cgroup2" if controller is None else kind == "cgroup" and controller in options.split(",")
        )
        if is_it:
            top, point = mount.split()[3:5]
            return root / os.path.relpath(point, "/"), top
    raise FileNotFoundError(errno.ENOENT, "no control groups are mounted", str(table))
