"""What commands print on standard output, and what becomes of what cannot be printed."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, TextIO

from collage_run.command import json_text
from collage_run.files import destination
from collage_run.printable import printable

from collage_core.errors import CollageError

__all__ = ["Dispensable", "drop", "require_other", "require_replaceable", "require_writable", "show"]


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


def drop(stream: TextIO) -> None:
    """From now on what is written to a file goes nowhere, or the interpreter would complain when it flushes
    at exit.
    """
    with suppress(OSError, ValueError):
        descriptor, nowhere = stream.fileno(), os.open(os.devnull, os.O_WRONLY)
        if nowhere != descriptor:  # which was closed
            os.dup2(nowhere, descriptor)
            os.close(nowhere)


class Dispensable:
    """A stream of text that may be lost, as progress: what cannot be written is dropped. Whatever else it is
    asked, the stream answers.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._has_lost = False

    def write(self, text: str) -> int:
        with self._dropped():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._dropped():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _dropped(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            if not self._has_lost:
                self._has_lost = True
                atexit.register(drop, self._stream)  # not before: a caller may have more to say


def show(report: Any, as_json: bool, as_text: Callable[[Any], str]) -> None:
    """Print a report: JSON values as they are, or what `as_text` makes of them, of printable characters.

    What JSON does not know is null (`collage_run.command.json_text`).
    """
    if as_json:
        print(json_text(report))
    else:
        print(printable(as_text(report)))
