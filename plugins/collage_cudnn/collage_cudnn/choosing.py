"""Which of the plans of a graph is taken: they are tried on the GPU, on buffers of their own."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from collage_cudnn.description import Call, Description
from collage_cudnn.kernel import Handles, OldCalls
from collage_cudnn.scratch import Buffer

__all__ = ["Plans", "Trial", "built_plans", "fault_of", "in_order", "most_plans"]

_MOST_FLOAT32_PLANS = 32
"""Are tried of a convolution or a product: they need not be compiled."""
_MOST_HALF_PLANS = 8
"""Each takes a third of a second to compile."""
_MOST_POINTWISE_PLANS = 2
"""Of what only moves memory."""

_MOST_WORKSPACE_BYTES = 1 << 28
_BUILDING_S = 2.0
_TIMING_MS = 100.0
_CALLS = 5
_MOST_ROUNDS = 50
_HOPELESS = 4.0
_OVERHEAD_MS = 0.1
"""That a single call may take on the host."""


class Plans(Protocol):
    count: int

    def build(self, index: int) -> bool: ...

    def select(self, index: int) -> None: ...

    def plan_name(self, index: int) -> str: ...

    def workspace_bytes(self, index: int) -> int: ...

    def runner(
        self, index: int, addresses: Mapping[int, int], workspace: int | None, handle: Any
    ) -> Callable[[], object]: ...

    def selected(
        self, addresses: Mapping[int, int], workspace: int | None, handle: Any
    ) -> Callable[[], object]: ...


def built_plans(plans: Plans, most: int, clock: Callable[[], float] = time.monotonic) -> list[int]:
    """Those that could be built, in the library's order: up to `most`, and no more after two seconds than the
    first.
    """
    begun = clock()
    built: list[int] = []
    for index in range(plans.count):
        if built and (len(built) >= most or clock() - begun > _BUILDING_S):
            break
        if plans.build(index) and plans.workspace_bytes(index) <= _MOST_WORKSPACE_BYTES:
            built.append(index)
    return built


def most_plans(description: Description, ways: int) -> int:
    """How many are worth being built of one of so many ways to say the same."""
    if not description.multiplies:
        return _MOST_POINTWISE_PLANS
    return _MOST_FLOAT32_PLANS if description.is_float32 else max(1, _MOST_HALF_PLANS // ways)


class Trial:
    """A graph whose plans `built` are built, on buffers of its own. constants: on the GPU, by number."""

    def __init__(
        self,
        handles: Handles,
        plans: Plans,
        description: Description,
        constants: Mapping[int, Any],
        built: Sequence[int],
    ) -> None:
        from collage_cuda.device import DEVICE

        self.plans, self.description, self.constants, self.built = plans, description, constants, built
        self._device, self._handles = DEVICE, handles
        self._queue: Any = DEVICE.queue()
        named = (*description.inputs, description.output)
        self._buffers = {n: Buffer(DEVICE, description.tensors[n]) for n in named}
        self._numbers = {n: np.array([v], np.float32) for n, v in description.numbers.items()}

    def milliseconds(self, index: int, budget_ms: float, best_ms: float) -> float:
        """What one call takes in a captured stretch of them; more than `best_ms` if that is hopeless, and
        infinity if it fails.
        """
        try:
            return self._milliseconds(index, budget_ms, best_ms)
        except Exception:  # whatever the library raises
            return math.inf

    def _milliseconds(self, index: int, budget_ms: float, best_ms: float) -> float:
        queue = self._queue
        call, kept = self._call(index)
        call()  # what is loaded at first takes its time
        once_ms = _timed(queue, call)
        if once_ms > _HOPELESS * best_ms + _OVERHEAD_MS:
            return once_ms
        try:
            replay = queue.capture([call] * _CALLS)
        except Exception:  # the library's, or the driver's: it runs all the same, call by call
            self._queue = self._device.queue()  # whose capture was broken off
            return once_ms
        found: list[float] = []
        spent_ms = 0.0
        while spent_ms < budget_ms and len(found) < _MOST_ROUNDS:
            found.append(_timed(queue, replay) / _CALLS)
            spent_ms += found[-1] * _CALLS
        del kept
        return min(found)

    def keeps_nan(self, index: int) -> bool:
        """Whether a result is NaN wherever all of what it comes from is."""
        queue = self._queue
        source, result = self._buffers[self._probed()], self._buffers[self.description.output]
        source.fill(True, queue)
        result.fill(False, queue)
        call, kept = self._call(index)
        call()
        found = result.is_nan(queue)
        del kept
        source.fill(False, queue)
        queue.synchronize()
        return found

    def _probed(self) -> int:
        """An input that all of the result comes from."""
        description = self.description
        whole = description.tensors[description.output].dims
        if not description.multiplies:
            return next(n for n in description.inputs if description.tensors[n].dims == whole)
        return min(description.inputs)

    def _call(self, index: int) -> tuple[Callable[[], object], object]:
        held = self._handles.handle(self._queue.handle)
        size_bytes = self.plans.workspace_bytes(index)
        workspace = self._device.allocate(size_bytes) if size_bytes else None
        addresses = {n: m.address for n, m in (*self._buffers.items(), *self.constants.items())}
        addresses |= {n: a.ctypes.data for n, a in self._numbers.items()}
        address = None if workspace is None else workspace.address
        return self.plans.runner(index, addresses, address, held.handle), (held, workspace)


def _timed(queue: Any, call: Callable[[], object]) -> float:
    first = queue.mark()
    call()
    last = queue.mark()
    queue.synchronize()
    return float(queue.elapsed_ms(first, last))


def in_order(trials: Sequence[Trial]) -> list[tuple[float, Trial, int]]:
    """All plans, the fastest first, with the milliseconds that they take; those that fail are last. The only
    one there is need not be timed.
    """
    count = sum(len(trial.built) for trial in trials)
    best_ms = math.inf
    found: list[tuple[float, Trial, int]] = []
    for trial in trials:
        for index in trial.built:
            took_ms = trial.milliseconds(index, _TIMING_MS / count, best_ms) if count > 1 else 0.0
            best_ms = min(best_ms, took_ms)
            found.append((took_ms, trial, index))
    return sorted(found, key=lambda plan: plan[0])


def fault_of(handles: Handles, called: OldCalls, call: Call) -> str | None:
    """Why a call of the older interface is none to make: the library says so only when it is called. None if
    it is.
    """
    from collage_cuda.device import DEVICE

    queue = DEVICE.queue()
    held = handles.handle(queue.handle)
    source, result = Buffer(DEVICE, call.source), Buffer(DEVICE, call.result)
    size_bytes = called.workspace_bytes
    workspace = DEVICE.allocate(size_bytes) if size_bytes else None
    address = None if workspace is None else workspace.address
    source.fill(True, queue)
    run = called.runner(held.handle, source.address, result.address, address)
    if status := run():
        return f"cuDNN's {call.kind} returns {status}"
    if not result.is_nan(queue):
        return f"cuDNN's {call.kind} makes a number of what is none (NaN)"
    return None
