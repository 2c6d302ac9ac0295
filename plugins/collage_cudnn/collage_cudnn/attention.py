"""Scaled dot products of queries with keys, their softmax, and products with values, as one kernel. cuDNN has
it in half precisions only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collage_core.errors import Refusal
from collage_core.formats import Layout
from collage_core.ir import Graph, Node, Subgraph
from collage_core.patterns import Pattern, is_constant, is_op, wildcard
from collage_cudnn.pointwise import scalar
from collage_cudnn.support import refusal, softmax_axis

__all__ = ["LAYOUTS", "Attention", "attention_pattern", "parse_attention"]

_RANK = 4
_SHORTEST = 3

LAYOUTS: tuple[tuple[Layout, Layout], ...] = (((0, 2, 1, 3), (0, 3, 1, 2)), ((0, 1, 2, 3), (0, 1, 3, 2)))
"""Of queries, values and results, and of the transposed keys: what belongs to one head lies in one piece, or
between the other heads'.
"""


@dataclass(frozen=True, slots=True)
class Attention:
    """queries: [batch, heads, length, size]. keys: [batch, heads, size, other length], transposed as the
    product reads them. values: [batch, heads, other length, other size]. scale: of the products.
    """

    graph: Graph
    queries: str
    keys: str
    values: str
    scale: float
    output: str


def attention_pattern() -> Pattern:
    products = is_op("MatMul")(wildcard(), wildcard())
    scaled = is_op("Div")(products, is_constant()) | is_op("Mul")(products, is_constant())
    return is_op("MatMul")(is_op("Softmax")(scaled | products), wildcard())


def parse_attention(subgraph: Subgraph) -> Attention | Refusal | None:
    """None where the group is nothing of the kind."""
    nodes = subgraph.nodes
    kinds = [n.op_type for n in nodes]
    if len(nodes) < _SHORTEST or kinds[0] != "MatMul" or kinds[-2:] != ["Softmax", "MatMul"]:
        return None
    graph = subgraph.graph
    for node in nodes:
        wrong = refusal(graph, node)
        if wrong is not None:
            return wrong
    return _read(subgraph, graph, nodes)


def _read(subgraph: Subgraph, graph: Graph, nodes: Sequence[Node]) -> Attention | Refusal:
    first, softmax, last = nodes[0], nodes[-2], nodes[-1]
    running, scale = first.outputs[0], 1.0
    for node in nodes[1:-2]:
        factor = _factor(graph, node, running)
        if isinstance(factor, Refusal):
            return factor
        running, scale = node.outputs[0], scale * factor
    if softmax.inputs[0] != running or last.inputs[0] != softmax.outputs[0]:
        return Refusal("the softmax is not between the two products", softmax.name)
    if subgraph.outputs != (last.outputs[0],):
        return Refusal("what is between the products is read elsewhere", softmax.name)
    (queries, keys), values = first.inputs, last.inputs[1]
    names = (queries, keys, values)
    if any(graph.is_constant(v) for v in names) or len(set(names)) < len(names):
        return Refusal("queries, keys and values are not three values that are computed", first.name)
    shapes = [graph.shape_of(v) for v in names]
    if any(len(s) != _RANK for s in shapes) or len({s[:2] for s in shapes}) > 1:
        return Refusal("queries, keys and values are not of as many batches and heads", first.name)
    if softmax_axis(graph, softmax) != _RANK - 1:
        return Refusal("the softmax is not along the keys", softmax.name)
    return Attention(graph, queries, keys, values, scale, last.outputs[0])


def _factor(graph: Graph, node: Node, running: str) -> float | Refusal:
    """By which a node multiplies the value that is passed along."""
    others = [v for v in node.inputs if v != running]
    number = scalar(graph, others[0]) if len(others) == 1 else None
    if number is None or node.op_type not in ("Div", "Mul"):
        return Refusal("between the products is more than one factor", node.name)
    if node.op_type == "Mul":
        return number
    if number == 0.0 or node.inputs[0] != running:
        return Refusal("the products are no dividend, or are divided by zero", node.name)
    return 1.0 / number
