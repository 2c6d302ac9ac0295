"""Operators of before ONNX's opset 7, where these align operands otherwise than NumPy does."""

from __future__ import annotations

from collage_core.errors import ModelError
from collage_core.ir.bodies import inner_nodes
from collage_core.ir.graph import Graph
from collage_core.ir.types import UNKNOWN, Node

__all__ = ["check_legacy_broadcasts"]

_NUMPY_FROM = 7
"""The opset from which on operands are aligned by their last dimensions, whatever the operator."""
_ALIGNED = frozenset(
    ["Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "PRelu", "Sub", "Xor"]
)


def check_legacy_broadcasts(graph: Graph) -> None:
    """ModelError for a node whose second operand is aligned by `axis` (or PRelu's slope by channels) so that
    it does not come to its last dimensions. `onnx`'s own evaluator leaves the attribute out, and so would we.
    """
    if graph.opsets.get("", _NUMPY_FROM) >= _NUMPY_FROM:
        return
    for node in graph.nodes:
        axis = _aligned_at(node)
        inside = (i for i in inner_nodes(node) if _aligned_at(i) is not None)
        odd = node if axis is not None and not _comes_last(graph, node, axis) else next(inside, None)
        if odd is not None:
            raise ModelError(
                f"node {odd.name!r}: {odd.op_type} of opset {graph.opsets['']} aligns its operands otherwise "
                "than by their last dimensions: export the model with opset 7 or later"
            )


def _aligned_at(node: Node) -> int | None:
    """The dimension of the first operand at which the second begins; None where the last ones are aligned."""
    if node.domain or node.op_type not in _ALIGNED:
        return None
    if node.op_type == "PRelu":
        return 1  # a slope for each channel
    axis = node.attributes.get("axis")
    is_set = isinstance(axis, int) and axis >= 0  # -1 was written for "not set"
    return axis if is_set and node.attributes.get("broadcast") else None


def _comes_last(graph: Graph, node: Node, axis: int) -> bool:
    first, second = (graph.type_of(v) for v in node.inputs[:2])
    if UNKNOWN in (first, second):
        return False
    if second.is_static and second.size == 1:
        return True
    if node.op_type == "PRelu" and len(second.shape) != 1:
        return True
    return axis + len(second.shape) == len(first.shape)
