"""Passes that remove what does no work at inference."""

from __future__ import annotations

import dataclasses
from collections.abc import Set

from onnx.defs import OpSchema

from collage_core.ir.attributes import schema_of
from collage_core.ir.graph import Graph
from collage_core.ir.operator import Operator
from collage_core.ir.passes.base import Pass
from collage_core.ir.types import Node

__all__ = ["DEAD_CODE", "DROP_IDENTITIES", "without_unused_values"]


def without_unused_values(graph: Graph, nodes: list[Node]) -> Graph:
    """`graph` with these nodes and without the values that no longer occur."""
    used = {v for n in nodes for v in (*n.inputs, *n.outputs) if v} | set(graph.inputs) | set(graph.outputs)
    used |= {i for v, n in graph.dequantised.items() if v in used for i in n.inputs if i}
    values = {name: value for name, value in graph.values.items() if name in used}
    constants = {name: data for name, data in graph.constants.items() if name in used}
    return graph.replace(nodes=nodes, values=values, constants=constants)


def _remove_dead_code(graph: Graph) -> Graph:
    needed = set(graph.outputs)
    kept: list[Node] = []
    for n in reversed(graph.nodes):
        if any(v in needed for v in n.outputs):
            kept.append(_without_unread_outputs(graph, n, needed))
            needed.update(n.inputs)
    return without_unused_values(graph, kept[::-1])


def _without_unread_outputs(graph: Graph, node: Node, needed: Set[str]) -> Node:
    """The node without those optional outputs that nobody reads, which lets operators such as Dropout and
    MaxPool be plain ones. Others stay: how many outputs a Split has says into how many parts it cuts.
    """
    if node.op_type == "BatchNormalization":
        return node  # it trains if it has more than one output, and then must have all
    schema = schema_of(Operator(graph, node))
    optional = [o.option == OpSchema.FormalParameterOption.Optional for o in schema.outputs] if schema else []
    outputs = [
        "" if k < len(optional) and optional[k] and v not in needed else v for k, v in enumerate(node.outputs)
    ]
    while len(outputs) > 1 and not outputs[-1]:
        outputs.pop()
    return node if tuple(outputs) == node.outputs else dataclasses.replace(node, outputs=tuple(outputs))


def _is_identity(graph: Graph, node: Node) -> bool:
    if node.domain or any(node.outputs[1:]):
        return False
    if node.op_type == "Identity":
        return True
    if node.op_type == "Dropout":
        training = node.inputs[2] if len(node.inputs) > 2 else ""
        return not training or (graph.is_constant(training) and not bool(graph.constants[training]))
    return (
        node.op_type == "Cast" and graph.type_of(node.inputs[0]).dtype == graph.type_of(node.outputs[0]).dtype
    )


def _drop_identities(graph: Graph) -> Graph:
    renamed: dict[str, str] = {}
    kept: list[Node] = []
    for n in graph.nodes:
        inputs = tuple(renamed.get(v, v) for v in n.inputs)
        if _is_identity(graph, n) and not graph.is_output(n.outputs[0]):
            renamed[n.outputs[0]] = inputs[0]
        else:
            kept.append(n if inputs == n.inputs else dataclasses.replace(n, inputs=inputs))
    return without_unused_values(graph, kept)


DEAD_CODE = Pass(
    "dead-code", "remove nodes and optional outputs that no output of the graph needs", _remove_dead_code
)
DROP_IDENTITIES = Pass(
    "drop-identities", "remove Identity, inference Dropout and casts to the same type", _drop_identities
)
