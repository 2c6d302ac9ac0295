"""What optimises in the background, as a test wants it: it finds what it is told, and computes meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from collage_core.placement import Placement
from collage_core.worker import Worker

if TYPE_CHECKING:
    from collage_core import Background

__all__ = ["Told", "improve"]

_CRASH, _END, _PIDS = "crash", "end", "pids"


class Told:
    """A folder through which a test says what is found. What is in the option `output` lies in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, bundle: Path, placement: Placement, label: str = "found") -> None:
        """Bring a bundle forward as a better one."""
        event = {
            "event": "ready",
            "path": str(bundle),
            "digest": placement.digest,
            "label": label,
            "latency_ms": 1.0,
            "stage": "made up",
            "longest_s": 0.0,
        }
        _write(self.folder / f"{time.monotonic_ns()}.event", json.dumps(event))

    def refuse(self, reason: str) -> None:
        """Find something that cannot be opened."""
        _write(
            self.folder / f"{time.monotonic_ns()}.event", json.dumps({"event": "refused", "reason": reason})
        )

    def end(self) -> None:
        """Find nothing more."""
        _write(self.folder / _END, "")

    def crash(self) -> None:
        """Die."""
        _write(self.folder / _CRASH, "")

    @property
    def pids(self) -> list[int]:
        """Who computes, and who has started it; none before it does."""
        path = self.folder / _PIDS
        return [int(pid) for pid in path.read_text().split()] if path.exists() else []


def improve(source: Path, wanted: Background, threads: int | None, events: str) -> None:
    """In place of what `background.child` does."""
    folder = Path(str(wanted.output)).parent
    with Worker() as worker, open(events, "ab", buffering=0) as file:
        worker.call(_compute)
        _write(folder / _PIDS, f"{os.getpid()} {worker.pid}")
        is_over = False
        while not is_over:
            is_over = (folder / _END).exists()
            for path in sorted(folder.glob("*.event")):
                event = {"t": time.monotonic(), **json.loads(path.read_text())}
                path.unlink()
                if "path" in event:
                    found = Path(tempfile.gettempdir()) / path.with_suffix(".collage").name
                    shutil.copyfile(event["path"], found)  # whoever reads of it removes it
                    event["path"] = str(found)
                file.write(json.dumps(event).encode() + b"\n")
            if (folder / _CRASH).exists():
                os._exit(7)
            time.sleep(0.005)


def _compute() -> None:
    threading.Thread(target=_for_ever, daemon=True).start()


def _for_ever() -> None:
    while True:
        pass


def _write(path: Path, text: str) -> None:
    """Whole or not."""
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.rename(path)
