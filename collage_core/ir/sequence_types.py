"""Types of tensors that sequences are joined to, where it is known what these hold."""

from __future__ import annotations

from collections.abc import Callable

from collage_core.ir.bodies import bodies_of, closed
from collage_core.ir.body_types import trip_count
from collage_core.ir.graph import Graph
from collage_core.ir.types import Node, TensorType

__all__ = ["joined_types"]

_Infer = Callable[[Graph], Graph]

_MOST_HELD = 1 << 16


def joined_types(graph: Graph, infer: _Infer) -> dict[str, TensorType]:
    """Static types of what ConcatFromSequence yields, where the graph has none. `infer` gives the values of a
    graph their types.
    """
    found: dict[str, TensorType] = {}
    for node in graph.nodes:
        is_joining = node.qualified_op == "ConcatFromSequence"
        if is_joining and not graph.type_of(node.outputs[0]).is_static:
            held = _held(graph, node.inputs[0], infer)
            if held and (type := _joined(node, held)) is not None:
                found[node.outputs[0]] = type
    return found


def _held(graph: Graph, sequence: str, infer: _Infer) -> list[TensorType] | None:
    """The types of what a sequence holds, in whatever order; None where that is not known."""
    producer = graph.producer(sequence)
    if producer is None or producer.domain:
        return None
    if producer.op_type == "SequenceEmpty":
        return []
    if producer.op_type == "SequenceConstruct":
        return [graph.type_of(v) for v in producer.inputs]
    if producer.op_type == "SequenceInsert":
        before = _held(graph, producer.inputs[0], infer)
        return None if before is None else [*before, graph.type_of(producer.inputs[1])]
    return _filled_by(graph, producer, sequence, infer) if producer.op_type == "Loop" else None


def _filled_by(graph: Graph, loop: Node, sequence: str, infer: _Infer) -> list[TensorType] | None:
    """Of a state to which each round of a Loop adds one tensor."""
    state, body = loop.outputs.index(sequence), bodies_of(loop)["body"]
    if state >= len(loop.formal_inputs) - 2:
        return None
    trips = trip_count(graph, loop, body)
    before = _held(graph, loop.formal_inputs[2 + state], infer)
    yielded = body.outputs[1 + state]
    while (last := body.producer(yielded)) is not None and last.op_type == "Identity":
        yielded = last.inputs[0]
    adds_one = last is not None and last.op_type == "SequenceInsert" and not last.domain
    if trips is None or before is None or last is None or not adds_one:
        return None
    if last.inputs[0] != body.inputs[2 + state] or not trips <= _MOST_HELD:
        return None
    given = dict(zip(body.inputs[:2], (TensorType("int64", ()), TensorType("bool", ())), strict=True))
    given |= {v: body.type_of(v) for v in body.inputs[2:]}
    inside = infer(closed(graph, loop, body, given))
    return [*before, *[inside.type_of(last.inputs[1])] * trips]


def _joined(node: Node, held: list[TensorType]) -> TensorType | None:
    if not all(type.is_static for type in held):
        return None
    axis, first = node.attributes["axis"], held[0]
    if node.attributes.get("new_axis", 0):
        shape = [*first.static_shape]
        shape.insert(axis if axis >= 0 else axis + len(shape) + 1, len(held))
        return TensorType(first.dtype, tuple(shape))
    shape = [*first.static_shape]
    if not shape or not all(len(type.shape) == len(shape) for type in held):
        return None
    shape[axis] = sum(type.static_shape[axis] for type in held)
    return TensorType(first.dtype, tuple(shape))
