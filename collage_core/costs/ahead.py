"""Compiling kernels before they are measured, in several processes at once, while nothing is timed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from queue import SimpleQueue
from types import TracebackType
from typing import Self

from collage_core.costs.host import Host, hosted
from collage_core.costs.job import KernelItem, MeasureItem, MeasureJob
from collage_core.costs.lock import measuring_lock
from collage_core.errors import WorkerError
from collage_core.ir import Subgraph
from collage_core.plugins import backend_of
from collage_core.worker import WorkerTimeout

__all__ = ["AheadCompiler"]

_WORKER_BYTES = 1 << 30
"""The least share of the job's memory that a worker is started for: compilers are large."""
_WORTH = 8
"""Kernels for which another worker is started: about as many as one compiles until another has loaded its
compiler. Where so many came, more will.
"""
_BATCH = 32
"""Kernels of a batch, for each worker: measuring begins after some seconds."""
_MAX_HANGS = 3


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
        self._processes = self._affordable(processes or len(os.sched_getaffinity(0)))
        self._given_up = not self._is_wanted()
        self._asked = 0
        """Kernels so far: where they come a few at a time, they are many in the end."""
        self._hosts: list[Host] = []
        self._idle: SimpleQueue[Host] = SimpleQueue()
        self._hangs = 0

    def _affordable(self, processes: int) -> int:
        limit_bytes = self._job.memory_limit_bytes
        return processes if limit_bytes is None else max(1, min(processes, limit_bytes // _WORKER_BYTES))

    def _is_wanted(self) -> bool:
        try:
            return backend_of(self._job.backend, self._job.plugins).compiles_ahead
        except Exception:  # a plugin may raise anything; measuring tells what
            return False

    def in_batches(self, items: Sequence[MeasureItem]) -> Iterator[MeasureItem]:
        """The items in their order, compiled in batches before they are handed out: where there have been
        enough of them by now for two workers at least, or there are workers already.
        """
        self._asked += sum(isinstance(i, KernelItem) for i in items)
        count = min(self._processes, self._asked // _WORTH)
        if count > 1 and not self._given_up:
            self._add_hosts(count)
        size = _BATCH * len(self._hosts) or len(items) or 1
        for first in range(0, len(items), size):
            batch = items[first : first + size]
            if self._hosts:
                self.compile(batch)
            yield from batch

    def compile(self, items: Sequence[MeasureItem]) -> None:
        """Compile the kernels among the items. Holds the machine's measuring lock meanwhile."""
        kernels = [i for i in items if isinstance(i, KernelItem)]
        if not kernels or self._given_up:
            return
        if not self._hosts:
            self._add_hosts(self._processes)
        with measuring_lock(self._on_wait), ThreadPoolExecutor(len(self._hosts)) as pool:
            try:
                for done, _ in enumerate(as_completed([pool.submit(self._one, i) for i in kernels]), 1):
                    if self._on_done is not None:
                        self._on_done(done)
            except BaseException:  # Ctrl-C: who is compiling is not waited for
                self._give_up()
                raise
            for host in self._hosts:
                host.pause()

    def _add_hosts(self, count: int) -> None:
        """So that there are `count`, each with its share of the job's memory."""
        job = self._job
        limit_bytes = job.memory_limit_bytes and job.memory_limit_bytes // self._processes
        for _ in range(len(self._hosts), count):
            host = Host(job.graph_path, job.backend, job.target, job.plugins, limit_bytes)
            self._hosts.append(host)
            self._idle.put(host)

    def _one(self, item: KernelItem) -> None:
        """In a thread of the pool, of which there are as many as hosts."""
        host = self._idle.get()
        try:
            if not self._given_up:
                self._compiled(item, host)
        finally:
            self._idle.put(host)

    def _compiled(self, item: KernelItem, host: Host) -> None:
        try:
            worker = host.ready(self._job.item_limit_s)
        except WorkerError:
            self._give_up()  # nor will there be one for the next
            return
        try:
            worker.call(_compile, item, timeout_s=self._job.item_limit_s)
        except WorkerTimeout:
            self._hangs += 1
            if self._hangs >= _MAX_HANGS:
                self._give_up()
        except WorkerError:
            pass

    def _give_up(self) -> None:
        self._given_up = True
        for host in self._hosts:
            host.interrupt()

    def close(self) -> None:
        """End the workers. May be called twice."""
        for host in self._hosts:
            host.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _compile(item: KernelItem) -> None:
    here = hosted()
    here.backend.compile_ahead(Subgraph(here.graph, item.nodes, item.outputs), item.variant, here.target)
