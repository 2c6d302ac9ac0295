"""Every exception that Collage raises on purpose, and the value that carries a refusal.

A `CollageError` is a mistake or a limit that the user can act on: the command line prints its message as one
line, without a traceback. Everything else that escapes is a bug.
"""

from __future__ import annotations

from dataclasses import dataclass

from collage_core.printable import printable

__all__ = [
    "BackendError",
    "BackendUnavailableError",
    "BundleError",
    "CollageError",
    "CostDatabaseError",
    "DeclinedError",
    "DisagreementError",
    "InputError",
    "ModelError",
    "PlacementError",
    "Refusal",
    "StepError",
    "UnknownBackendError",
    "WorkerError",
]


class CollageError(Exception):
    """Base of all errors that Collage raises on purpose. As text it is one line of printable characters,
    whatever the names in it that a file has given: a terminal would obey some.
    """

    def __str__(self) -> str:
        return printable(" ".join(super().__str__().splitlines()))


class ModelError(CollageError):
    """The model cannot be read, or says something that cannot be placed."""


class DisagreementError(CollageError):
    """A second opinion on the model's answers is another one; nothing was placed."""


class InputError(CollageError):
    """An input given at run time has the wrong name, shape or dtype."""


class UnknownBackendError(CollageError):
    """A backend was named that is not installed; the message lists those that are."""

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(f"unknown backend {name!r}; installed: {', '.join(sorted(known)) or 'none'}")


class BackendError(CollageError):
    """A backend failed to build or run something it had offered."""


class StepError(BackendError):
    """A step of an executable failed when it ran; `step` is its number in the plan."""

    def __init__(self, step: int, message: str) -> None:
        self.step = step
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.step, str(self))


class DeclinedError(BackendError):
    """A backend does not build a variant after all, as its library has told it; it has built nothing."""


class BackendUnavailableError(BackendError):
    """A backend's library cannot be loaded: nothing is said about what was to be built with it."""


class WorkerError(CollageError):
    """A worker process died, hung or could not be started; the message says which."""


class PlacementError(CollageError):
    """No placement covers the graph, or a given placement is not legal."""


class BundleError(CollageError):
    """A saved bundle cannot be read here."""


class CostDatabaseError(CollageError):
    """The cost database cannot be opened or written."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something was declined. Falsy, so that `if not backend.variants(...)` reads naturally.

    `reason` is one sentence for a person; `node` is the name of the node it is about, where there is one.
    """

    reason: str
    node: str | None = None

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"{self.node}: {self.reason}" if self.node else self.reason
