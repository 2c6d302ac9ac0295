"""Whether costs can be kept."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from collage_core.doctor.finding import Finding, Level

__all__ = ["cost_database"]

_LITTLE_BYTES, _TOO_LITTLE_BYTES = 1 << 30, 100 << 20
_ELSEWHERE = "name another with COLLAGE_HOME"


def cost_database(path: Path) -> list[Finding]:
    """Whether the database, or its folder that may not exist yet, can be written, and the space left."""
    try:
        folder = next((p for p in path.absolute().parents if p.exists()), Path("/"))
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0")
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(None, "it may not be written", str(path))
        free = shutil.disk_usage(folder).free
    except OSError as error:
        what = f"Costs cannot be kept in {path}: {error.strerror or error}."
        return [Finding(Level.PROBLEM, what, f"Make its folder writable, or {_ELSEWHERE}.")]
    what = f"{free / (1 << 30):.1f} GiB are free for costs in {folder}."
    if free >= _LITTLE_BYTES:
        return [Finding(Level.OK, what)]
    level = Level.PROBLEM if free < _TOO_LITTLE_BYTES else Level.WARNING
    return [Finding(level, what, f"Make room, or {_ELSEWHERE}.")]
