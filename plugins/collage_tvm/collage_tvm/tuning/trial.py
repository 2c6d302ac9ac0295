"""One schedule compiled and timed, in a process of its own: what MetaSchedule comes up with may crash."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from collage_core.costs import Policy, time_bound
from collage_core.errors import WorkerError
from collage_core.formats import empty, plain
from collage_core.target import Target
from collage_core.worker import Worker, child_state

__all__ = ["Trials"]

_COMPILE_LIMIT_S = 30.0
_RUN_LIMIT_S = 10.0
_POLICY = Policy(warmup_runs=1, min_runs=5, max_runs=30, target_relative_spread=0.02, max_seconds=0.1)
"""The caches stay hot: core measures what is found as executables run it."""

Shapes = Sequence[tuple[int, ...]]


class Trials:
    """Workers that compile side by side, one for each thread of the target, and then time one after the
    other.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._workers: list[Worker | None] = [None] * target.threads
        self._pool = ThreadPoolExecutor(target.threads)

    def run(self, schedules: Sequence[tuple[str, Shapes]]) -> Iterator[float | str]:
        """For each scheduled module (TVM's JSON) of a function over float32 arrays of these shapes its time
        in seconds, or why there is none; each as soon as it is known.
        """
        count = len(self._workers)
        for first in range(0, len(schedules), count):
            batch = schedules[first : first + count]
            modules = [module for module, _ in batch]
            faults = list(self._pool.map(self._compile, range(count), modules))
            for index, ((_, shapes), fault) in enumerate(zip(batch, faults, strict=True)):
                yield fault or self._time(index, shapes)

    def _compile(self, index: int, module: str) -> str | None:
        try:
            worker = self._workers[index]
            if worker is None or not worker.alive:
                worker = self._workers[index] = Worker()
            worker.call(_compile, module, self._target, timeout_s=_COMPILE_LIMIT_S)
        except WorkerError as error:
            return str(error)
        return None

    def _time(self, index: int, shapes: Shapes) -> float | str:
        worker = self._workers[index]
        assert worker is not None
        try:
            return worker.call(_time, shapes, timeout_s=_RUN_LIMIT_S)
        except WorkerError as error:
            return str(error)

    def close(self) -> None:
        for worker in self._workers:
            if worker is not None:
                worker.kill()
        self._workers = [None] * len(self._workers)
        self._pool.shutdown()


_FUNCTION = "compiled function to time"


def _compile(module: str, target: Target) -> None:
    import tvm

    from collage_tvm.tuning.kernel import function_of_module

    child_state[_FUNCTION] = function_of_module(tvm.ir.load_json(module), target).compiled(keep=False).load()


def _time(shapes: Shapes) -> float:
    rng = np.random.default_rng(0)
    arrays = [empty(shape, plain("float32", shape)) for shape in shapes]
    for array in arrays:
        array[...] = rng.standard_normal(array.shape, np.float32)
    pointers = [a.ctypes.data_as(ctypes.c_void_p) for a in arrays]
    # The fastest run, not the median: others on the machine shall not lead the search astray.
    return min(time_bound(partial(child_state[_FUNCTION], *pointers), _POLICY).times_ms) / 1e3
