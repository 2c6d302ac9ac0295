"""Temporary folders that do not stay for good, even when their process is killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

__all__ = ["TemporaryFolder"]

_PREFIX = "collage-workspace-"


class TemporaryFolder:
    """A new folder, removed by `remove`; those that killed processes have left are removed when it is made.

    Its owner holds a lock (flock) on the folder itself, which the kernel releases however the owner dies: who
    can take it has found a folder that nobody uses any more.
    """

    def __init__(self) -> None:
        parent = Path(tempfile.gettempdir())
        for left in parent.glob(f"{_PREFIX}*"):
            _sweep(left)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            if (descriptor := _locked(self.path)) is not None:
                self._descriptor = descriptor
                return

    def remove(self) -> None:
        """Remove the folder with all that is in it. May be called twice."""
        if self._descriptor < 0:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._descriptor)
        self._descriptor = -1


def _sweep(folder: Path) -> None:
    if (descriptor := _locked(folder)) is not None:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _locked(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock; None if somebody else has it, or the folder is gone or not
    ours.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = os.fstat(descriptor)
        if found.st_nlink and found.st_uid == os.getuid():  # no links: somebody has swept it just before
            return descriptor
    os.close(descriptor)
    return None
