"""Regions: what computes values of open shapes, sequences and the like becomes one node, whose inputs and
outputs are tensors of known shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

import numpy as np
from collage_run.open_outputs import OpenOutput

from collage_core.errors import ModelError
from collage_core.formats import Array
from collage_core.ir.bodies import free_name, renamed
from collage_core.ir.graph import Graph
from collage_core.ir.nodeset import NodeSet
from collage_core.ir.onnx_read import infer_types, inference_fault
from collage_core.ir.passes.base import Pass
from collage_core.ir.passes.bounds import bounds_of
from collage_core.ir.regions import Part, joined
from collage_core.ir.types import UNKNOWN, Node, TensorType, Value, ValueKind

__all__ = ["GATHER_REGIONS"]

_FIRST_OPSET = 9
"""With Where and ConstantOfShape."""


def _gather(graph: Graph) -> Graph:
    """Nothing while the shapes of inputs are open, where something else is wrong, or where an output can
    become of any size, which `require_static` tells.
    """
    open_values = _open_values(graph)
    if not open_values or not all(graph.type_of(v).is_static for v in graph.inputs):
        return graph
    if graph.opsets.get("", 0) < _FIRST_OPSET or _is_faulty(graph, open_values):
        return graph
    if outputs := [v for v in dict.fromkeys(graph.outputs) if v in open_values]:
        try:
            bounds = bounds_of(graph, outputs)
        except ModelError:
            return graph
        graph = infer_types(_filled_up(graph, bounds))
        open_values = _open_values(graph)
    parts = [_part(graph, nodes, open_values) for nodes in _regions(graph, open_values)]
    return joined(graph, parts)


def _open_values(graph: Graph) -> set[str]:
    return {v for v in graph.intermediates() if not graph.type_of(v).is_static}


def _is_faulty(graph: Graph, open_values: set[str]) -> bool:
    """Whether a shape is not open but wrong, or what yields it unknown."""
    unknown = any(n.domain and not open_values.isdisjoint(n.outputs) for n in graph.nodes)
    texts = any(value.type.dtype == "object" for value in graph.values.values())
    return unknown or texts or inference_fault(graph) is not None


def _part(graph: Graph, nodes: NodeSet, open_values: set[str]) -> Part:
    """Named after the first node at which a shape becomes open."""
    inside = [n for n in graph.nodes if n.id in nodes]
    first = next(n for n in inside if not open_values.isdisjoint(n.outputs))
    name = free_name(f"{first.name}.region", {n.name for n in graph.nodes})
    return Part(first.id, name, nodes)


def _regions(graph: Graph, open_values: set[str]) -> list[NodeSet]:
    """Sets of nodes that share open values, and what lies between them: regions read each other in one
    direction only, and none reads itself.
    """
    leader: dict[int, int] = {n.id: n.id for n in graph.nodes}

    def first_of(id: int) -> int:
        while leader[id] != id:
            id = leader[id]
        return id

    touching = [n for n in graph.nodes if not open_values.isdisjoint((*n.inputs, *n.outputs))]
    for n in touching:
        for v in open_values.intersection(n.inputs):
            producer = graph.producer(v)
            assert producer is not None
            leader[first_of(n.id)] = first_of(producer.id)
    whole = {n.id: first_of(n.id) for n in graph.nodes}
    behind: dict[int, set[int]] = {}
    before: dict[int, set[int]] = {}
    for n in graph.nodes:
        for p in graph.predecessors(n.id):
            behind.setdefault(whole[p.id], set()).add(whole[n.id])
            before.setdefault(whole[n.id], set()).add(whole[p.id])
    regions: list[set[int]] = []
    for start in dict.fromkeys(whole[n.id] for n in touching):
        if not any(start in region for region in regions):
            regions.append(_reached(start, behind) & _reached(start, before))
    return [NodeSet(i for i, w in whole.items() if w in region) for region in regions]


def _reached(start: int, along: Mapping[int, set[int]]) -> set[int]:
    found, todo = {start}, [start]
    while todo:
        more = along.get(todo.pop(), set()) - found
        found |= more
        todo += more
    return found


def _filled_up(graph: Graph, bounds: Mapping[str, TensorType]) -> Graph:
    """The graph with these outputs as large as they can become, zeros behind what is valid, and their sizes
    as further outputs.
    """
    names: dict[str, str] = {}
    for v in bounds:
        names[v] = free_name(f"{v}.open", {*graph.values, *names.values()})
    opened = {v: _delivered_type(v, graph.type_of(v), bound) for v, bound in bounds.items()}
    made = _Filling(renamed(graph, names))
    told = {v: OpenOutput(made.filled(names[v], opened[v], v, bounds[v]), opened[v]) for v in bounds}
    return made.graph.replace(
        nodes=[*made.graph.nodes, *made.nodes],
        values=made.values,
        constants=made.constants,
        outputs=[*graph.outputs, *(o.sizes for o in told.values())],
        dequantised=graph.dequantised,
        open_outputs={**graph.open_outputs, **told},
    )


def _delivered_type(name: str, type: TensorType, bound: TensorType) -> TensorType:
    shape = type.shape if type != UNKNOWN else tuple(f"{name}_{i}" for i in range(len(bound.shape)))
    return TensorType(bound.dtype, shape)


class _Filling:
    """What is added to a graph: nodes, and with them values and constants."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[Node] = []
        self.values = dict(graph.values)
        self.constants = dict(graph.constants)
        self._ids = count(max(graph.all_nodes) + 1)
        self._taken = {n.name for n in graph.nodes}

    def filled(self, source: str, opened: TensorType, name: str, bound: TensorType) -> str:
        """`name` becomes `source` with zeros behind it along each open axis. Returns what holds the shape of
        `source`.

        A size beyond its bound is an error when it runs: there is no negative number of zeros.
        """
        axes = np.arange(len(bound.shape))
        most = self._constant(f"{name}.most", np.array(bound.static_shape, np.int64))
        present = sizes = self._node("Shape", (source,), f"{name}.sizes")
        missing = self._node("Sub", (most, sizes), f"{name}.missing")
        longer = source
        open_axes = [a for a in axes.tolist() if isinstance(opened.shape[a], str)]
        for axis in open_axes:
            along = self._constant(f"{name}.along_{axis}", axes == axis)
            gap = self._node("Where", (along, missing, present), f"{name}.gap_{axis}")
            zero = {"value": np.zeros(1, bound.dtype)}
            zeros = self._node("ConstantOfShape", (gap,), f"{name}.zeros_{axis}", zero)
            longer = self._node("Concat", (longer, zeros), f"{name}.longer_{axis}", {"axis": axis})
            if axis != open_axes[-1]:
                present = self._node("Where", (along, most, present), f"{name}.present_{axis}")
        self._add("Reshape", (longer, most), name, {})
        self.values[name] = Value(name, bound, ValueKind.INTERMEDIATE)
        return sizes

    def _constant(self, name: str, data: Array) -> str:
        name = free_name(name, self.values)
        self.constants[name] = data
        self.values[name] = Value(name, TensorType(data.dtype.name, data.shape), ValueKind.CONSTANT)
        return name

    def _node(
        self, op_type: str, inputs: tuple[str, ...], name: str, attributes: Mapping[str, Any] | None = None
    ) -> str:
        name = free_name(name, self.values)
        self.values[name] = Value(name, UNKNOWN, ValueKind.INTERMEDIATE)
        self._add(op_type, inputs, name, attributes or {})
        return name

    def _add(self, op_type: str, inputs: tuple[str, ...], output: str, attributes: Mapping[str, Any]) -> None:
        name = free_name(output, self._taken)
        self._taken.add(name)
        self.nodes.append(Node(next(self._ids), name, op_type, inputs, (output,), attributes))


GATHER_REGIONS = Pass(
    "gather-regions",
    "join what computes values of open shapes, sequences and optionals to regions, and bound open outputs",
    _gather,
)
