"""From a subgraph and a variant to a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from collage_run.machine_code import MachineCodeKernel
from tvm import tirx

from collage_core.backend import Kernel, Variant
from collage_core.formats import Array, Format, own
from collage_core.ir import OpKind, Subgraph, TensorType, op_kind
from collage_core.target import Target
from collage_tvm.groups import POOLS
from collage_tvm.host import vector_lanes
from collage_tvm.library import Function, function_of
from collage_tvm.nest import Nest, assemble, sequence
from collage_tvm.output import Output
from collage_tvm.parameters import Parameters, lowered
from collage_tvm.partial import partial_reduction
from collage_tvm.pointwise import pointwise_nests
from collage_tvm.reductions import contraction_of, reductions_of
from collage_tvm.rows import row_nests
from collage_tvm.scan import scan_nests
from collage_tvm.tiles import contraction_nests
from collage_tvm.tuning.records import TUNED
from collage_tvm.vectors import fence, with_streams

__all__ = ["build_copy", "build_kernel", "compile_kernel_ahead"]

_ALONE_BYTES = 16 << 10
"""A kernel that moves less than this runs on one thread: sharing it out takes about a microsecond."""


@dataclass(frozen=True)
class _Lowered:
    """constants: what makes those that the kernel hands over."""

    function: Function
    constants: Sequence[Callable[[], Array]]


_latest: WeakKeyDictionary[Subgraph, tuple[Variant, Target, _Lowered]] = WeakKeyDictionary()
"""What was lowered last: a kernel that is measured with its constants cold is built twice."""


def build_kernel(subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
    """The compiled kernel of a variant that the backend has offered."""
    if (schedule := dict(variant.options).get(TUNED)) is not None:
        from collage_tvm.tuning.kernel import tuned_kernel

        return tuned_kernel(subgraph, variant, schedule, target)
    lowered = _lowered_kernel(subgraph, variant, target)
    layouts = [f.layout for f in variant.inputs], [f.layout for f in variant.outputs]
    constants = [own(make()).reshape(-1) for make in lowered.constants]
    return MachineCodeKernel(lowered.function.compiled(), *layouts, constants, _aliases(subgraph, variant))


def compile_kernel_ahead(subgraph: Subgraph, variant: Variant, target: Target) -> None:
    """Make sure that `build_kernel` finds all that it loads. Reads no weights."""
    if (schedule := dict(variant.options).get(TUNED)) is not None:
        from collage_tvm.tuning.kernel import compile_tuned_ahead

        return compile_tuned_ahead(subgraph, variant, schedule, target)
    _lowered_kernel(subgraph, variant, target).function.compile_ahead()


def _lowered_kernel(subgraph: Subgraph, variant: Variant, target: Target) -> _Lowered:
    known = _latest.get(subgraph)
    if known is not None and known[:2] == (variant, target):
        return known[2]
    parameters = Parameters()
    values = lowered(subgraph, variant, parameters)
    outputs = [
        parameters.output(values[v], f) for v, f in zip(subgraph.outputs, variant.outputs, strict=True)
    ]
    moved = sum(subgraph.graph.type_of(v).size_bytes for v in (*subgraph.inputs, *subgraph.outputs))
    # The windows of pooling are written out, in vectors. LLVM would take three times as long to look for
    # further ones, and find next to nothing.
    slp = not any(n.op_type in POOLS for n in subgraph.nodes)
    result = _Lowered(_function(parameters, outputs, moved, target, slp), parameters.constants)
    _latest.clear()
    _latest[subgraph] = variant, target, result
    return result


def build_copy(type: TensorType, source: Format, destination: Format, target: Target) -> MachineCodeKernel:
    """The kernel that stores a value in another layout, or rounded, or no more so."""
    parameters = Parameters()
    output = parameters.output(parameters.input("x", type.static_shape, source), destination)
    function = _function(parameters, [output], 2 * type.size_bytes, target)
    return MachineCodeKernel(function.compiled(), [source.layout], [destination.layout], [], {})


def _function(
    parameters: Parameters, outputs: list[Output], moved_bytes: int, target: Target, slp: bool = True
) -> Function:
    """moved_bytes: without what the kernel holds itself. slp: see `tvm_target`."""
    steps = [partial for o in outputs if (partial := partial_reduction(o.tensor)) is not None]
    firsts = [nest for step in steps for nest in _nests(step, parameters)]
    nests = [nest for output in outputs for nest in _nests(output, parameters)]
    if moved_bytes + parameters.constant_bytes <= _ALONE_BYTES:
        target = replace(target, threads=1)
    streamed = {o.tensor.dtype for o in outputs if o.streams}
    body = assemble(nests, target.threads, [fence()] if streamed else [])
    if streamed:
        body = with_streams(body, streamed, vector_lanes())
    if steps:
        shared = [tirx.AllocBuffer(step.buffer) for step in steps]
        body = sequence([*shared, assemble(firsts, target.threads), body])
    return function_of(parameters.all(), body, target, slp=slp)


def _nests(output: Output, parameters: Parameters) -> list[Nest]:
    lanes = vector_lanes()
    if contraction_of(output.tensor) is not None:
        return contraction_nests(output, lanes, parameters.hold_made)
    if output.tensor.scan is not None:
        return scan_nests(output, lanes)
    return row_nests(output, lanes) if reductions_of(output.tensor) else pointwise_nests(output, lanes)


def _aliases(subgraph: Subgraph, variant: Variant) -> dict[int, int]:
    """The output may take the place of an input that is read at the very element that is written next."""
    graph = subgraph.graph
    if len(subgraph.outputs) != 1 or any(op_kind(graph, n) > OpKind.BROADCAST for n in subgraph.nodes):
        return {}
    shape = graph.shape_of(subgraph.outputs[0])
    for k, (name, format) in enumerate(zip(subgraph.inputs, variant.inputs, strict=True)):
        if graph.shape_of(name) == shape and format == variant.outputs[0]:
            return {0: k}
    return {}
