"""The executable: bound kernel calls, one after the other, over one arena on each device."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from types import TracebackType
from typing import Any

import numpy as np

from collage_run.devices import Device, Queue
from collage_run.errors import CollageError, InputError, StepError, is_of_a_handler
from collage_run.formats import CPU, Array
from collage_run.kernel import Bound, Kernel
from collage_run.open_outputs import cut
from collage_run.program import Call, Place, Program
from collage_run.types import TensorType

__all__ = ["Context", "Executable", "Inputs", "check_array", "check_inputs", "check_output"]

Inputs = Mapping[str, Array] | Sequence[Array] | Array
"""Arrays by input name, or in the order of the model's inputs, or the only one."""


class Context:
    """One set of activation buffers for an executable's kernels. Not for use by two threads at once: give
    each its own. A thread that finds it running gets a CollageError, and the run goes on undisturbed.

    inputs, outputs: the buffers themselves, by name, row-major, for callers that would rather not have their
    arrays copied: write into the first, `execute`, read from the second. Inputs stay as written; outputs are
    the last run's until the next begins, but for one that is nothing else than an input seen in another
    shape: it shares that input's buffer. Open outputs have their largest shapes, and zeros behind what is
    valid; `outputs` has their sizes as well, and `valid` tells what is valid.
    """

    def __init__(self, program: Program, kernels: Sequence[Kernel], devices: Mapping[str, Device]) -> None:
        # Not the executable itself, which has a context: whoever drops it gets its memory back at once.
        self._program, self._kernels = program, kernels
        self._input_types, self._buffer_types = _types(program.inputs), _buffer_types(program)
        self._running = threading.Lock()
        self._arenas = {name: devices[name].allocate(size) for name, size in program.arena_bytes.items()}
        self._queues = {name: devices[name].queue() for name in program.arena_bytes}
        self._bound: list[Bound] = []
        for i, (call, kernel) in enumerate(zip(program.calls, kernels, strict=True)):
            reads, writes = map(self._view, call.reads), map(self._view, call.writes)
            workspace, queue = self._view(call.workspace), self._queues[call.device]
            with self._naming(i):
                self._bound.append(kernel.bind(list(reads), list(writes), workspace, queue))
        launches = list(_launches(program.calls, self._bound, self._queues))
        self._launches = [launch for launch, _ in launches]
        self._first_calls = [number for _, number in launches]
        self.inputs: Mapping[str, Array] = {v: self._view(place) for v, place in program.inputs.items()}
        self.outputs: Mapping[str, Array] = {
            v: self._view(held) if isinstance(held, Place) else _read_only(held)
            for v, held in program.outputs.items()
        }

    @property
    def arena_bytes(self) -> Mapping[str, int]:
        """By device."""
        return {name: arena.size_bytes for name, arena in self._arenas.items()}

    @property
    def launches(self) -> int:
        """How many calls a run makes, other than to wait."""
        return sum(not isinstance(launch, _Wait) for launch in self._launches)

    @property
    def waits(self) -> int:
        """How often the host waits for a device in a run."""
        return len(self._launches) - self.launches

    def valid(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """Of arrays that the last `run` has written, by name, what is valid: views of those that are open,
        the others themselves.
        """
        opened = {v: o for v, o in self._program.open_outputs.items() if v in outputs}
        return cut({**outputs, **{o.sizes: self.outputs[o.sizes] for o in opened.values()}}, opened)

    def run(self, inputs: Inputs, outputs: Mapping[str, Array] | None = None) -> None:
        """Run once, writing into the caller's arrays `outputs` (by name; those left out are not delivered).
        Allocates no buffer. What it takes for open outputs are arrays of their largest shapes
        (`Executable.buffers`), which it fills with zeros behind what is valid; `valid` tells what that is.

        InputError names an input or output of the wrong name, shape or dtype, before anything runs; StepError
        (a BackendError) the step that fails, with what its library says. What fails later, on another device,
        is told of the step that waits for it; steps that are one launch go by their first.
        """
        with self._alone():
            self._bring(inputs, outputs)
            self._execute()
            self._deliver(outputs)

    def __call__(self, inputs: Inputs) -> dict[str, Array]:
        """Run once and return fresh arrays, by output name, that no later call touches. Open outputs are as
        large as they turn out.
        """
        with self._alone():
            self._bring(inputs, None)
            self._execute()
            answers = cut(self.outputs, self._program.open_outputs)
            return {name: np.array(array, order="C") for name, array in answers.items()}

    def warm_up(self) -> None:
        """Run once on zeros: memory is touched, threads are started. StepError where these are not valid."""
        for array in self.inputs.values():
            array.fill(0)
        self.execute()

    def execute(self) -> None:
        """Run once on what `inputs` hold; `outputs` hold the answer then. Copies nothing."""
        with self._alone():
            self._execute()

    def execute_timed(self) -> list[float]:
        """As `execute`, call by call, nothing captured. Returns the milliseconds of each of the program's
        calls: on another device than the CPU its own time, between two marks of its queue.
        """
        calls = self._program.calls
        with self._alone():
            marks: list[tuple[Queue, Any, Any]] = []
            for i, (call, bound) in enumerate(zip(calls, self._bound, strict=True)):
                with self._naming(i):
                    queue = self._queues[call.device]
                    queue.hold()
                    before = queue.mark()
                    status = bound()
                    marks.append((queue, before, queue.mark()))
                    if call.is_download:
                        queue.synchronize()
                if status:
                    raise self._failed(i, f" with status {status}")
            last = {queue: i for i, (queue, _, _) in enumerate(marks)}
            for queue, i in last.items():
                with self._naming(i):
                    queue.synchronize()
            calls_ms = []
            for i, (queue, before, after) in enumerate(marks):
                with self._naming(i):
                    calls_ms.append(queue.elapsed_ms(before, after))
        return calls_ms

    def _alone(self) -> threading.Lock:
        """For a `with` block. A second thread is refused instead of being made to wait, unless both begin in
        the same moment. No exception out of a signal handler leaves this lock held, as it could what Python
        code holds.
        """
        if self._running.locked():
            raise CollageError(
                "this context is running already: give each thread its own, by executable.context()"
            )
        return self._running

    def _execute(self) -> None:
        try:
            for launch in self._launches:
                if status := launch():
                    break
            else:
                return
        except Exception as error:  # a vendor's library may raise anything; the step is what a person needs
            if is_of_a_handler(error):
                raise
            raise self._failed(self._first_call_of(launch), _said(error)) from error
        raise self._failed(self._first_call_of(launch), f" with status {status}")

    def _first_call_of(self, launch: Bound) -> int:
        known = zip(self._launches, self._first_calls, strict=True)
        return next(number for one, number in known if one is launch)

    @contextmanager
    def _naming(self, call: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if is_of_a_handler(error):
                raise
            raise self._failed(call, _said(error)) from error

    def _bring(self, inputs: Inputs, outputs: Mapping[str, Array] | None) -> None:
        given = check_inputs(inputs, self._input_types)
        if outputs is not None:
            self._check_outputs(outputs)
        for name, destination in self.inputs.items():
            np.copyto(destination, given[name])

    def _deliver(self, outputs: Mapping[str, Array] | None) -> None:
        for name, array in (outputs or {}).items():
            np.copyto(array, self.outputs[name])

    def _failed(self, call: int, how: str) -> StepError:
        return StepError(call, f"step {self._program.calls[call].name} failed{how}")

    def _view(self, place: Place) -> Any:
        return self._arenas[place.format.device].array(place.offset, place.shape, place.format)

    def _check_outputs(self, outputs: Mapping[str, Array]) -> None:
        if not isinstance(outputs, Mapping):
            raise InputError(f"outputs are a {outputs.__class__.__name__}, and not arrays by name")
        for name, array in outputs.items():
            type = self._buffer_types.get(name)
            if type is None:
                raise InputError(
                    f"the model has no output {name!r}; its outputs: {', '.join(self._buffer_types)}"
                )
            if name in self._program.open_outputs and array.shape != type.shape:
                raise InputError(
                    f"output {name!r} has shape {list(array.shape)}, and may become {list(type.shape)}: "
                    "give it an array of that shape, and ask `valid` what it holds"
                )
            check_output(name, array, type)


def _said(error: Exception) -> str:
    return f": {error}" if isinstance(error, CollageError) else f": {type(error).__name__}: {error}"


class _Wait:
    """For what a queue still has to do. Each is another one: a step can be told by it."""

    def __init__(self, queue: Queue) -> None:
        self._synchronize = queue.synchronize

    def __call__(self) -> None:
        self._synchronize()


def _launches(
    calls: Sequence[Call], bound: Sequence[Bound], queues: Mapping[str, Queue]
) -> Iterator[tuple[Bound, int]]:
    """What a run launches, each with the number of its (first) call: stretches of calls on one other device
    than the host are one launch, where its queue can capture them. The host waits behind downloads.
    """

    def stretch_of(at: int) -> tuple[str, int]:
        """Calls with the same can be one launch; each other call is by itself."""
        call = calls[at]
        return (CPU, at) if call.device == CPU or call.is_transfer else (call.device, -1)

    for (device, _), numbers in groupby(range(len(bound)), stretch_of):
        stretch = [(bound[at], at) for at in numbers]
        captured = _captured(queues[device], [call for call, _ in stretch]) if len(stretch) > 1 else None
        yield from [(captured, stretch[0][1])] if captured else stretch
        last = calls[stretch[-1][1]]
        if last.is_download:
            yield _Wait(queues[last.device]), stretch[-1][1]


def _captured(queue: Queue, calls: Sequence[Bound]) -> Bound | None:
    """None where the device cannot, for whatever reason: they are called one by one then."""
    try:
        return queue.capture(calls)
    except Exception:  # a vendor's library may raise anything
        return None


def _read_only(array: Array) -> Array:
    seen = array.view()
    seen.flags.writeable = False
    return seen


class Executable:
    """A placed graph, built: kernels (with their packed constants), and the program that calls them.

    inputs, outputs: their types by name, open dimensions of outputs by name. buffers: the types of the arrays
    that `run` writes outputs into, as large as they can become.

    Kernels are shared by all contexts; `run` and calling use a context of the executable's own, so use them
    from one thread, and `context()` for each further one.
    """

    def __init__(self, program: Program, kernels: Sequence[Kernel], devices: Mapping[str, Device]) -> None:
        self.program = program
        self.kernels = tuple(kernels)
        self.devices = devices
        self.inputs: Mapping[str, TensorType] = _types(program.inputs)
        self.buffers: Mapping[str, TensorType] = _buffer_types(program)
        opened = {name: opened.type for name, opened in program.open_outputs.items()}
        self.outputs: Mapping[str, TensorType] = {**self.buffers, **opened}
        self._own: Context | None = None
        self._is_closed = False

    def __enter__(self) -> Executable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of kernels and buffers. Contexts that somebody still has keep what they run on; no other is
        made any more.
        """
        self._is_closed = True
        self.kernels, self._own = (), None

    def warm_up(self) -> None:
        """As `Context.warm_up`, on the executable's own context. That zeros are not valid is no fault."""
        try:
            self._context().warm_up()
        except StepError:
            self._renew()

    def context(self) -> Context:
        """New buffers, bound to the same kernels: one per thread. CollageError if it is closed."""
        if self._is_closed:
            raise CollageError("this executable is closed")
        return Context(self.program, self.kernels, self.devices)

    def valid(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """As `Context.valid`, of the executable's own context."""
        return self._context().valid(outputs)

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

    def _renew(self) -> None:
        """A run that fails on another device costs its context: that device may have to be started again."""
        if len(self.program.arena_bytes) > 1:
            self._own = None

    def _context(self) -> Context:
        if self._own is None:
            self._own = self.context()
        return self._own


def _buffer_types(program: Program) -> Mapping[str, TensorType]:
    """Of what is computed for each of the model's outputs: open ones have their largest shapes."""
    hidden = {opened.sizes for opened in program.open_outputs.values()}
    return {name: type for name, type in _types(program.outputs).items() if name not in hidden}


def _types(held: Mapping[str, Place] | Mapping[str, Place | Array]) -> Mapping[str, TensorType]:
    return {name: _type_of(one) for name, one in held.items()}


def check_inputs(inputs: Inputs, types: Mapping[str, TensorType]) -> Mapping[str, Array]:
    """The inputs by name, checked; InputError says what is wrong with which."""
    if isinstance(inputs, np.ndarray):
        inputs = [inputs]
    if not isinstance(inputs, Collection):
        raise InputError(
            f"inputs are a {inputs.__class__.__name__}, neither arrays by name nor in order; the model "
            f"has {len(types)}: {', '.join(types)}"
        )
    if not isinstance(inputs, Mapping):
        if len(inputs) != len(types):
            raise InputError(f"{len(inputs)} inputs given; the model has {len(types)}: {', '.join(types)}")
        inputs = dict(zip(types, inputs, strict=True))
    for name in inputs:
        if name not in types:
            raise InputError(f"the model has no input {name!r}; its inputs: {', '.join(types)}")
    for name, type in types.items():
        check_array("input", name, inputs.get(name), type)
    return inputs


def _type_of(held: Place | Array) -> TensorType:
    dtype = held.format.dtype if isinstance(held, Place) else held.dtype.name
    return TensorType(dtype, held.shape)


def check_output(name: str, array: Array, type: TensorType) -> None:
    """InputError, naming the array, unless it is of that type and can be written to."""
    check_array("output", name, array, type)
    if not array.flags.writeable:
        raise InputError(f"output {name!r} is read-only")


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
