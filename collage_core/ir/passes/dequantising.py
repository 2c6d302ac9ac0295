"""Dequantised values: a DequantizeLinear for each reader, so that each can be one kernel with its own."""

from __future__ import annotations

import dataclasses

from collage_core.ir.bodies import free_name
from collage_core.ir.graph import Graph
from collage_core.ir.passes.base import Pass
from collage_core.ir.types import Node

__all__ = ["DEQUANTISE_FOR_EACH"]


def _for_each(graph: Graph) -> Graph:
    """A kernel that multiplies whole numbers takes the DequantizeLinear before it in. Were its value read
    elsewhere as well, it could not. What the graph returns stays with the first.
    """
    values = dict(graph.values)
    names = {n.name for n in graph.nodes}
    next_id = max(graph.all_nodes, default=-1) + 1
    nodes: list[Node] = []
    for node in graph.nodes:
        inputs = list(node.inputs)
        for k, v in enumerate(node.formal_inputs):
            maker = graph.producer(v) if v else None
            if maker is None or not _is_shared(graph, maker):
                continue
            if not graph.is_output(v) and graph.consumers(v)[0] is node:
                continue
            if v in node.inputs[:k]:
                inputs[k] = inputs[node.inputs.index(v)]
                continue
            inputs[k] = free_name(f"{v}.for.{node.name}", values)
            values[inputs[k]] = dataclasses.replace(values[v], name=inputs[k])
            name = free_name(f"{maker.name}.for.{node.name}", names)
            names.add(name)
            nodes.append(dataclasses.replace(maker, id=next_id, name=name, outputs=(inputs[k],)))
            next_id += 1
        nodes.append(
            node if tuple(inputs) == node.inputs else dataclasses.replace(node, inputs=tuple(inputs))
        )
    return graph.replace(nodes=nodes, values=values)


def _is_shared(graph: Graph, node: Node) -> bool:
    v = node.outputs[0]
    readers = len(graph.consumers(v)) + graph.is_output(v)
    return node.op_type == "DequantizeLinear" and not node.domain and readers > 1


DEQUANTISE_FOR_EACH = Pass(
    "dequantise-for-each", "give each reader of a dequantised value a DequantizeLinear of its own", _for_each
)
