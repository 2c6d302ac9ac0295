"""A backend that NumPy plays, and small graphs placed on it by hand."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from onnx import TensorProto, helper

from collage_core.backend import Backend, BackendInfo, BackendKind, Bound, Kernel, Variant, plain_variant
from collage_core.devices import Queue
from collage_core.errors import BackendError, Refusal
from collage_core.formats import Array, Format, channels_last, plain
from collage_core.ir import Graph, NodeSet, Subgraph, TensorType, from_model
from collage_core.placement import Group, Placement
from collage_core.target import Target

__all__ = [
    "FLOAT",
    "TARGET",
    "InPlaceRelu",
    "NumpyBackend",
    "copy_into",
    "graph_of",
    "group_of",
    "placement_of",
    "x_for",
]

FLOAT = TensorProto.FLOAT
"""The element type of all values."""
TARGET = Target("cpu", 1)
"""What placements are made for."""


class InPlaceRelu(Kernel):
    """Remembers whether its output was its input's buffer."""

    def __init__(self) -> None:
        self.may_alias = {0: 0}
        self.seen_shared = False

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        self.seen_shared = inputs[0].ctypes.data == outputs[0].ctypes.data
        return partial(_relu, inputs[0], outputs[0])


def _relu(x: Array, y: Array) -> None:
    np.maximum(x, 0, out=y)


class CopyKernel(Kernel):
    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        return partial(copy_into, outputs[0], inputs[0])


def copy_into(destination: Array, source: Array) -> None:
    """What a call of a copying kernel does."""
    np.copyto(destination, source)


class FailingKernel(Kernel):
    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        return lambda: 7


class RaisingKernel(Kernel):
    def __init__(self, error: Exception) -> None:
        self._error = error

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        def call() -> None:
            raise self._error

        return call


class NumpyBackend(Backend):
    """Runs Relu in place from and to plain or channels-last, and converts.

    Fails on Neg, Exp and Log when it runs, and on Abs when it is built.
    """

    name = "numpy"

    def __init__(self) -> None:
        self.built: list[Kernel] = []

    def info(self) -> BackendInfo:
        return BackendInfo(self.name, BackendKind.OPERATOR, "1", "1")

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        variant = plain_variant(subgraph)
        [shape] = {subgraph.graph.shape_of(v) for v in (*subgraph.inputs, *subgraph.outputs)}
        formats = plain("float32", shape), channels_last("float32", shape)
        return [variant, *(Variant((a,), (b,)) for a in formats for b in formats)]

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        op = subgraph.nodes[0].op_type
        if op == "Abs":
            raise ValueError("no such kernel")
        faulty = {
            "Neg": FailingKernel(),
            "Exp": RaisingKernel(OverflowError("out of range")),
            "Log": RaisingKernel(BackendError("numpy: below zero")),
        }
        kernel = faulty.get(op) or InPlaceRelu()
        self.built.append(kernel)
        return kernel

    def converts(self, type: TensorType, source: Format, destination: Format, target: Target) -> bool:
        return True

    def build_conversion(
        self, type: TensorType, source: Format, destination: Format, target: Target
    ) -> Kernel:
        return CopyKernel()


def graph_of(
    nodes: Sequence[tuple[str, Sequence[str], str]],
    outputs: Sequence[str],
    shape: Sequence[int] = (2, 3, 4, 5),
) -> Graph:
    """Nodes by operator, what they read and what they write; they have the names of that."""
    made = [helper.make_node(op, list(reads), [write], name=write) for op, reads, write in nodes]
    inputs = [helper.make_tensor_value_info("x", FLOAT, shape)]
    proto = helper.make_graph(
        made, "g", inputs, [helper.make_tensor_value_info(v, FLOAT, None) for v in outputs]
    )
    return from_model(helper.make_model(proto, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))


def group_of(graph: Graph, id: int, backend: str) -> Group:
    """The node of this id alone, its values row by row."""
    return Group(backend, (id,), plain_variant(Subgraph(graph, NodeSet([id]))))


def placement_of(graph: Graph, backends: Sequence[str]) -> Placement:
    """Each node alone on the backend that comes in its turn."""
    groups = [group_of(graph, n.id, b) for n, b in zip(graph.nodes, backends, strict=True)]
    return Placement(tuple(groups), (), TARGET)


def x_for(graph: Graph, seed: int = 0) -> Array:
    """Random numbers for the graph's input."""
    return np.random.default_rng(seed).standard_normal(graph.shape_of("x")).astype(np.float32)
