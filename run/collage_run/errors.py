"""Errors of what runs. The others are in `collage_core.errors`, which has these, too.

A `CollageError` is a mistake or a limit that the user can act on: the command line prints its message as one
line, without a traceback. Everything else that escapes is a bug.
"""

from __future__ import annotations

import signal
from traceback import walk_tb

from collage_run.printable import printable

__all__ = [
    "BackendError",
    "BackendUnavailableError",
    "BundleError",
    "CollageError",
    "InputError",
    "OtherTargetError",
    "StepError",
    "is_of_a_handler",
]


class CollageError(Exception):
    """Base of all errors that Collage raises on purpose. As text it is one line of printable characters,
    whatever the names in it that a file has given: a terminal would obey some.
    """

    def __str__(self) -> str:
        return printable(" ".join(super().__str__().splitlines()))


class InputError(CollageError):
    """An input given at run time has the wrong name, shape or dtype."""


class BackendError(CollageError):
    """A backend failed to build or run something it had offered."""


def is_of_a_handler(error: BaseException) -> bool:
    """Whether a signal's handler has raised it: it is meant for whoever has set that."""
    handlers = (signal.getsignal(number) for number in signal.valid_signals())
    codes = {getattr(getattr(h, "__func__", h), "__code__", None) for h in handlers} - {None}
    return any(frame.f_code in codes for frame, _ in walk_tb(error.__traceback__))


class StepError(BackendError):
    """A step of an executable failed when it ran; `step` is its number among the program's calls."""

    def __init__(self, step: int, message: str) -> None:
        self.step = step
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.step, str(self))


class BackendUnavailableError(BackendError):
    """A backend's library cannot be loaded: nothing is said about what was to be built with it."""


class BundleError(CollageError):
    """A saved bundle cannot be read here."""


class OtherTargetError(BundleError):
    """The machine code that a bundle brings is for another processor than this one, or for another number of
    threads.
    """
