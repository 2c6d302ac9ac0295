"""Every exception that Collage raises on purpose, and the value that carries a refusal.

A `CollageError` is a mistake or a limit that the user can act on: the command line prints its message as one
line, without a traceback. Everything else that escapes is a bug.
"""

from __future__ import annotations

from dataclasses import dataclass

from collage_run.errors import (
    BackendError,
    BackendUnavailableError,
    BundleError,
    CollageError,
    InputError,
    OtherTargetError,
    StepError,
)

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
    "OtherTargetError",
    "PlacementError",
    "Refusal",
    "StepError",
    "Terminated",
    "UnknownBackendError",
    "WorkerError",
]


class Terminated(SystemExit):
    """This process was asked to end (SIGTERM): no plugin's doing, whatever it was at."""


class ModelError(CollageError):
    """The model cannot be read, or says something that cannot be placed."""


class DisagreementError(CollageError):
    """A second opinion on the model's answers is another one; nothing was placed."""


class UnknownBackendError(CollageError):
    """A backend was named that is not installed; the message lists those that are. failed: what else to tell,
    of plugins that failed.
    """

    def __init__(self, name: str, known: list[str], failed: str = "") -> None:
        super().__init__(f"unknown backend {name!r}; installed: {', '.join(sorted(known)) or 'none'}{failed}")


class DeclinedError(BackendError):
    """A backend does not build a variant after all, as its library has told it; it has built nothing."""


class WorkerError(CollageError):
    """A worker process died, hung or could not be started; the message says which."""


class PlacementError(CollageError):
    """No placement covers the graph, or a given placement is not legal."""


class CostDatabaseError(CollageError):
    """The cost database cannot be opened or written."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something was declined; told from an answer by `isinstance`.

    `reason` is one sentence for a person; `node` is the name of the node it is about, where there is one.
    As a condition it raises TypeError: whichever truth it had, `if refusal := check()` or
    `if not variants(...)` would be right for one of its uses and silently wrong for the other.
    """

    reason: str
    node: str | None = None

    def __bool__(self) -> bool:
        raise TypeError(f"a Refusal is no condition; ask isinstance(..., Refusal). It says: {self}")

    def __str__(self) -> str:
        return f"{self.node}: {self.reason}" if self.node else self.reason
