"""The bundle in which a session keeps what it has found."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import BinaryIO

from collage_run.files import written

from collage_core.errors import CollageError

__all__ = ["Kept"]

_CHUNK_BYTES = 8 << 20


class Kept:
    """Holds what answers. What is found lies in a file of its own until it does, and is copied then: `output`
    may be on another file system.

    output: the bundle; None to keep nothing. One that is there already is not replaced by what answers first:
    nobody has compared the two. What takes over from that replaces it.
    """

    def __init__(self, output: str | Path | None) -> None:
        self._output = None if output is None else Path(output)
        self._may_replace = True
        with suppress(OSError):  # there is none
            self._may_replace = self._output is None or not self._output.stat().st_size
        self._found: BinaryIO | None = None
        """What answers and is not kept. Open, for its file goes with the process that has written it."""

    def answers(self, path: str) -> None:
        """What lies there answers now. It is not kept if it is gone, with the process that has found it."""
        self.close()
        if self._output is not None and path != str(self._output):
            with suppress(OSError):
                self._found = open(path, "rb")  # noqa: SIM115  (`close` does)
        self.forget(path)

    def forget(self, path: str) -> None:
        """Nobody needs what was found there any more."""
        if path != str(self._output):
            with suppress(OSError):
                Path(path).unlink()

    def allow(self) -> None:
        """What answers may replace what is there: it is better than what answered first, or nothing is."""
        self._may_replace = True

    def keep(self, working: Callable[[], AbstractContextManager[None]]) -> None:
        """What answers, if it is not kept and may be: as a whole or not at all. working: entered for each
        slice of it. CollageError where it cannot be written; it is not tried again.
        """
        if self._output is None or self._found is None or not self._may_replace:
            return
        self._found.seek(0)
        try:
            with written(self._output) as partial, partial.open("wb") as file:
                is_whole = False
                while not is_whole:
                    with working():
                        is_whole = not file.write(self._found.read(_CHUNK_BYTES))
        except CollageError:
            self.close()
            raise
        self.close()

    def close(self) -> None:
        """Let go of what is not kept."""
        found, self._found = self._found, None
        if found is not None:
            found.close()
