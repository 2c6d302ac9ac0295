"""Temporary folders that do not stay for good, even when their process is killed."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from collage_run.files import hold

__all__ = ["TemporaryFolder"]

_PREFIX = "collage-workspace-"
_TRIES = 3
"""Somebody who removes what is left may take a new folder before it is held, but hardly that often."""


class TemporaryFolder:
    """A new folder, held (`hold`) and removed by `remove`; those that killed processes have left are removed
    when it is made.
    """

    def __init__(self) -> None:
        parent = Path(tempfile.gettempdir())
        for left in parent.glob(f"{_PREFIX}*"):
            if (descriptor := hold(left)) is not None:
                shutil.rmtree(left, ignore_errors=True)
                os.close(descriptor)
        self._held: int | None = None
        for _ in range(_TRIES):
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            self._held = hold(self.path)
            if self._held is not None:
                return
            self.remove()
        # A file system without locks: nobody can take it for left behind either.
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))

    def remove(self) -> None:
        """Remove the folder with all that is in it. May be called twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._held is not None:
            os.close(self._held)
            self._held = None
