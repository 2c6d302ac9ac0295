"""Whether a file that a person names may be written, asked before there is anything to write."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from collage_run.files import destination

from collage_core.errors import CollageError

__all__ = ["require_folder", "require_other", "require_replaceable", "require_writable"]


def require_writable(
    output: str, read: Mapping[str, str | os.PathLike[str]] = MappingProxyType({}), *, in_place: bool = False
) -> Path:
    """Where a file that a person names lies. CollageError where none can be written there, and as of
    `require_other`: better now than when there is something to write.

    in_place: whether a file that is there is written to, be it a device, and not another put in its place.
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
    if not in_place and path.exists() and not path.is_file():
        raise CollageError(f"cannot write {output}: it is no file")
    require_other(output, read)
    if in_place and path.exists():
        if not os.access(path, os.W_OK):
            raise CollageError(f"cannot write {output}: it may not be written to")
    elif not os.access(path.parent, os.W_OK):
        raise CollageError(f"cannot write {output}: its folder may not be written to")
    return path


def require_other(output: str, read: Mapping[str, str | os.PathLike[str]]) -> None:
    """CollageError where a file that a person names is one that is `read`, by what that is."""
    for what, file in read.items():
        if os.path.realpath(output) == os.path.realpath(file):
            raise CollageError(f"cannot write {output}: it is the {what}")


def require_replaceable(
    output: str,
    read: Mapping[str, str | os.PathLike[str]],
    begins: bytes,
    what: str,
    *,
    in_place: bool = False,
) -> None:
    """As `require_writable`. CollageError, too, where there is a file already that does not begin as what is
    to be written does, and is not empty.
    """
    path = require_writable(output, read, in_place=in_place)
    if path.exists() and not path.is_file():
        return  # a device or a pipe holds nothing that could be lost
    try:
        with path.open("rb") as file:
            found = file.read(len(begins))
    except FileNotFoundError:
        return
    except OSError as error:
        raise CollageError(f"cannot write {output}: {error.strerror or error}") from None
    if found not in (b"", begins):
        raise CollageError(f"cannot write {output}: there is a file that is no {what}")


def require_folder(what: str, file: str | os.PathLike[str]) -> None:
    """CollageError where a mistyped name would make folders. what: the file is, as a person said it."""
    if not Path(file).parent.is_dir():
        raise CollageError(f"{what} {file}: there is no such folder")
