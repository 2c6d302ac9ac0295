"""The executable: bound kernel calls, one after the other, over one arena."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from time import perf_counter_ns
from types import TracebackType

import numpy as np

from collage_core.backend import Bound, Kernel
from collage_core.errors import CollageError, InputError, StepError
from collage_core.formats import Array, plain, view
from collage_core.ir import Graph, TensorType
from collage_core.placement import Placement
from collage_core.runtime.memory import Arena
from collage_core.runtime.plan import Plan, Slot

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
        plan = executable.plan
        self._arena = Arena(plan.arena_bytes)
        self._bound: list[Bound] = []
        self._steps: list[int] = []
        for i, (step, kernel) in enumerate(zip(plan.steps, executable.kernels, strict=True)):
            if kernel is None:
                continue
            reads, writes = [self._view(s) for s in step.reads], [self._view(s) for s in step.writes]
            self._bound.append(kernel.bind(reads, writes, self._arena.piece(*plan.workspaces[i])))
            self._steps.append(i)
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
    def arena_bytes(self) -> int:
        return self._arena.size_bytes

    def run(self, inputs: Inputs, outputs: Mapping[str, Array] | None = None) -> None:
        """Run once, writing into the caller's arrays `outputs` (by name; those left out are not delivered).
        Allocates no buffer.

        InputError names an input or output of the wrong name, shape or dtype, before anything runs;
        StepError (a BackendError) the step that fails, with what its library says.
        """
        with self._alone:
            self._bring(inputs, outputs)
            self._execute(self._bound)
            self._deliver(outputs)

    def __call__(self, inputs: Inputs) -> dict[str, Array]:
        """Run once and return fresh arrays, by output name, that no later call touches."""
        with self._alone:
            self._bring(inputs, None)
            self._execute(self._bound)
            return {name: np.array(array, order="C") for name, array in self.outputs.items()}

    def execute(self) -> None:
        """Run once on what `inputs` hold; `outputs` hold the answer then. Copies nothing."""
        with self._alone:
            self._execute(self._bound)

    def execute_timed(self) -> list[float]:
        """As `execute`. Returns the milliseconds of each of the plan's steps (0 for views)."""
        with self._alone:
            times_ns = [perf_counter_ns()]
            self._execute(self._timed(times_ns))
        steps_ms = [0.0] * len(self._executable.plan.steps)
        for step, before_ns, after_ns in zip(self._steps, times_ns, times_ns[1:], strict=False):
            steps_ms[step] = (after_ns - before_ns) / 1e6
        return steps_ms

    def _execute(self, calls: Iterable[Bound]) -> None:
        try:
            for call in calls:
                if status := call():
                    break
            else:
                return
        except Exception as error:  # a vendor's library may raise anything; the step is what a person needs
            said = str(error) if isinstance(error, CollageError) else f"{type(error).__name__}: {error}"
            raise self._failed(call, f": {said}") from error
        raise self._failed(call, f" with status {status}")

    def _timed(self, times_ns: list[int]) -> Iterator[Bound]:
        """The calls, and when each has returned."""
        for call in self._bound:
            yield call
            times_ns.append(perf_counter_ns())

    def _bring(self, inputs: Inputs, outputs: Mapping[str, Array] | None) -> None:
        given = self._executable.named(inputs)
        if outputs is not None:
            self._check_outputs(outputs)
        for name, destination in self.inputs.items():
            np.copyto(destination, given[name])

    def _deliver(self, outputs: Mapping[str, Array] | None) -> None:
        for name, array in (outputs or {}).items():
            np.copyto(array, self.outputs[name])

    def _failed(self, call: Bound, how: str) -> StepError:
        number = self._steps[self._bound.index(call)]
        return StepError(number, f"step {self._executable.plan.steps[number]} failed{how}")

    def _view(self, slot: Slot) -> Array:
        value, format = slot
        shape = self._executable.type_of(value).static_shape
        offset = self._executable.plan.offsets[slot]
        return view(self._arena.piece(offset, format.size_bytes(shape)), shape, format)

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
        self, graph: Graph, placement: Placement, plan: Plan, kernels: Sequence[Kernel | None]
    ) -> None:
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
        self._context().run(inputs, outputs)

    def __call__(self, inputs: Inputs) -> dict[str, Array]:
        """As `Context.__call__`, on the executable's own context."""
        return self._context()(inputs)

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
