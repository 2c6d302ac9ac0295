"""QLinearConv and QLinearMatMul, stated as what they compute: of dequantised values, quantised again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from collage_core.formats import Array
from collage_core.ir.bodies import free_name
from collage_core.ir.graph import Graph
from collage_core.ir.passes.base import Pass
from collage_core.ir.passes.cleaning import without_unused_values
from collage_core.ir.types import UNKNOWN, Node, TensorType, Value, ValueKind

__all__ = ["STATE_QLINEAR"]

_OF_FLOATS = {"QLinearConv": "Conv", "QLinearMatMul": "MatMul"}
_AXES_SINCE = 13
"""The opset from which DequantizeLinear takes one scale for each channel."""


def _state(graph: Graph) -> Graph:
    """Libraries look for this form. What is computed is rounded to float32 before it is quantised, which
    moves it by a step at most.
    """
    if graph.opsets.get("", 0) < _AXES_SINCE or not any(_is_qlinear(n) for n in graph.nodes):
        return graph
    stating = _Stating(graph)
    nodes = [made for n in graph.nodes for made in stating.of(n)]
    constants = {**graph.constants, **stating.constants}
    return without_unused_values(graph.replace(values=stating.values, constants=constants), nodes)


def _is_qlinear(node: Node) -> bool:
    return node.op_type in _OF_FLOATS and not node.domain


class _Steps(NamedTuple):
    """Scales, float32, and zero points, of one shape: () or (channels,)."""

    scale: Array
    zero_point: Array


class _Stating:
    """Makes the nodes that stand for others. values: the graph's and new ones. constants: new ones."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._next_id = max(graph.all_nodes, default=-1) + 1
        self._names = {n.name for n in graph.nodes}
        self.values = dict(graph.values)
        self.constants: dict[str, Array] = {}

    def of(self, node: Node) -> Iterator[Node]:
        """The node itself where it is none of these, or its steps are computed, or no float32 ones."""
        steps = [_steps(self._graph, node, k) for k in (1, 4, 6)] if _is_qlinear(node) else []
        x, weight, y = steps or (None, None, None)
        if x is None or weight is None or y is None:
            yield node
            return
        is_conv = node.op_type == "QLinearConv"
        operands = [(node.inputs[0], x, 1 if is_conv else -2), (node.inputs[3], weight, 0 if is_conv else -1)]
        if bias := node.inputs[8] if len(node.inputs) > 8 else "":
            scale = np.asarray(x.scale * weight.scale)
            operands.append((bias, _Steps(scale, np.zeros(scale.shape, np.int32)), 0))
        floats = []
        for number, given, axis in operands:
            floats.append(self._float(number))
            yield self._mover(node, "DequantizeLinear", number, given, axis, floats[-1])
        summed = self._float(node.outputs[0])
        yield dataclasses.replace(
            node, op_type=_OF_FLOATS[node.op_type], inputs=tuple(floats), outputs=(summed,)
        )
        yield self._mover(node, "QuantizeLinear", summed, y, 1 if is_conv else -2, node.outputs[0])

    def _mover(self, node: Node, op_type: str, given: str, steps: _Steps, axis: int, result: str) -> Node:
        """A QuantizeLinear or DequantizeLinear that stands beside `node`."""
        name = free_name(f"{node.name}.{op_type}", self._names)
        self._names.add(name)
        inputs = [given]
        for what, data in zip(_Steps._fields, steps, strict=True):
            v = free_name(f"{name}.{what}", self.values)
            self.values[v] = Value(v, TensorType(data.dtype.name, data.shape), ValueKind.CONSTANT)
            self.constants[v] = data
            inputs.append(v)
        self._next_id += 1
        attributes = {"axis": axis} if steps.scale.ndim else {}
        return Node(self._next_id - 1, name, op_type, tuple(inputs), (result,), attributes)

    def _float(self, number: str) -> str:
        """A new value, with the floats of `number`."""
        v, type = free_name(f"{number}.float", self.values), self._graph.type_of(number)
        type = type if type == UNKNOWN else TensorType("float32", type.shape)
        self.values[v] = Value(v, type, ValueKind.INTERMEDIATE)
        return v


def _steps(graph: Graph, node: Node, k: int) -> _Steps | None:
    """The constants at inputs `k` and `k + 1`; None if they are none, or differ along several axes."""
    scale, zero = (graph.constants.get(v) for v in node.inputs[k : k + 2])
    if scale is None or zero is None or scale.dtype != np.float32:
        return None
    shape = () if scale.size == zero.size == 1 else (max(scale.size, zero.size),)
    if any(a.size not in (1, *shape) or (a.size > 1 and a.ndim != 1) for a in (scale, zero)):
        return None
    # What has one element is it for all channels.
    flat = (a.reshape(() if a.size == 1 else -1) for a in (scale, zero))
    return _Steps(*(np.broadcast_to(a, shape).copy() for a in flat))


STATE_QLINEAR = Pass(
    "state-qlinear",
    "state QLinearConv and QLinearMatMul as operators between Dequantize- and QuantizeLinear",
    _state,
)
