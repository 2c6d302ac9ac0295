"""What only moves a quantised value: it need not become floats and whole numbers again for that."""

from __future__ import annotations

import dataclasses

import numpy as np

from collage_core.ir.graph import Graph
from collage_core.ir.passes.base import Pass
from collage_core.ir.passes.cleaning import without_unused_values
from collage_core.ir.types import Node

__all__ = ["MOVE_QUANTISED"]

_MOVERS = frozenset(["Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"])
_SMALLEST, _LARGEST = 1e-30, 1e30
"""Of scales: beyond them floats are no longer whole multiples of them."""


def _move(graph: Graph) -> Graph:
    """DequantizeLinear, a mover, QuantizeLinear by the same scale and zero point: each number comes back as
    it was, in its new place.
    """
    taken: dict[int, Node] = {}
    gone: set[int] = set()
    for last in graph.nodes:
        if not _is(last, "QuantizeLinear"):
            continue
        mover = graph.producer(last.inputs[0])
        if mover is None or mover.domain or mover.op_type not in _MOVERS or not _is_read_once(graph, mover):
            continue
        first = graph.producer(mover.inputs[0])
        if first is None or not _is(first, "DequantizeLinear") or not _is_same(graph, first, last):
            continue
        inputs = (first.inputs[0], *mover.inputs[1:])
        taken[mover.id] = dataclasses.replace(mover, inputs=inputs, outputs=last.outputs)
        gone.add(last.id)
    if not taken:
        return graph
    return without_unused_values(graph, [taken.get(n.id, n) for n in graph.nodes if n.id not in gone])


def _is(node: Node, op_type: str) -> bool:
    return node.op_type == op_type and not node.domain


def _is_read_once(graph: Graph, node: Node) -> bool:
    v = node.outputs[0]
    return len(graph.consumers(v)) == 1 and not graph.is_output(v)


def _is_same(graph: Graph, first: Node, last: Node) -> bool:
    """Whether both count in the same steps, one for all elements, from the same number on."""
    found = []
    for node, number in ((first, first.inputs[0]), (last, last.outputs[0])):
        scale = graph.constants.get(node.inputs[1])
        zero = graph.constants.get(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else np.zeros(1)
        if scale is None or zero is None or scale.size != 1 or zero.size != 1:
            return False
        if scale.dtype != np.float32 or not _SMALLEST < float(scale.item()) < _LARGEST:
            return False
        dtype = graph.type_of(number).dtype
        if dtype not in ("int8", "uint8") or node.attributes.get("precision", 0):
            return False
        found.append((float(scale.item()), int(zero.item()), dtype))
    return found[0] == found[1]


MOVE_QUANTISED = Pass(
    "move-quantised", "move quantised values as they are, without dequantising them for it", _move
)
