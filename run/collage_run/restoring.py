"""Kernels made of what is stored of them. Packages bring further kinds by entry points."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from functools import cache

from collage_run.errors import BackendUnavailableError
from collage_run.kernel import Kernel, StoredKernel
from collage_run.machine_code import MACHINE_CODE, MachineCodeKernel

__all__ = ["ENTRY_POINT_GROUP", "restore"]

ENTRY_POINT_GROUP = "collage.run"
"""Where installed packages name what makes kernels: by kind, a function of a `StoredKernel`."""


def restore(stored: StoredKernel) -> Kernel:
    """The kernel that `stored` was taken of, on the processor that it was made for.

    BackendUnavailableError where no installed package knows its kind. What it consists of is not looked at:
    it may be machine code, and may raise whatever it likes.
    """
    return _restorer(stored.kind)(stored)


@cache
def _restorer(kind: str) -> Callable[[StoredKernel], Kernel]:
    if kind == MACHINE_CODE:
        return MachineCodeKernel.restored
    for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP, name=kind):
        return point.load()  # type: ignore[no-any-return]  # whatever a package names
    raise BackendUnavailableError(
        f"no package that is installed here runs kernels of kind {kind!r}; collage-{kind} may do so"
    )
