"""How a call into a worker can fail."""

from __future__ import annotations

import signal

from collage_core.errors import CollageError, WorkerError

__all__ = ["RemoteError", "WorkerCrash", "WorkerTimeout", "exit_cause", "is_own"]

_EXCERPT_CHARACTERS = 400


class WorkerCrash(WorkerError):  # noqa: N818  (a public name that reads as what happened)
    """The worker process died during a call.

    cause: "killed by SIGSEGV (segmentation fault)", "exit code 3", or what the supervisor killed it for.
    output: the end of what it wrote to stdout and stderr. memory_limit_bytes: of which it used more; None for
    other causes.
    """

    def __init__(self, cause: str, output: str = "", memory_limit_bytes: int | None = None) -> None:
        self.cause = cause
        self.output = output
        self.memory_limit_bytes = memory_limit_bytes
        said = _excerpt(output)
        super().__init__(f"the worker process died: {cause}" + (f"; it said: {said}" if said else ""))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.cause, self.output, self.memory_limit_bytes)


class WorkerTimeout(WorkerError):  # noqa: N818
    """A call took longer than it was given; the worker has been killed."""

    def __init__(self, timeout_s: float, output: str = "") -> None:
        self.timeout_s = timeout_s
        self.output = output
        said = _excerpt(output)
        super().__init__(f"no answer within {timeout_s:g} s" + (f"; it said: {said}" if said else ""))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.timeout_s, self.output)


class RemoteError(WorkerError):
    """The function called in the worker raised; the worker lives on.

    type_name, message, traceback: of that exception, as text, because its class may not be importable here.
    """

    def __init__(self, type_name: str, message: str, traceback: str) -> None:
        self.type_name = type_name
        self.message = message
        self.traceback = traceback
        # Collage's own errors say all that a person needs.
        said = f"{type_name}: {message}" if message else type_name
        super().__init__(message if message and is_own(type_name) else said)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.type_name, self.message, self.traceback)


def is_own(type_name: str) -> bool:
    """Whether that is one of Collage's own exceptions, by its name with its module's."""
    return type_name.rpartition(".")[0] in (WorkerError.__module__, CollageError.__module__)


def exit_cause(returncode: int) -> str:
    """A return code as `subprocess` gives it (negative for signals), in words."""
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    meaning = signal.strsignal(-returncode)
    return f"killed by {name}" + (f" ({meaning.lower()})" if meaning else "")


def _excerpt(output: str) -> str:
    """The lines of a crashed process's output that say why: the last before the interpreter's crash dump, and
    its innermost frame.
    """
    before, _, dump = output.partition("Fatal Python error: ")
    said = [line.strip() for line in before.splitlines() if line.strip()][-3:]
    frame = next((line.strip() for line in dump.splitlines() if line.startswith("  File ")), "")
    return " | ".join([*said, *([frame] if frame else [])])[-_EXCERPT_CHARACTERS:]
