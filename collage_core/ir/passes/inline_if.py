"""If whose condition is known: the branch taken stands in its place."""

from __future__ import annotations

import dataclasses

from collage_core.ir.bodies import bodies_of, free_name, in_place
from collage_core.ir.graph import Graph
from collage_core.ir.onnx_read import infer_types
from collage_core.ir.passes.base import Pass
from collage_core.ir.passes.cleaning import without_unused_values
from collage_core.ir.passes.constants import fold
from collage_core.ir.types import Node

__all__ = ["INLINE_CONSTANT_IF"]


def _inline(graph: Graph) -> Graph:
    """A branch may hold an If, and folding may tell conditions: both are repeated until nothing changes."""
    while any(n.op_type == "If" and not n.domain for n in graph.nodes):
        inlined = _inline_once(graph) or _inline_once(fold(graph))
        if inlined is None:
            break
        graph = infer_types(inlined)
    return graph


def _inline_once(graph: Graph) -> Graph | None:
    """None if no condition is constant."""
    if not any(_is_decided(graph, n) for n in graph.nodes):
        return None
    values, constants = dict(graph.values), dict(graph.constants)
    names = {n.name for n in graph.nodes}
    next_id = max(graph.all_nodes, default=-1) + 1
    nodes: list[Node] = []
    for n in graph.nodes:
        if not _is_decided(graph, n):
            nodes.append(n)
            continue
        taken = "then_branch" if bool(graph.constants[n.inputs[0]].item()) else "else_branch"
        branch = in_place(n, bodies_of(n)[taken], values.keys() | constants.keys())
        for inner in branch.nodes:
            name = free_name(f"{n.name}.{inner.name}", names)
            names.add(name)
            nodes.append(dataclasses.replace(inner, id=next_id, name=name))
            next_id += 1
        constants |= branch.constants
        values = {**branch.values, **values}
    return without_unused_values(graph.replace(nodes=nodes, values=values, constants=constants), nodes)


def _is_decided(graph: Graph, node: Node) -> bool:
    condition = graph.constants.get(node.inputs[0]) if node.op_type == "If" and not node.domain else None
    return condition is not None and condition.size == 1


INLINE_CONSTANT_IF = Pass(
    "inline-constant-if",
    "put the branch that is taken in the place of an If whose condition is known",
    _inline,
)
