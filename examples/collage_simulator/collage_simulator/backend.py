"""Twenty-one operators on the simulated accelerator: float32, and float16 where the target allows it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from collage_core.backend import Backend, BackendInfo, BackendKind, Bound, Kernel, Variant
from collage_core.devices import DeviceArray, Queue
from collage_core.errors import Refusal
from collage_core.formats import Format, plain
from collage_core.ir import Node, Subgraph, TensorType
from collage_core.patterns import BackendPattern, is_op, wildcard
from collage_core.target import Target
from collage_simulator import __version__
from collage_simulator.device import NAME, SimQueue
from collage_simulator.engine import Program
from collage_simulator.operators import BINARY, UNARY

__all__ = ["SimBackend", "SimKernel"]

_STORED = ("float32", "float16")
_INPUTS = {**dict.fromkeys(UNARY, 1), **dict.fromkeys(BINARY, 2)}
"""How many, by operator: ONNX's Max and Min take any number."""
_ATTRIBUTES = {"LeakyRelu": ("alpha",), "Softmax": ("axis",)}


class SimBackend(Backend):
    name = NAME

    def info(self) -> BackendInfo:
        return BackendInfo(self.name, BackendKind.OPERATOR, __version__, __version__, (NAME,))

    def patterns(self) -> Sequence[BackendPattern]:
        unary = [is_op(op)(wildcard()) for op in UNARY]
        binary = [is_op(op)(wildcard(), wildcard()) for op in BINARY]
        return [BackendPattern(self.name, pattern) for pattern in (*unary, *binary)]

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        graph, values = subgraph.graph, (*subgraph.inputs, *subgraph.outputs)
        if NAME not in target.accelerators:
            return Refusal(f"device {NAME!r} does not take part")
        node = subgraph.nodes[0]
        if len(subgraph.nodes) > 1 or len(node.inputs) != _INPUTS.get(node.qualified_op):
            return Refusal("it computes single operators of one or two inputs, and not this one", node.name)
        if any(graph.type_of(v).dtype != "float32" for v in (*values, *subgraph.constants)):
            return Refusal("it computes float32 only")
        allowed = [dtype for dtype in _STORED if dtype == "float32" or dtype in target.precisions]

        def stored(names: Sequence[str], dtype: str) -> tuple[Format, ...]:
            return tuple(plain(dtype, graph.shape_of(v), NAME) for v in names)

        return [Variant(stored(subgraph.inputs, d), stored(subgraph.outputs, d)) for d in allowed]

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        (node,) = subgraph.nodes
        graph = subgraph.graph
        arguments = tuple(
            graph.constants[v] if graph.is_constant(v) else subgraph.inputs.index(v) for v in node.inputs
        )
        formats = zip((*subgraph.inputs, *subgraph.outputs), (*variant.inputs, *variant.outputs), strict=True)
        moved_bytes = sum(f.size_bytes(graph.shape_of(v)) for v, f in formats)
        moved_bytes += sum(graph.constants[v].nbytes for v in subgraph.constants)
        given = [
            (name, node.attributes[name])
            for name in _ATTRIBUTES.get(node.op_type, ())
            if name in node.attributes
        ]
        attributes = (("op", node.op_type), *given)
        return SimKernel(
            Program(self._function(node), arguments, attributes, _operations(subgraph, node), moved_bytes)
        )

    def converts(self, type: TensorType, source: Format, destination: Format, target: Target) -> bool:
        dtypes = (source.dtype, destination.dtype)
        here = source.device == destination.device == NAME and source.layout == destination.layout
        return here and source.is_plain and set(dtypes) <= {*_STORED} and dtypes[0] != dtypes[1]

    def build_conversion(
        self, type: TensorType, source: Format, destination: Format, target: Target
    ) -> Kernel:
        shape = type.static_shape
        moved_bytes = source.size_bytes(shape) + destination.size_bytes(shape)
        return SimKernel(
            Program("collage_simulator.operators:convert", (0,), (), math.prod(shape), moved_bytes)
        )

    def _function(self, node: Node) -> str:
        """What the device calls for it."""
        return "collage_simulator.operators:compute"


class SimKernel(Kernel):
    def __init__(self, program: Program) -> None:
        self._program = program

    def bind(
        self, inputs: Sequence[DeviceArray], outputs: Sequence[DeviceArray], workspace: Any, queue: Queue
    ) -> Bound:
        assert isinstance(queue, SimQueue)
        return queue.launcher(self._program, inputs, outputs)


def _operations(subgraph: Subgraph, node: Node) -> float:
    """One for each element of the result, of a product two for each term."""
    graph = subgraph.graph
    count = math.prod(graph.shape_of(node.outputs[0]))
    return 2.0 * count * graph.shape_of(node.inputs[0])[-1] if node.op_type == "MatMul" else float(count)
