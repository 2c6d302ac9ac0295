"""Put back together what exporters took apart: one operator tells a backend more than five."""

from __future__ import annotations

import dataclasses
import math

from collage_core.ir.graph import Graph
from collage_core.ir.passes.base import Pass
from collage_core.ir.passes.cleaning import without_unused_values
from collage_core.ir.types import Node

__all__ = ["RECOMPOSE_GELU"]

_GELU_OPSET = 20


def _recompose_gelu(graph: Graph) -> Graph:
    """x * 0.5 * (1 + erf(x / sqrt 2)), its factors in any order, becomes Gelu (ONNX opset 20,
    approximate="none").
    """
    if graph.opsets.get("", 0) < _GELU_OPSET:
        return graph
    nodes = {n.id: n for n in graph.nodes}
    for erf in graph.nodes:
        if erf.op_type == "Erf" and not erf.domain:
            found = _gelu_around(graph, erf)
            # A factor of shape [1, 1] would give the result a dimension that Gelu does not.
            if found is not None and graph.type_of(found[0]) == graph.type_of(found[2].outputs[0]):
                x, inner, root = found
                for n in inner:
                    del nodes[n.id]
                nodes[root.id] = dataclasses.replace(root, op_type="Gelu", inputs=(x,), attributes={})
    return without_unused_values(graph, list(nodes.values()))


def _gelu_around(graph: Graph, erf: Node) -> tuple[str, list[Node], Node] | None:
    scaled = graph.producer(erf.inputs[0])
    if scaled is None:
        return None
    x = _operand_scaled_by(graph, scaled, 1 / math.sqrt(2))
    plus_one = _only_consumer(graph, erf)
    if (
        x is None
        or plus_one is None
        or plus_one.op_type != "Add"
        or _other_scalar(graph, plus_one, erf.outputs[0]) != 1.0
    ):
        return None
    # What is left is a product of three factors: x, 0.5 and (1 + erf). Two nodes multiply them, in one of
    # three orders.
    product = _only_consumer(graph, plus_one)
    if product is None or product.op_type != "Mul":
        return None
    other = _other_operand(product, plus_one.outputs[0])
    half = graph.producer(other)
    inner = [scaled, erf, plus_one]
    if (
        half is not None
        and _operand_scaled_by(graph, half, 0.5) == x
        and _only_consumer(graph, half) is product
    ):
        return _if_private(graph, x, [*inner, half], product)
    last = _only_consumer(graph, product)
    if last is None:
        return None
    if other == x and _operand_scaled_by(graph, last, 0.5) == product.outputs[0]:
        return _if_private(graph, x, [*inner, product], last)
    halved = _operand_scaled_by(graph, product, 0.5) == plus_one.outputs[0]
    if halved and last.op_type == "Mul" and _other_operand(last, product.outputs[0]) == x:
        return _if_private(graph, x, [*inner, product], last)
    return None


def _if_private(graph: Graph, x: str, inner: list[Node], root: Node) -> tuple[str, list[Node], Node] | None:
    private = all(_only_consumer(graph, n) is not None for n in inner)
    return (x, inner, root) if private else None


def _only_consumer(graph: Graph, node: Node) -> Node | None:
    value = node.outputs[0]
    consumers = graph.consumers(value)
    return consumers[0] if len(consumers) == 1 and not graph.is_output(value) else None


def _other_operand(node: Node, value: str) -> str:
    return node.inputs[1] if node.inputs[0] == value else node.inputs[0]


def _scalar(graph: Graph, value: str) -> float | None:
    data = graph.constants.get(value)
    return float(data.reshape(())) if data is not None and data.size == 1 else None


def _other_scalar(graph: Graph, node: Node, value: str) -> float | None:
    return _scalar(graph, _other_operand(node, value))


def _operand_scaled_by(graph: Graph, node: Node, factor: float) -> str | None:
    """The operand that the node multiplies by `factor` (or divides by its inverse); None if it does nothing
    of the kind.
    """
    for value, scale in (node.inputs, node.inputs[::-1]) if node.op_type == "Mul" else ():
        number = _scalar(graph, scale)
        if number is not None and math.isclose(number, factor, rel_tol=1e-6):
            return value
    if node.op_type == "Div":
        number = _scalar(graph, node.inputs[1])
        if number is not None and math.isclose(number, 1 / factor, rel_tol=1e-6):
            return node.inputs[0]
    return None


RECOMPOSE_GELU = Pass("recompose-gelu", "make one Gelu of the erf form that exporters write", _recompose_gelu)
