"""Contexts of an executable, each run by one thread at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

from collage_core.errors import CollageError, StepError
from collage_core.formats import Array
from collage_core.runtime import Context, Executable
from collage_core.runtime.threads import OwnThreads

__all__ = ["Contexts"]

_Result = TypeVar("_Result")
_CLOSED = "this session is closed"


class Contexts:
    """As many as calls run beside each other in a session's threads: they are kept for the next ones."""

    def __init__(self, executable: Executable, threads: OwnThreads) -> None:
        """Run once on zeros, so that the first request is no slower, where these are valid inputs."""
        self.executable = executable
        self._threads: OwnThreads | None = threads
        self._free: list[Context] = []
        with suppress(StepError):  # a request tells its own error
            self.lend(Context.warm_up)

    def close(self) -> None:
        """Let go of kernels and buffers. A call that is running ends well; another one is refused."""
        self._threads = None
        self._free.clear()
        self.executable.close()

    def run(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> dict[str, Array]:
        """As `Context.run`, on one that nobody else runs. Returns what is valid of the outputs."""

        def run(context: Context) -> dict[str, Array]:
            context.run(inputs, outputs)
            return context.valid(outputs)

        return self.lend(run)

    def lend(self, work: Callable[[Context], _Result]) -> _Result:
        """What is done with one that nobody else runs. CollageError where they are closed."""
        threads = self._threads
        if threads is None:
            raise CollageError(_CLOSED)
        return threads.run(lambda: self._lent(work))

    def _lent(self, work: Callable[[Context], _Result]) -> _Result:
        if self._threads is None:  # while this waited
            raise CollageError(_CLOSED)
        try:
            context = self._free.pop()  # no lock: it would be held for ever in a fork
        except IndexError:
            context = self._further()
        try:
            done = work(context)
        except StepError:  # its device may have to be started again: see `Executable`
            raise
        except BaseException:
            self._keep(context)
            raise
        self._keep(context)
        return done

    def _further(self) -> Context:
        try:
            return self.executable.context()
        except Exception:
            if self._threads is None:  # meanwhile
                raise CollageError(_CLOSED) from None
            raise

    def _keep(self, context: Context) -> None:
        self._free.append(context)
        if self._threads is None:
            self._free.clear()
