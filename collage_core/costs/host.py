"""A backend beside a stored graph, in a worker: where it is asked, compiles ahead, is measured and tunes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar, TypeVarTuple, Unpack

from collage_core.backend import Backend, process_environment
from collage_core.errors import Refusal, WorkerError, staying_alive
from collage_core.ir import Graph, Subgraph, load_stored
from collage_core.plugins import backend_of, default_registry
from collage_core.target import Target
from collage_core.worker import Worker, child_state

__all__ = ["OPEN_LIMIT_S", "Host", "Hosted", "hosted", "named_variables"]

OPEN_LIMIT_S = 60.0
"""At least: starting a process and loading a library is no candidate's fault."""
_HOSTED = "hosted"

_Answer = TypeVar("_Answer")
_Arguments = TypeVarTuple("_Arguments")


def named_variables(backends: Sequence[Backend], target: Target) -> dict[str, str]:
    """What a process needs in which the backends run. WorkerError where one fails to say so, or says what no
    process can be given.
    """
    try:
        with staying_alive():
            variables = process_environment(backends, target)
        for name, value in variables.items():
            if not name or "=" in name or "\0" in name + value:
                raise ValueError(f"{name!r} cannot be {value!r}")
    except Exception as error:  # a plugin may raise anything; it costs this backend
        what = f"{type(error).__name__}: {error}"
        raise WorkerError(f"it failed to name its environment variables: {what}") from None
    return variables


@dataclass(frozen=True, slots=True)
class Hosted:
    """What a worker has loaded."""

    graph: Graph
    backend: Backend
    target: Target

    @classmethod
    def opened(cls, graph_path: Path, backend: str, target: Target) -> Hosted:
        """graph_path: folder of `ir.save_stored`."""
        return cls(load_stored(graph_path), default_registry().backend(backend), target)

    def supported(self, groups: Sequence[Subgraph]) -> list[Refusal | None]:
        """As `Backend.supported`. ValueError where it does not answer about each, TypeError for no answer."""
        answers = list(self.backend.supported(groups, self.target))
        if len(answers) != len(groups):
            raise ValueError(f"supported gave {len(answers)} answers about {len(groups)} groups")
        if odd := [a for a in answers if not isinstance(a, Refusal | None)]:
            raise TypeError(f"supported returned {odd[0]!r}, which is no Refusal")
        return answers


def hosted() -> Hosted:
    """What the worker in which this runs has loaded."""
    found: Hosted = child_state[_HOSTED]
    return found


class Host:
    """Starts the worker when it is first needed, and another one after it has died. For one thread at a time,
    `interrupt` aside.

    graph_path: folder of `ir.save_stored`. plugins: modules that bring backends besides the installed
    packages. memory_limit_bytes: resident memory of the worker. UnknownBackendError lists the known ones.
    """

    def __init__(
        self,
        graph_path: Path,
        backend: str,
        target: Target,
        plugins: Sequence[str] = (),
        memory_limit_bytes: int | None = None,
    ) -> None:
        self._backend = backend_of(backend, plugins)
        self._loaded = graph_path, backend, target
        self._plugins = tuple(plugins)
        self._memory_limit_bytes = memory_limit_bytes
        self._worker: Worker | None = None
        self._interrupted = False

    @property
    def alive(self) -> bool:
        """Whether the next call goes to the worker that is there."""
        return self._worker is not None and self._worker.alive

    def ready(self, limit_s: float) -> Worker:
        """A worker that goes on and has loaded all. limit_s: for that, where it is more than usual.

        WorkerError where there is none to be had.
        """
        if self._worker is not None and self._worker.alive:
            self._worker.resume()
            return self._worker
        _, _, target = self._loaded
        variables = named_variables([self._backend], target)
        self._worker = Worker(variables, plugins=self._plugins, memory_limit_bytes=self._memory_limit_bytes)
        if self._interrupted:  # before there was anything to interrupt
            self._worker.kill()
        try:
            self._worker.call(_open, *self._loaded, timeout_s=max(limit_s, OPEN_LIMIT_S))
        except BaseException:
            self.kill()
            raise
        return self._worker

    def call(
        self, function: Callable[[Unpack[_Arguments]], _Answer], *args: *_Arguments, timeout_s: float
    ) -> _Answer:
        """In a worker that is ready. WorkerError as of `Worker.call`, and where there is none."""
        return self.ready(timeout_s).call(function, *args, timeout_s=timeout_s)

    def pause(self) -> None:
        """Nothing of it runs until the next call."""
        if self._worker is not None and self._worker.alive:
            self._worker.pause()

    def interrupt(self) -> None:
        """From another thread: what it is at fails, and whatever it is asked for then."""
        self._interrupted = True
        if (worker := self._worker) is not None:
            worker.interrupt()

    def stop(self) -> None:
        """Let the worker end; the next call starts another one."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def kill(self) -> None:
        """The same at once, with what it has started."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def _open(graph_path: Path, backend: str, target: Target) -> None:
    child_state[_HOSTED] = Hosted.opened(graph_path, backend, target)
