"""Which of a library's own ways to run a kernel was the fastest, kept on disk: the next process that builds
the same kernel does not time them again, and gets the same one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache

from collage_core.folders import user_folder
from collage_core.private_files import PrivateFiles
from collage_cuda.facts import facts

__all__ = ["Choices"]

_MOST_BYTES = 64 << 20
_SUFFIX = ".choice"
_MOST_BUILT_BYTES = 8 << 30
_BUILT_SUFFIX = ".built"


class Choices:
    """Of one library. library: its name and version, and whatever else its ways depend on beside the GPU.
    are_built: a choice is not a way's name, but what was built, weights and all. Those are kept apart: they
    may be large.
    """

    def __init__(self, library: Sequence[str], *, are_built: bool = False) -> None:
        self._files = _files(are_built)
        self._about = *library, *(f"{name}={value}" for name, value in sorted(facts().items()))

    def known(self, kernel: str) -> bytes | None:
        """What was kept for the kernel of that description; None if nothing was."""
        file = self._files.open(self._key(kernel))
        if file is None:
            return None
        with file:
            text = file.read()
        told, _, choice = text.partition(b"\n")
        # A power cut may have left a part of it.
        return choice if told == hashlib.sha256(choice).hexdigest().encode() else None

    def keep(self, kernel: str, choice: bytes) -> None:
        digest = hashlib.sha256(choice).hexdigest().encode()
        self._files.put(self._key(kernel), [digest, b"\n", choice])

    def forget(self, kernel: str) -> None:
        """What did not work after all."""
        self._files.remove(self._key(kernel))

    def _key(self, kernel: str) -> str:
        return hashlib.sha256("\0".join([*self._about, kernel]).encode()).hexdigest()[:32]


@cache
def _files(are_built: bool) -> PrivateFiles:
    folder = user_folder() / "cuda"
    if are_built:
        return PrivateFiles(folder / "built", _BUILT_SUFFIX, _MOST_BUILT_BYTES)
    return PrivateFiles(folder / "choices", _SUFFIX, _MOST_BYTES)
