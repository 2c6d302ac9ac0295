"""Compiling kernels before they are measured, in several processes at once, while nothing is timed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Self

from collage_core.backend import Backend
from collage_core.costs.job import KernelItem, MeasureItem, MeasureJob
from collage_core.costs.lock import measuring_lock
from collage_core.device import Target
from collage_core.errors import WorkerError
from collage_core.ir import Graph, Subgraph, load_stored
from collage_core.plugins import backend_of, default_registry
from collage_core.worker import Worker, WorkerTimeout, child_state

__all__ = ["AheadCompiler"]

_WORKER_BYTES = 1 << 30
"""The least share of the job's memory that a worker is started for: compilers are large."""
_WORTH = 24
"""Kernels for which another worker is started: until it has loaded a compiler, the others have compiled about
so many."""
_BATCH = 32
"""Kernels of a batch, for each worker: measuring begins after some seconds."""
_OPEN_LIMIT_S = 60.0
_MAX_HANGS = 3
_SESSION = "compiling ahead"


class AheadCompiler:
    """Has a job's backend compile kernels (`Backend.compile_ahead`), each in whichever worker is idle.

    An item that raises, crashes or hangs costs itself and nothing is told of it: measuring it gives the
    reason. Workers serve until `close`. While nothing is compiled they are stopped (SIGSTOP).

    processes: how many at most; by default as many as this process may use processors. on_wait: see
    `measuring_lock`. on_done: called in the caller's thread after each item, with how many of those that
    `compile` was given are done.
    """

    def __init__(
        self,
        job: MeasureJob,
        processes: int | None = None,
        on_wait: Callable[[str], object] | None = None,
        on_done: Callable[[int], object] | None = None,
    ) -> None:
        self._job = job
        self._on_wait = on_wait
        self._on_done = on_done
        self._environment: dict[str, str] = {}
        self._processes = self._affordable(processes or len(os.sched_getaffinity(0)))
        self._given_up = not self._is_wanted()
        self._seats: list[_Seat] = []
        self._idle: SimpleQueue[_Seat] = SimpleQueue()
        self._hangs = 0

    def _affordable(self, processes: int) -> int:
        limit_bytes = self._job.memory_limit_bytes
        return processes if limit_bytes is None else max(1, min(processes, limit_bytes // _WORKER_BYTES))

    def _is_wanted(self) -> bool:
        try:
            backend = backend_of(self._job.backend, self._job.plugins)
            self._environment.update(backend.environment(self._job.target))
            return backend.compiles_ahead
        except Exception:  # a plugin may raise anything; measuring tells what
            return False

    def in_batches(self, items: Sequence[MeasureItem]) -> Iterator[MeasureItem]:
        """The items in their order, compiled in batches before they are handed out: where there are enough of
        them for two workers at least, or there are workers already.
        """
        count = min(self._processes, sum(isinstance(i, KernelItem) for i in items) // _WORTH)
        if count > 1 and not self._given_up:
            self._add_seats(count)
        size = _BATCH * len(self._seats) or len(items) or 1
        for first in range(0, len(items), size):
            batch = items[first : first + size]
            if self._seats:
                self.compile(batch)
            yield from batch

    def compile(self, items: Sequence[MeasureItem]) -> None:
        """Compile the kernels among the items. Holds the machine's measuring lock meanwhile."""
        kernels = [i for i in items if isinstance(i, KernelItem)]
        if not kernels or self._given_up:
            return
        if not self._seats:
            self._add_seats(self._processes)
        with measuring_lock(self._on_wait), ThreadPoolExecutor(len(self._seats)) as pool:
            try:
                for done, _ in enumerate(as_completed([pool.submit(self._one, i) for i in kernels]), 1):
                    if self._on_done is not None:
                        self._on_done(done)
            except BaseException:  # Ctrl-C: who is compiling is not waited for
                self._give_up()
                raise
            for seat in self._seats:
                seat.rest()

    def _add_seats(self, count: int) -> None:
        """So that there are `count`."""
        for _ in range(len(self._seats), count):
            seat = _Seat(self._job, self._environment, self._processes)
            self._seats.append(seat)
            self._idle.put(seat)

    def _one(self, item: KernelItem) -> None:
        """In a thread of the pool, of which there are as many as seats."""
        seat = self._idle.get()
        try:
            if not self._given_up:
                seat.compile(item)
        except _CannotOpen:
            self._give_up()  # nor will the next one
        except WorkerTimeout:
            self._hangs += 1
            if self._hangs >= _MAX_HANGS:
                self._give_up()
        except WorkerError:
            pass
        finally:
            self._idle.put(seat)

    def _give_up(self) -> None:
        self._given_up = True
        for seat in self._seats:
            seat.interrupt()

    def close(self) -> None:
        """End the workers. May be called twice."""
        for seat in self._seats:
            seat.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _CannotOpen(WorkerError):  # noqa: N818  (what happened, as `WorkerCrash`)
    """There is no worker in which the backend could be asked."""


class _Seat:
    """A worker, and another one after it has died. For one thread at a time, `interrupt` aside."""

    def __init__(self, job: MeasureJob, environment: Mapping[str, str], shares: int) -> None:
        """shares: among how many the job's memory is divided."""
        self._job = job
        self._environment = environment
        self._memory_limit_bytes = job.memory_limit_bytes and job.memory_limit_bytes // shares
        self._worker: Worker | None = None
        self._interrupted = False

    def compile(self, item: KernelItem) -> None:
        worker = self._ready()
        worker.resume()
        worker.call(_compile, item, timeout_s=self._job.item_limit_s)

    def _ready(self) -> Worker:
        if self._worker is not None and self._worker.alive:
            return self._worker
        job = self._job
        try:
            self._worker = Worker(
                self._environment, plugins=job.plugins, memory_limit_bytes=self._memory_limit_bytes
            )
            if self._interrupted:  # before there was anything to interrupt
                self._worker.kill()
            limit_s = max(job.item_limit_s, _OPEN_LIMIT_S)
            self._worker.call(_open, job.graph_path, job.backend, job.target, timeout_s=limit_s)
        except WorkerError as error:
            raise _CannotOpen(str(error)) from error
        return self._worker

    def rest(self) -> None:
        """Nothing of it is to run while something is timed."""
        if self._worker is not None and self._worker.alive:
            self._worker.pause()

    def interrupt(self) -> None:
        self._interrupted = True
        if self._worker is not None:
            self._worker.interrupt()

    def close(self) -> None:
        if self._worker is not None:
            self._worker.kill()


def _open(graph_path: Path, backend: str, target: Target) -> None:
    child_state[_SESSION] = load_stored(graph_path), default_registry().backend(backend), target


def _compile(item: KernelItem) -> None:
    session: tuple[Graph, Backend, Target] = child_state[_SESSION]
    graph, backend, target = session
    backend.compile_ahead(Subgraph(graph, item.nodes, item.outputs), item.variant, target)
