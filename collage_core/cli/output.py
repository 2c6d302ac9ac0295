"""What commands print on standard output, and what becomes of what cannot be printed."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from collage_run.command import json_text
from collage_run.printable import printable

__all__ = ["Dispensable", "drop", "show"]


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
