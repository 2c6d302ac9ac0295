"""What happens while requests are answered and better placements looked for, as a file of events."""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
from contextlib import suppress
from errno import ENXIO
from pathlib import Path
from typing import IO, Any

from collage_core.errors import CollageError

__all__ = ["EventLog", "warn_apart"]


def _unwaiting(path: str, flags: int) -> int:
    """An `opener`: who reads from a pipe, or from a terminal, is not waited for."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, 0o666)


def warn_apart(reason: str) -> None:
    """In a thread of its own: a warning may be an error, and whoever warns may hold locks."""
    with suppress(RuntimeError):  # at the end of the interpreter
        threading.Thread(target=warnings.warn, args=(reason,), daemon=True).start()


class EventLog:
    """A line of JSON for each: `t`, seconds of the monotonic clock when it was over, `event`, and facts.

    path: a file that begins anew, or a pipe that somebody reads from; None to keep nothing. May be written to
    by several threads. Where no more can be written, or a pipe is full, a warning says so, and nothing more
    is kept: requests come first. CollageError where it cannot be opened.
    """

    def __init__(self, path: str | Path | None) -> None:
        self._lock = threading.RLock()  # what is collected meanwhile may write, too
        self._file: IO[bytes] | None = None
        if path is not None:
            try:
                self._file = open(path, "wb", buffering=0, opener=_unwaiting)  # noqa: SIM115  (`close` does)
            except OSError as error:
                reason = "nobody reads from it" if error.errno == ENXIO else error.strerror or error
                raise CollageError(f"cannot write {path}: {reason}") from None

    @property
    def is_kept(self) -> bool:
        return self._file is not None

    def add(self, event: str, **facts: Any) -> None:
        """An event of now."""
        if self._file is not None:
            self.copy({"t": time.monotonic(), "event": event, **facts})

    def copy(self, event: dict[str, Any]) -> None:
        """An event of another process, with its time."""
        with self._lock:
            if self._file is None:
                return
            line = json.dumps(event).encode() + b"\n"
            try:
                while line:  # a full pipe, or a disk, may have taken a part of it
                    line = line[os.write(self._file.fileno(), line) :]
            except OSError as error:
                is_full = isinstance(error, BlockingIOError)
                why = "whoever reads them does not keep up" if is_full else error.strerror or error
                reason = f"{self._file.name}: no more events are kept: {why}"
                self._drop()
                warn_apart(reason)

    def close(self) -> None:
        """What is added later is kept nowhere."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # some file systems tell only now that something could not be written
                self._file.close()
            self._file = None
