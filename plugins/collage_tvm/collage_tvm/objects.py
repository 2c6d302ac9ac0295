"""Compiled kernels kept on disk, so that the next process need not compile them again."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
from pathlib import Path

__all__ = ["ObjectCache"]

_DIGEST_BYTES = hashlib.sha256().digest_size
_SUFFIX = ".object"
_MAX_BYTES = 512 << 20
_STALE_S = 3600
"""Age of a temporary file whose writer must have been killed."""
_PUTS_PER_SWEEP = 200


class ObjectCache:
    """Object files by key in `folder`; the least recently used go when they are more than `max_bytes`.

    Several processes may share a folder: a file appears whole or not at all, and one whose content is not
    what was written counts as missing. A folder that cannot be written is a cache that keeps nothing.
    """

    def __init__(self, folder: Path, max_bytes: int = _MAX_BYTES) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._puts = 0

    def get(self, key: str) -> bytes | None:
        """The object stored under `key` (a file name), if there is one."""
        path = self._path(key)
        try:
            stored = path.read_bytes()
        except OSError:
            return None
        digest, data = stored[:_DIGEST_BYTES], stored[_DIGEST_BYTES:]
        if hashlib.sha256(data).digest() != digest:
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return data

    def put(self, key: str, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=self._folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(hashlib.sha256(data).digest() + data)
                os.replace(temporary, self._path(key))
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
        if self._puts % _PUTS_PER_SWEEP == 0:
            self._sweep()
        self._puts += 1

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}{_SUFFIX}"

    def _sweep(self) -> None:
        kept: list[tuple[float, int, Path]] = []
        with contextlib.suppress(OSError):
            for path in self._folder.iterdir():
                with contextlib.suppress(OSError):
                    facts = path.stat()
                    if path.suffix == _SUFFIX:
                        kept.append((facts.st_mtime, facts.st_size, path))
                    elif time.time() - facts.st_mtime > _STALE_S:
                        path.unlink()
        total = sum(size for _, size, _ in kept)
        for _, size, path in sorted(kept):
            if total <= self._max_bytes:
                break
            with contextlib.suppress(OSError):
                path.unlink()
                total -= size
