"""What only moves a quantised value: it need not become floats and whole numbers again for that."""

from __future__ import annotations

import dataclasses

from collage_core.ir.graph import Graph
from collage_core.ir.passes.base import Pass
from collage_core.ir.passes.cleaning import without_unused_values
from collage_core.ir.steps import Steps, steps_of
from collage_core.ir.types import Node

__all__ = ["MOVE_QUANTISED"]

_MOVERS = frozenset(["Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"])


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
    """Whether both count in the same steps."""
    steps = steps_of(graph, first)
    return isinstance(steps, Steps) and steps == steps_of(graph, last)


MOVE_QUANTISED = Pass(
    "move-quantised", "move quantised values as they are, without dequantising them for it", _move
)
