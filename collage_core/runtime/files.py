"""Writing files as a whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["replacing"]


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A path beside `path` to write to. What is there takes the place of `path` when the block ends well;
    after an error nothing of it is left, and `path` is as it was. OSError as from writing.

    Devices and pipes are no files to replace: they are written to directly.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        yield path
        return
    path = path.resolve()  # a link stays a link
    partial = path.with_name(f".{path.name[:200]}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
