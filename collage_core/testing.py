"""What a backend's tests need: groups from ONNX nodes, kernels on buffers of their own, one check of all that
a backend offers for a group::

    x = np.linspace(-1, 1, 12, dtype=np.float32)
    group = make_group([node("Neg", ["x"], "y")], {"x": x})
    check_group(Negate(), group, {"x": x}, Target("cpu", 2))

Whatever is wrong is an AssertionError that names the group and, where it is about one, the variant.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from collage_run.restoring import restore
from onnx import helper, numpy_helper

from collage_core.backend import Backend, Bound, Kernel, StoredKernel, Variant, exact_values, rounded_to
from collage_core.costs.check import compare, rounded_answers, standards
from collage_core.costs.trial import ways_to_share
from collage_core.devices import Station
from collage_core.errors import DeclinedError, InputError, Refusal
from collage_core.formats import Array, Format, own
from collage_core.ir import Graph, Subgraph, TensorType, from_model, to_value_info
from collage_core.ir.randomness import random_values
from collage_core.plugins import default_registry
from collage_core.reference import evaluate
from collage_core.target import Target

__all__ = [
    "BoundKernel",
    "NothingBuiltError",
    "bind",
    "check_group",
    "make_graph",
    "make_group",
    "make_model",
    "node",
]


class NothingBuiltError(AssertionError):
    """All that was offered for a group is declined when it is to be built: nothing was checked."""


def node(op: str, inputs: Sequence[str], output: str | Sequence[str], **attributes: Any) -> onnx.NodeProto:
    """An ONNX node that is named after its first output.

    output: one name, or one for each output. attributes: the operator's; `domain` and `name`, too, where they
    are to be others.
    """
    outputs = [output] if isinstance(output, str) else list(output)
    return helper.make_node(op, list(inputs), outputs, **{"name": next(filter(None, outputs)), **attributes})


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Array],
    constants: Mapping[str, npt.ArrayLike] | None = None,
    outputs: Sequence[str] | None = None,
    *,
    opset: int = 20,
    types: Mapping[str, TensorType] | None = None,
) -> onnx.ModelProto:
    """A model of `nodes`, which are in topological order.

    inputs: arrays of the shapes and dtypes that it is to take, by name. constants: by name; what has no dtype
    gets NumPy's. outputs: what it returns, in that order; the first output of the last node, if None. opset:
    ONNX's; other domains have version 1. types: those of `outputs` that ONNX cannot infer.
    """
    known = types or {}
    domains = sorted({n.domain for n in nodes} - {""})
    graph = helper.make_graph(
        list(nodes),
        "test",
        [to_value_info(name, TensorType(str(a.dtype), a.shape)) for name, a in inputs.items()],
        [
            to_value_info(name, known[name]) if name in known else onnx.ValueInfoProto(name=name)
            for name in ([next(filter(None, nodes[-1].output))] if outputs is None else outputs)
        ],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in (constants or {}).items()],
    )
    versions = [("", opset), *((domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(*v) for v in versions], ir_version=10)


def make_graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Array],
    constants: Mapping[str, npt.ArrayLike] | None = None,
    outputs: Sequence[str] | None = None,
    *,
    opset: int = 20,
    types: Mapping[str, TensorType] | None = None,
) -> Graph:
    """The graph of `make_model`'s model; no pass has changed it. ModelError where that is none."""
    return from_model(make_model(nodes, inputs, constants, outputs, opset=opset, types=types))


def make_group(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Array],
    constants: Mapping[str, npt.ArrayLike] | None = None,
    outputs: Sequence[str] | None = None,
    *,
    opset: int = 20,
    types: Mapping[str, TensorType] | None = None,
) -> Subgraph:
    """All of `make_graph`'s graph, with `outputs` in their order."""
    graph = make_graph(nodes, inputs, constants, outputs, opset=opset, types=types)
    return Subgraph(graph, graph.all_nodes, outputs)


@dataclass(frozen=True, slots=True)
class BoundKernel:
    """A kernel bound to buffers of its own.

    call: what `Kernel.bind` returned. names, types: those of `inputs` in the graph. inputs, outputs: arrays
    of the logical shapes of the subgraph's values, in the formats of the variant; on another device than the
    CPU `DeviceArray`s. workspace: uint8. stations: where all of them lie, by device; they tell who has
    written beside them.
    """

    call: Bound
    names: Sequence[str]
    types: Sequence[TensorType]
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    workspace: Any
    variant: Variant
    stations: Mapping[str, Station]

    def load(self, inputs: Mapping[str, Array]) -> None:
        """Copy other inputs in, by name, rounded where the kernel reads them so; what it does not read may be
        among them.

        Raises InputError for one that is missing, or of another shape or dtype.
        """
        formats = self.variant.inputs
        for name, type, array, format in zip(self.names, self.types, self.inputs, formats, strict=True):
            if name not in inputs:
                raise InputError(f"input {name!r} is missing; given: {', '.join(inputs) or 'none'}")
            value = np.asarray(inputs[name])
            if (value.shape, value.dtype.name) != (type.shape, type.dtype):
                given = f"{value.dtype}{list(value.shape)}"
                raise InputError(f"input {name!r} is {given}, not {type.dtype}{list(type.shape)}")
            self.stations[format.device].write(array, format, value)

    def read(self, arrays: Sequence[Any], formats: Sequence[Format]) -> list[Array]:
        """Copies of what lies in its inputs or outputs."""
        return [self.stations[f.device].read(a, f) for a, f in zip(arrays, formats, strict=True)]


def bind(
    kernel: Kernel,
    subgraph: Subgraph,
    variant: Variant,
    inputs: Mapping[str, Array] | None = None,
    alias: Mapping[int, int] | None = None,
) -> BoundKernel:
    """Bind `kernel` to new buffers, 64-byte aligned and full of bytes of 0xFF, the workspace too.

    inputs: by name, copied in once the kernel is bound, for it must not have read them before; InputError as
    of `BoundKernel.load`. alias: as `Kernel.may_alias`: outputs that get the buffer of an input.
    """
    if not isinstance(kernel, Kernel):
        raise TypeError(f"build returned {kernel!r}, which is no Kernel")
    graph, shared = subgraph.graph, alias or {}
    formats = (*variant.inputs, *variant.outputs)
    stations = Station.for_formats(formats, default_registry().device, protect=False)
    on = stations[variant.device]

    def array(name: str, format: Format, what: str) -> Any:
        station = stations[format.device]
        made = station.array(graph.shape_of(name), format, f"{what} {name!r}")
        station.fill(made, format, 0xFF)
        return made

    given = [array(v, f, "input") for v, f in zip(subgraph.inputs, variant.inputs, strict=True)]
    results = [
        given[shared[i]] if i in shared else array(v, f, "output")
        for i, (v, f) in enumerate(zip(subgraph.outputs, variant.outputs, strict=True))
    ]
    workspace = on.bytes(kernel.workspace_bytes, "the workspace")
    on.fill(workspace, on.byte_format, 0xFF)
    call = kernel.bind(given, results, workspace, on.queue)
    if not callable(call):
        raise TypeError(f"bind returned {call!r}, which nobody can call")
    types = [graph.type_of(v) for v in subgraph.inputs]
    bound = BoundKernel(call, subgraph.inputs, types, given, results, workspace, variant, stations)
    if inputs is not None:
        bound.load(inputs)
    return bound


def check_group(
    backend: Backend,
    subgraph: Subgraph,
    inputs: Mapping[str, Array],
    target: Target,
    *,
    other_inputs: Mapping[str, Array] | None = None,
    expected: Mapping[str, Array] | None = None,
    tolerances: Mapping[str, float] | None = None,
    repeatable: bool = True,
) -> dict[Variant, Kernel]:
    """Build and run every variant that `backend` offers for `subgraph`, and compare it with the reference.

    Formats have the dtypes of the values, or such that the target allows. A kernel is called twice on the
    same inputs, with other bytes in outputs and workspace before each; both answers are right. So is one for
    each output that may share the buffer of an input, lying there. So is each of two contexts, whose calls
    take turns. It returns nothing truthy, and writes neither an input (but that one) nor beside its buffers.

    inputs: those of the graph, of which `subgraph` may be a part, row-major, by name. other_inputs: the same
    for a third call, which reads what the buffers hold then. expected: `subgraph`'s outputs for `inputs`, by
    name, where they are not to be the reference's. tolerances: largest errors by dtype, where smaller than
    core's (docs/adr/0007), which hold, too, and alone where a variant rounds. repeatable: both answers are
    the same to the last bit, but for NaNs and the sign of zero; false for libraries that may add in another
    order. What depends on random numbers that the group draws need only be legal. What can be stored is
    restored, and checked as well.

    Returns the kernels by variant, in the order of the offer, less those that are declined when built. Raises
    AssertionError if nothing is offered or all are declined (`NothingBuiltError`), `supported` declines,
    `expected` lacks an output, or a variant cannot be built, fails or is wrong; InputError for a missing or
    misshapen input; ModelError if the reference lacks an operator that it is asked for.
    """
    where = f"{backend.name}, {subgraph}"
    with _naming(where):
        offered = _offer(backend, subgraph, target)
        if missing := [v for v in subgraph.outputs if expected is not None and v not in expected]:
            raise AssertionError(f"`expected` lacks output {missing[0]!r}")
    runs = [_Run.of(subgraph, inputs, expected)] * 2
    if other_inputs is not None:
        runs.append(_Run.of(subgraph, other_inputs, None))
    kernels: dict[Variant, Kernel] = {}
    for variant in offered:
        with _naming(f"{where}, {variant}"):
            _check_formats(subgraph, variant, target, runs[0])
            try:
                kernel = backend.build(subgraph, variant, target)
            except DeclinedError:
                continue
            kernels[variant] = kernel
            _check_kernel(kernel, subgraph, variant, runs, tolerances or {}, repeatable)
            if (stored := backend.stored(kernel, subgraph, variant, target)) is not None:
                with _naming("restored"):
                    again = restore(_read_again(stored))
                    _check_kernel(again, subgraph, variant, runs, tolerances or {}, repeatable)
    if not kernels:
        raise NothingBuiltError(f"{where}: every variant is declined when it is to be built")
    return kernels


def _offer(backend: Backend, subgraph: Subgraph, target: Target) -> Sequence[Variant]:
    offered = backend.variants(subgraph, target)
    if isinstance(offered, Refusal) or not offered:
        raise AssertionError(f"no variant is offered: {offered}")
    if (declined := list(backend.supported([subgraph], target))) != [None]:
        raise AssertionError(f"variants are offered, and yet `supported` says {declined}")
    if len(set(offered)) < len(offered):
        raise AssertionError(f"a variant is offered twice: {', '.join(map(str, offered))}")
    return offered


@dataclass(frozen=True, slots=True)
class _Run:
    """What a kernel is given, and what it should answer, in the order of its subgraph's values."""

    inputs: Mapping[str, Array]
    outputs: Sequence[Array]

    @classmethod
    def of(
        cls, subgraph: Subgraph, inputs: Mapping[str, Array], expected: Mapping[str, Array] | None
    ) -> _Run:
        asked = subgraph.outputs if expected is None else ()
        values = evaluate(subgraph.graph, inputs, keep=(*subgraph.inputs, *asked))
        answers = values if expected is None else expected
        return cls({v: values[v] for v in subgraph.inputs}, [answers[v] for v in subgraph.outputs])


def _check_formats(subgraph: Subgraph, variant: Variant, target: Target, run: _Run) -> None:
    for what, names, formats, values in (
        ("input", subgraph.inputs, variant.inputs, list(run.inputs.values())),
        ("output", subgraph.outputs, variant.outputs, run.outputs),
    ):
        if len(formats) != len(names):
            raise AssertionError(f"it has {len(formats)} formats of {len(names)} {what}s")
        for name, format, value in zip(names, formats, values, strict=True):
            if not target.stores(str(value.dtype), value.ndim, format):
                raise AssertionError(f"{what} {name!r} is {value.dtype}{list(value.shape)}, not {format}")


def _check_kernel(
    kernel: Kernel,
    subgraph: Subgraph,
    variant: Variant,
    runs: Sequence[_Run],
    tolerances: Mapping[str, float],
    repeatable: bool,
) -> None:
    bound = bind(kernel, subgraph, variant)
    answers: list[list[Array]] = []
    for run in runs:
        # what it leaves out, or has left there in the call before, must not look right twice
        byte = 0x00 if len(answers) % 2 else 0xFF
        bound.load(run.inputs)
        on = bound.stations[variant.device]
        on.fill(bound.workspace, on.byte_format, byte)
        for output, format in zip(bound.outputs, variant.outputs, strict=True):
            bound.stations[format.device].fill(output, format, byte)
        with _naming(f"call {len(answers) + 1}"):
            _call(bound, subgraph, run, range(len(run.inputs)), tolerances)
        answers.append(bound.read(bound.outputs, variant.outputs))
    drawn = random_values(subgraph.graph, subgraph.nodes)
    fixed = [i for i, name in enumerate(subgraph.outputs) if name not in drawn]
    if repeatable and not all(_same(answers[0][i], answers[1][i]) for i in fixed):
        raise AssertionError("the second call answers otherwise than the first, on the same inputs")
    first, shapes = runs[0], [runs[0].inputs[v].shape for v in subgraph.inputs]
    # other shapes or formats are never made to share: core tells that by itself
    alike = {
        o: i
        for o, i in kernel.may_alias.items()
        if (variant.outputs[o], first.outputs[o].shape) == (variant.inputs[i], shapes[i])
    }
    for alias in ways_to_share(alike):
        others = [i for i in range(len(first.inputs)) if i not in alias.values()]
        with _naming(" and ".join(f"output {o} in the buffer of input {i}" for o, i in alias.items())):
            bound = bind(kernel, subgraph, variant, first.inputs, alias)
            _call(bound, subgraph, first, others, tolerances)
    contexts = [(run, bind(kernel, subgraph, variant, run.inputs)) for run in (first, runs[-1])]
    for run, bound in (contexts[1], contexts[0], contexts[1]):
        with _naming("bound twice"):
            _call(bound, subgraph, run, range(len(run.inputs)), tolerances)


def _call(
    bound: BoundKernel,
    subgraph: Subgraph,
    run: _Run,
    kept: Sequence[int],
    tolerances: Mapping[str, float],
) -> None:
    """Call once; its outputs are the run's, and the inputs that `kept` numbers are what they were."""
    formats = bound.variant.inputs
    before = [a.tobytes() for a in bound.read(bound.inputs, formats)]
    if code := bound.call():
        raise AssertionError(f"it returned error code {code!r}")
    for station in bound.stations.values():
        station.queue.synchronize()
        if (beside := station.buffers.trespass()) is not None:
            raise AssertionError(f"it wrote outside its buffers, {beside}")
    inputs, outputs = bound.read(bound.inputs, formats), bound.read(bound.outputs, bound.variant.outputs)
    for i in kept:
        if inputs[i].tobytes() != before[i]:
            raise AssertionError(f"it changed its input {subgraph.inputs[i]!r}")
    rounded = rounded_to(subgraph, bound.variant)
    answers = partial(rounded_answers, subgraph, run.inputs, exact_values(subgraph, bound.variant))
    held_to = standards(subgraph.graph, subgraph.nodes, rounded, answers)
    for name, output, expected in zip(subgraph.outputs, outputs, run.outputs, strict=True):
        error, wrong = compare(name, output.astype(expected.dtype), expected, held_to.get(name))
        if wrong is not None:
            raise AssertionError(str(wrong))
        allowed = None if rounded else tolerances.get(str(expected.dtype))
        if allowed is not None and not (error is not None and error <= allowed):
            raise AssertionError(f"output {name!r} has error {error}, more than {allowed:g}")


def _read_again(stored: StoredKernel) -> StoredKernel:
    """As it comes back from a file."""
    arrays = [own(array) for array in stored.arrays]
    for array in arrays:
        array.flags.writeable = False
    return StoredKernel(stored.kind, json.loads(json.dumps(dict(stored.facts))), stored.code, tuple(arrays))


def _same(one: Array, other: Array) -> bool:
    is_whole = one.dtype.kind in "biu"
    return one.tobytes() == other.tobytes() if is_whole else np.array_equal(one, other, equal_nan=True)


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Whatever is raised inside is an AssertionError that begins with `where`."""
    try:
        yield
    except Exception as error:
        said = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        raise AssertionError(f"{where}: {said}") from error
