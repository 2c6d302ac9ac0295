"""Every exception that Collage raises on purpose, and the value that carries a refusal.

A `CollageError` is a mistake or a limit that the user can act on: the command line prints its message as one
line, without a traceback. Everything else that escapes is a bug.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

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
    "staying_alive",
]


class Terminated(SystemExit):
    """This process was asked to end (SIGTERM, SIGHUP): no plugin's doing, whatever it was at."""


@contextmanager
def staying_alive() -> Iterator[None]:
    """Around a call of somebody else's code: where that would end this process (`sys.exit`), it is a
    BackendError, and costs only what was asked.
    """
    try:
        yield
    except Terminated:
        raise
    except SystemExit as error:
        raise BackendError(f"it would end the process: sys.exit({error.code!r})") from None


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
    `is_fault`: whether it is no answer, but somebody's failure to give one.
    As a condition it raises TypeError: whichever truth it had, `if refusal := check()` or
    `if not variants(...)` would be right for one of its uses and silently wrong for the other.
    """

    reason: str
    node: str | None = None
    is_fault: bool = field(default=False, kw_only=True)

    def __bool__(self) -> bool:
        raise TypeError(f"a Refusal is no condition; ask isinstance(..., Refusal). It says: {self}")

    def __str__(self) -> str:
        return f"{self.node}: {self.reason}" if self.node else self.reason
