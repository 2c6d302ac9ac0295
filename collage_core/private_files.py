"""Files by key in a folder of the user's own, the least recently used of which go: compiled objects, and
kernels that hold them. What is found there runs.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import time
import warnings
from collections.abc import Iterable
from io import FileIO
from pathlib import Path

from collage_core.folders import others_may_write

__all__ = ["PrivateFiles"]

_STALE_S = 3600
"""Age of a temporary file whose writer must have been killed."""
_PUTS_PER_SWEEP = 200
_SHARE_UNSWEPT = 8
"""Of the most bytes: after so large a part nothing waits for the next sweep."""


class PrivateFiles:
    """In `folder`, the names ending in `suffix`; the least recently used go when they are more than
    `max_bytes`. kept: names of others that stay. A power cut may leave a file without its content: what is
    read must say itself whether it is whole.

    Several processes may share a folder: a file appears whole or not at all. A folder that cannot be written
    keeps nothing. Nor does one that is somebody else's or that others may write to, which is warned of.
    """

    def __init__(self, folder: Path, suffix: str, max_bytes: int, kept: Iterable[str] = ()) -> None:
        self._folder = folder
        self._suffix = suffix
        self._max_bytes = max_bytes
        self._kept = frozenset(kept)
        self._puts = 0
        self._unswept_bytes = 0
        self._warned = False

    def open(self, key: str) -> FileIO | None:
        """The file stored under `key` (a file name), to be read, if there is one: a regular one that nobody
        else may have written. It counts as used.
        """
        path = self._path(key)
        if not self._is_own():
            return None
        try:
            file = FileIO(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), closefd=True)
        except OSError:
            return None
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode) or others_may_write(facts):
            file.close()
            return None
        with contextlib.suppress(OSError):
            os.utime(file.fileno())
        return file

    def put(self, key: str, parts: Iterable[bytes | memoryview]) -> None:
        """Whatever is in the way (a full disk, say), there is no file of that key then."""
        parts = list(parts)
        self._unswept_bytes += sum(memoryview(part).nbytes for part in parts)
        with contextlib.suppress(OSError):
            if not self.made():
                return
            descriptor, temporary = tempfile.mkstemp(dir=self._folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.writelines(parts)
                os.replace(temporary, self._path(key))
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
        if self._puts % _PUTS_PER_SWEEP == 0 or self._unswept_bytes > self._max_bytes // _SHARE_UNSWEPT:
            self._sweep()
            self._unswept_bytes = 0
        self._puts += 1

    def remove(self, key: str) -> None:
        """What turned out to be damaged."""
        with contextlib.suppress(OSError):
            self._path(key).unlink()

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}{self._suffix}"

    def made(self) -> bool:
        """Whether the folder is there, or can be made, and is the user's own."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return self._is_own()

    def _is_own(self) -> bool:
        try:
            facts = self._folder.lstat()
        except OSError:
            return False
        own = stat.S_ISDIR(facts.st_mode) and not others_may_write(facts)
        if not own and not self._warned:
            self._warned = True
            warnings.warn(
                f"{self._folder} is not used: it is no folder, a link or somebody else's, or others may "
                "write to it (chmod go-w)",
                stacklevel=2,
            )
        return own

    def _sweep(self) -> None:
        found: list[tuple[float, int, Path]] = []
        with contextlib.suppress(OSError):
            for path in self._folder.iterdir():
                with contextlib.suppress(OSError):
                    facts = path.stat()
                    if path.suffix == self._suffix:
                        found.append((facts.st_mtime, facts.st_size, path))
                    elif path.name not in self._kept and time.time() - facts.st_mtime > _STALE_S:
                        path.unlink()
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self._max_bytes:
                break
            with contextlib.suppress(OSError):
                path.unlink()
                total -= size
