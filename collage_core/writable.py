"""Whether a file that a person names may be written, asked before there is anything to write."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from collage_run.files import destination

from collage_core.errors import CollageError

__all__ = ["require_other", "require_replaceable", "require_writable"]


def require_writable(output: str, read: Mapping[str, str | os.PathLike[str]] = MappingProxyType({})) -> Path:
    """Where a file that a person names lies. CollageError where none can be written there, and as of
    `require_other`: better now than when there is something to write.
    """
    if not output:
        raise CollageError("cannot write the file: its name is empty")
    try:
        path = destination(output)
    except OSError as error:
        raise CollageError(f"cannot write {output}: {error.strerror or error}") from None
    if not path.parent.is_dir():
        raise CollageError(f"cannot write {output}: there is no such folder")
    if path.is_dir():
        raise CollageError(f"cannot write {output}: it is a folder")
    if path.exists() and not path.is_file():
        raise CollageError(f"cannot write {output}: it is no file")
    require_other(output, read)
    if not os.access(path.parent, os.W_OK):
        raise CollageError(f"cannot write {output}: its folder may not be written to")
    return path


def require_other(output: str, read: Mapping[str, str | os.PathLike[str]]) -> None:
    """CollageError where a file that a person names is one that is `read`, by what that is."""
    for what, file in read.items():
        if os.path.realpath(output) == os.path.realpath(file):
            raise CollageError(f"cannot write {output}: it is the {what}")


def require_replaceable(path: Path, output: str, begins: bytes, what: str) -> None:
    """CollageError where there is a file already that does not begin as what is to be written does, and is
    not empty. output: as a person named it.
    """
    try:
        found = path.read_bytes()[: len(begins)] if path.exists() else b""
    except OSError as error:
        raise CollageError(f"cannot write {output}: {error.strerror or error}") from None
    if found not in (b"", begins):
        raise CollageError(f"cannot write {output}: there is a file that is no {what}")
