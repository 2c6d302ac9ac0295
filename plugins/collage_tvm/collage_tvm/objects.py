"""Compiled kernels kept on disk, so that the next process need not compile them again."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from collage_core.folders import others_may_write

__all__ = ["ObjectCache"]

_DIGEST_BYTES = hashlib.sha256().digest_size
_SUFFIX = ".object"
_CLAIMS = "claims"
_MAX_BYTES = 512 << 20
_STALE_S = 3600
"""Age of a temporary file whose writer must have been killed."""
_PUTS_PER_SWEEP = 200


class ObjectCache:
    """Object files by key in `folder`; the least recently used go when they are more than `max_bytes`.

    Several processes may share a folder: a file appears whole or not at all, and one whose content is not
    what was written under its key counts as missing. A folder that cannot be written is a cache that keeps
    nothing; so is one that is somebody else's or that others may write to, which is warned of once: what is
    found here runs.
    """

    def __init__(self, folder: Path, max_bytes: int = _MAX_BYTES) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._puts = 0
        self._warned = False

    def get(self, key: str) -> bytes | None:
        """The object stored under `key` (a file name), if there is one."""
        path = self._path(key)
        if not self._is_own() or (stored := _own_file(path)) is None:
            return None
        digest, data = stored[:_DIGEST_BYTES], stored[_DIGEST_BYTES:]
        if _digest(key, data) != digest:
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return data

    def put(self, key: str, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not self._is_own():
                return
            descriptor, temporary = tempfile.mkstemp(dir=self._folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(_digest(key, data) + data)
                os.replace(temporary, self._path(key))
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
        if self._puts % _PUTS_PER_SWEEP == 0:
            self._sweep()
        self._puts += 1

    @contextlib.contextmanager
    def claimed(self, key: str) -> Iterator[bool]:
        """Whether this process is to make the object of `key` (hexadecimal digits): not if another one has
        claimed it, nor where it could not be kept. The claim ends with the context, or the process.
        """
        descriptor = self._claim(key)
        try:
            yield descriptor is not None
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _claim(self, key: str) -> int | None:
        """A descriptor that holds the claim: a lock on the byte of one file that the key names. So there is
        no file for each key, which somebody would have to remove."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not self._is_own():
                return None
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
            descriptor = os.open(self._folder / _CLAIMS, flags, 0o600)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, int(key[:15], 16))
            except OSError:
                os.close(descriptor)
                return None
            return descriptor
        return None

    def _is_own(self) -> bool:
        try:
            facts = self._folder.lstat()
        except OSError:
            return False
        own = stat.S_ISDIR(facts.st_mode) and not others_may_write(facts)
        if not own and not self._warned:
            self._warned = True
            warnings.warn(
                f"{self._folder} is not used: it is a link or somebody else's, or others may write to it "
                "(chmod go-w)",
                stacklevel=2,
            )
        return own

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
                    elif path.name != _CLAIMS and time.time() - facts.st_mtime > _STALE_S:
                        path.unlink()
        total = sum(size for _, size, _ in kept)
        for _, size, path in sorted(kept):
            if total <= self._max_bytes:
                break
            with contextlib.suppress(OSError):
                path.unlink()
                total -= size


def _digest(key: str, data: bytes) -> bytes:
    """Of an object and where it belongs: under another key it would be another kernel."""
    return hashlib.sha256(key.encode() + b"\0" + data).digest()


def _own_file(path: Path) -> bytes | None:
    """A regular file's content; None for links, pipes, and what others may write to."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(file.fileno())
        return file.read() if stat.S_ISREG(facts.st_mode) and not others_may_write(facts) else None
