"""Compiled kernels kept on disk, so that the next process need not compile them again."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from collage_core.private_files import PrivateFiles

__all__ = ["ObjectCache"]

_DIGEST_BYTES = hashlib.sha256().digest_size
_CLAIMS = "claims"
_MAX_BYTES = 512 << 20


class ObjectCache:
    """Compiled kernels by key in `folder` (`PrivateFiles`). One whose content is not what was written under
    its key counts as missing.
    """

    def __init__(self, folder: Path, max_bytes: int = _MAX_BYTES) -> None:
        self._folder = folder
        self._files = PrivateFiles(folder, ".object", max_bytes, [_CLAIMS])

    def get(self, key: str) -> bytes | None:
        """The object stored under `key` (a file name), if there is one."""
        if (file := self._files.open(key)) is None:
            return None
        with file:
            stored = file.readall()
        digest, data = stored[:_DIGEST_BYTES], stored[_DIGEST_BYTES:]
        if _digest(key, data) != digest:
            self._files.remove(key)
            return None
        return data

    def put(self, key: str, data: bytes) -> None:
        self._files.put(key, [_digest(key, data), data])

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
            if not self._files.made():
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


def _digest(key: str, data: bytes) -> bytes:
    """Of an object and where it belongs: under another key it would be another kernel."""
    return hashlib.sha256(key.encode() + b"\0" + data).digest()
