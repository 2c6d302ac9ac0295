"""The executable: bound kernel calls, one after the other, over one arena on each device."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from types import TracebackType
from typing import Any

import numpy as np

from collage_core.backend import Bound, Kernel
from collage_core.devices import Device, Queue
from collage_core.errors import CollageError, InputError, StepError
from collage_core.formats import CPU, Array, Format, plain
from collage_core.ir import Graph, TensorType
from collage_core.placement import Placement
from collage_core.runtime.plan import Plan, Slot, Step

__all__ = ["Context", "Executable", "Inputs", "check_array"]

Inputs = Mapping[str, Array] | Sequence[Array] | Array
"""Arrays by input name, or in the order of the model's inputs, or the only one."""


class Context:
    """One set of activation buffers for an executable's kernels. Not for use by two threads at once: give
    each its own. A thread that finds it running gets a CollageError, and the run goes on undisturbed.

    inputs, outputs: the buffers themselves, by name, row-major, for callers that would rather not have their
    arrays copied: write into the first, `execute`, read from the second. Inputs stay as written; outputs are
    the last run's until the next begins, but for one that is nothing else than an input seen in another
    shape: it shares that input's buffer.
    """

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        self._alone = _OneAtATime()
        plan, devices = executable.plan, executable.devices
        self._arenas = {name: devices[name].allocate(size) for name, size in plan.arena_bytes.items()}
        self._queues = {name: devices[name].queue() for name in plan.arena_bytes}
        self._bound: list[Bound] = []
        self._steps: list[int] = []
        for i, (step, kernel) in enumerate(zip(plan.steps, executable.kernels, strict=True)):
            if kernel is None:
                continue
            reads, writes = [self._view(s) for s in step.reads], [self._view(s) for s in step.writes]
            (offset, size_bytes), on = plan.workspaces[i], step.device
            workspace = self._arenas[on].array(offset, (size_bytes,), Format("uint8", (0,), on))
            self._bound.append(kernel.bind(reads, writes, workspace, self._queues[on]))
            self._steps.append(i)
        launches = list(_launches(plan.steps, self._steps, self._bound, self._queues))
        self._calls = [call for call, _ in launches]
        self._first_steps = [step for _, step in launches]
        self.inputs: Mapping[str, Array] = {
            v: self._view((v, plain(t.dtype, t.static_shape))) for v, t in executable.inputs.items()
        }
        self.outputs: Mapping[str, Array] = {
            v: _read_only(executable.constant_outputs[v])
            if v in executable.constant_outputs
            else self._view((v, plain(t.dtype, t.static_shape)))
            for v, t in executable.outputs.items()
        }

    @property
    def arena_bytes(self) -> Mapping[str, int]:
        """By device."""
        return {name: arena.size_bytes for name, arena in self._arenas.items()}

    @property
    def launches(self) -> int:
        """How many calls a run makes, other than to wait."""
        return sum(not isinstance(call, _Wait) for call in self._calls)

    @property
    def waits(self) -> int:
        """How often the host waits for a device in a run."""
        return len(self._calls) - self.launches

    def run(self, inputs: Inputs, outputs: Mapping[str, Array] | None = None) -> None:
        """Run once, writing into the caller's arrays `outputs` (by name; those left out are not delivered).
        Allocates no buffer.

        InputError names an input or output of the wrong name, shape or dtype, before anything runs; StepError
        (a BackendError) the step that fails, with what its library says. What fails later, on another device,
        is told of the step that waits for it; steps that are one launch go by their first.
        """
        with self._alone:
            self._bring(inputs, outputs)
            self._execute()
            self._deliver(outputs)

    def __call__(self, inputs: Inputs) -> dict[str, Array]:
        """Run once and return fresh arrays, by output name, that no later call touches."""
        with self._alone:
            self._bring(inputs, None)
            self._execute()
            return {name: np.array(array, order="C") for name, array in self.outputs.items()}

    def execute(self) -> None:
        """Run once on what `inputs` hold; `outputs` hold the answer then. Copies nothing."""
        with self._alone:
            self._execute()

    def execute_timed(self) -> list[float]:
        """As `execute`, step by step, nothing captured. Returns the milliseconds of each of the plan's steps
        (0 for views): on another device than the CPU its own time, between two marks of its queue.
        """
        steps = self._executable.plan.steps
        steps_ms = [0.0] * len(steps)
        with self._alone:
            marks: list[tuple[int, Queue, Any, Any]] = []
            for step, call in zip(self._steps, self._bound, strict=True):
                with self._naming(step):
                    queue = self._queues[steps[step].device]
                    before = queue.mark()
                    status = call()
                    marks.append((step, queue, before, queue.mark()))
                    if steps[step].is_download:
                        queue.synchronize()
                if status:
                    raise self._failed(step, f" with status {status}")
            last_steps = {queue: step for step, queue, _, _ in marks}
            for queue, step in last_steps.items():
                with self._naming(step):
                    queue.synchronize()
            for step, queue, before, after in marks:
                with self._naming(step):
                    steps_ms[step] = queue.elapsed_ms(before, after)
        return steps_ms

    def _execute(self) -> None:
        try:
            for call in self._calls:
                if status := call():
                    break
            else:
                return
        except Exception as error:  # a vendor's library may raise anything; the step is what a person needs
            raise self._failed(self._step_of(call), _said(error)) from error
        raise self._failed(self._step_of(call), f" with status {status}")

    def _step_of(self, call: Bound) -> int:
        return next(step for known, step in zip(self._calls, self._first_steps, strict=True) if known is call)

    @contextmanager
    def _naming(self, step: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise self._failed(step, _said(error)) from error

    def _bring(self, inputs: Inputs, outputs: Mapping[str, Array] | None) -> None:
        given = self._executable.named(inputs)
        if outputs is not None:
            self._check_outputs(outputs)
        for name, destination in self.inputs.items():
            np.copyto(destination, given[name])

    def _deliver(self, outputs: Mapping[str, Array] | None) -> None:
        for name, array in (outputs or {}).items():
            np.copyto(array, self.outputs[name])

    def _failed(self, step: int, how: str) -> StepError:
        return StepError(step, f"step {self._executable.plan.steps[step]} failed{how}")

    def _view(self, slot: Slot) -> Any:
        value, format = slot
        shape = self._executable.type_of(value).static_shape
        return self._arenas[format.device].array(self._executable.plan.offsets[slot], shape, format)

    def _check_outputs(self, outputs: Mapping[str, Array]) -> None:
        for name, array in outputs.items():
            type = self._executable.outputs.get(name)
            if type is None:
                raise InputError(
                    f"the model has no output {name!r}; its outputs: {', '.join(self._executable.outputs)}"
                )
            check_array("output", name, array, type)
            if not array.flags.writeable:
                raise InputError(f"output {name!r} is read-only")


def _said(error: Exception) -> str:
    return f": {error}" if isinstance(error, CollageError) else f": {type(error).__name__}: {error}"


class _Wait:
    """For what a queue still has to do. Each is another one: a step can be told by it."""

    def __init__(self, queue: Queue) -> None:
        self._synchronize = queue.synchronize

    def __call__(self) -> None:
        self._synchronize()


def _launches(
    steps: Sequence[Step], numbers: Sequence[int], bound: Sequence[Bound], queues: Mapping[str, Queue]
) -> Iterator[tuple[Bound, int]]:
    """What a run calls, each with the number of its (first) step: stretches of steps on one other device than
    the host are one call, where its queue can capture them, and the host waits behind what is brought to it.
    """

    def stretch_of(at: int) -> tuple[str, int]:
        """Steps with the same can be one call; each other step is by itself."""
        step = steps[numbers[at]]
        return (CPU, at) if step.device == CPU or step.is_transfer else (step.device, -1)

    for (device, _), places in groupby(range(len(bound)), stretch_of):
        stretch = [(bound[at], numbers[at]) for at in places]
        captured = _captured(queues[device], [call for call, _ in stretch]) if len(stretch) > 1 else None
        yield from [(captured, stretch[0][1])] if captured else stretch
        last = steps[stretch[-1][1]]
        if last.is_download:
            yield _Wait(queues[last.device]), stretch[-1][1]


def _captured(queue: Queue, calls: Sequence[Bound]) -> Bound | None:
    """None where the device cannot: each of these has proved to run by itself."""
    try:
        return queue.capture(calls)
    except Exception:  # a vendor's library may raise anything
        return None


def _read_only(array: Array) -> Array:
    seen = array.view()
    seen.flags.writeable = False
    return seen


class _OneAtATime:
    """A `with` block that refuses a second thread instead of letting it wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise CollageError(
                "this context is running in another thread: give each thread its own, by executable.context()"
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


class Executable:
    """A placed graph, built: kernels (with their packed constants) and the plan of its memory.

    Kernels are shared by all contexts; `run` and calling use a context of the executable's own, so use them
    from one thread, and `context()` for each further one.
    """

    def __init__(
        self,
        graph: Graph,
        placement: Placement,
        plan: Plan,
        kernels: Sequence[Kernel | None],
        devices: Mapping[str, Device],
    ) -> None:
        self.devices = devices
        self.placement = placement
        self.plan = plan
        self.kernels = tuple(kernels)
        self.inputs: dict[str, TensorType] = {v: graph.type_of(v) for v in graph.inputs}
        self.outputs: dict[str, TensorType] = {v: graph.type_of(v) for v in graph.outputs}
        self.constant_outputs: dict[str, Array] = {
            v: graph.constants[v] for v in graph.outputs if graph.is_constant(v)
        }
        self._types = {v: graph.type_of(v) for v in (*graph.inputs, *graph.intermediates())}
        self._own: Context | None = None

    def type_of(self, value: str) -> TensorType:
        return self._types[value]

    def context(self) -> Context:
        """New buffers, bound to the same kernels: one per thread."""
        return Context(self)

    def run(self, inputs: Inputs, outputs: Mapping[str, Array] | None = None) -> None:
        """As `Context.run`, on the executable's own context."""
        try:
            self._context().run(inputs, outputs)
        except StepError:
            self._renew()
            raise

    def __call__(self, inputs: Inputs) -> dict[str, Array]:
        """As `Context.__call__`, on the executable's own context."""
        try:
            return self._context()(inputs)
        except StepError:
            self._renew()
            raise

    def named(self, inputs: Inputs) -> Mapping[str, Array]:
        """The inputs by name, checked; InputError says what is wrong with which."""
        if isinstance(inputs, np.ndarray):
            inputs = [inputs]
        if not isinstance(inputs, Collection):
            raise InputError(
                f"inputs are a {inputs.__class__.__name__}, neither arrays by name nor in order; the model "
                f"has {len(self.inputs)}: {', '.join(self.inputs)}"
            )
        if not isinstance(inputs, Mapping):
            if len(inputs) != len(self.inputs):
                raise InputError(
                    f"{len(inputs)} inputs given; the model has {len(self.inputs)}: {', '.join(self.inputs)}"
                )
            inputs = dict(zip(self.inputs, inputs, strict=True))
        for name in inputs:
            if name not in self.inputs:
                raise InputError(f"the model has no input {name!r}; its inputs: {', '.join(self.inputs)}")
        for name, type in self.inputs.items():
            check_array("input", name, inputs.get(name), type)
        return inputs

    def _renew(self) -> None:
        """A run that fails on another device costs its context: that device may have to be started again."""
        if len(self.plan.arena_bytes) > 1:
            self._own = None

    def _context(self) -> Context:
        if self._own is None:
            self._own = Context(self)
        return self._own


def check_array(role: str, name: str, array: Array | None, type: TensorType) -> None:
    """InputError, naming the array, unless it is there and of that type."""
    if array is None:
        raise InputError(f"{role} {name!r} ({type}) is missing")
    if not isinstance(array, np.ndarray):
        raise InputError(f"{role} {name!r} is a {array.__class__.__name__}, not a numpy array")
    if array.shape != type.shape:
        raise InputError(f"{role} {name!r} has shape {list(array.shape)}; the model's is {list(type.shape)}")
    if array.dtype.name != type.dtype:
        raise InputError(f"{role} {name!r} has dtype {array.dtype.name}; the model's is {type.dtype}")
