"""Contexts of an executable, lent to one call at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

from collage_core.errors import CollageError, StepError
from collage_core.formats import Array
from collage_core.runtime import Context, Executable

__all__ = ["Contexts"]


class Contexts:
    """As many as calls run beside each other: they are kept for the next ones. most: of calls that run at a
    time, the others wait; None for no limit.
    """

    def __init__(self, executable: Executable, most: int | None = None) -> None:
        """Run once on zeros, so that the first request is no slower."""
        self.executable = executable
        self._seats = nullcontext() if most is None else threading.BoundedSemaphore(most)
        self._lock = threading.Lock()
        self._is_closed = False
        first = executable.context()
        first.warm_up()
        self._free = [first]

    def close(self) -> None:
        """Let go of kernels and buffers. A call that is running ends well; another one is refused."""
        with self._lock:
            self._is_closed = True
            self._free.clear()
            self.executable.close()

    def run(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> dict[str, Array]:
        """As `Context.run`, on one that nobody else runs. Returns what is valid of the outputs."""
        with self.lent() as context:
            context.run(inputs, outputs)
            return context.valid(outputs)

    @contextmanager
    def lent(self) -> Iterator[Context]:
        """CollageError where it is closed."""
        with self._seats:
            with self._lock:
                if self._is_closed:
                    raise CollageError("this session is closed")
                context = self._free.pop() if self._free else None
            context = context or self.executable.context()
            try:
                yield context
            except StepError:  # its device may have to be started again: see `Executable`
                raise
            except BaseException:
                self._keep(context)
                raise
            self._keep(context)

    def _keep(self, context: Context) -> None:
        with self._lock:
            if not self._is_closed:
                self._free.append(context)
