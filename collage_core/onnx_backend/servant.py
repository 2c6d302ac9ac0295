"""A worker that is there whenever it is wanted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, TypeVarTuple, Unpack

from collage_core.costs.limits import candidate_limit_s, worker_memory_bytes
from collage_core.worker import Worker

__all__ = ["Servant"]

_R = TypeVar("_R")
_Ts = TypeVarTuple("_Ts")

_MOST_BYTES = 3 << 30
"""Resident memory beyond which a worker is replaced between two calls: libraries keep what they compile."""


class Servant:
    """A long-lived worker: started when it is first called, and anew after a call has ended it.

    environment: variables of its process. plugins: modules that bring backends besides the installed ones.
    Calls from several threads wait for each other.
    """

    def __init__(self, environment: Mapping[str, str], plugins: Sequence[str] = ()) -> None:
        self._environment = dict(environment)
        self._plugins = tuple(plugins)
        self._worker: Worker | None = None
        self._lock = threading.Lock()
        self._generation = 0

    def call(self, function: Callable[[Unpack[_Ts]], _R], *args: *_Ts, more_s: float = 0.0) -> _R:
        """`Worker.call` with the limit for one candidate (`costs.limits`) and `more_s` seconds.

        WorkerCrash or WorkerTimeout cost this call: the next has a new worker.
        """
        with self._lock:
            return self._living().call(function, *args, timeout_s=candidate_limit_s() + more_s)

    def ready(self) -> int:
        """Which worker is there, counted from 1, started if need be: what earlier ones held is lost."""
        with self._lock:
            self._living()
            return self._generation

    def refresh(self) -> None:
        """Replace a worker that has grown large; what it held is lost."""
        with self._lock:
            if self._worker is not None and self._worker.memory_bytes > min(
                _MOST_BYTES, worker_memory_bytes() // 2
            ):
                self._end()

    def close(self) -> None:
        """End the worker. The next call starts another."""
        with self._lock:
            self._end()

    def _living(self) -> Worker:
        if self._worker is None or not self._worker.alive:
            self._end()
            self._worker = Worker(
                self._environment, plugins=self._plugins, memory_limit_bytes=worker_memory_bytes()
            )
            self._generation += 1
        return self._worker

    def _end(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None
