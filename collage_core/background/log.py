"""What happens while requests are answered and better placements looked for, as a file of events."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import IO, Any

__all__ = ["EventLog"]


class EventLog:
    """A line of JSON for each: `t`, seconds of the monotonic clock when it was over, `event`, and facts.

    path: a new file; None to keep nothing. May be written to by several threads.
    """

    def __init__(self, path: str | Path | None) -> None:
        self._lock = threading.Lock()
        self._file: IO[str] | None = None
        if path is not None:
            self._file = Path(path).open("w", buffering=1, encoding="utf-8")  # noqa: SIM115  (`close` does)

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
            if self._file is not None:
                self._file.write(json.dumps(event) + "\n")

    def close(self) -> None:
        """What is added later is kept nowhere."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None
