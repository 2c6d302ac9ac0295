"""Types of what control flow yields, where `onnx` leaves them open: it takes every state of a Loop for one
that may change its shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from collage_core.formats import Array
from collage_core.ir.bodies import bodies_of, closed
from collage_core.ir.graph import Graph
from collage_core.ir.types import UNKNOWN, Node, TensorType

__all__ = ["types_of_bodies", "yielded_types"]

_Infer = Callable[[Graph], Graph]


def yielded_types(graph: Graph, infer: _Infer) -> dict[str, TensorType]:
    """Static types of those outputs of If, Loop and Scan of which the graph has none, as far as the types of
    what they are given tell. `infer` gives the values of a graph their types.
    """
    found: dict[str, TensorType] = {}
    for node in graph.nodes:
        if node.domain or not bodies_of(node) or all(_is_static(graph.type_of(v)) for v in node.outputs if v):
            continue
        for v, type in zip(node.outputs, _outputs(graph, node, infer), strict=True):
            if v and _is_static(type) and not _is_static(graph.type_of(v)):
                found[v] = type
    return found


def types_of_bodies(
    graph: Graph, node: Node, infer: _Infer, given: Mapping[str, TensorType] | None = None
) -> Iterator[list[TensorType]]:
    """The types of each body's outputs. given: those of its inputs."""
    for body in bodies_of(node).values():
        inferred = infer(closed(graph, node, body, given or {}))
        yield [inferred.type_of(v) for v in body.outputs]


def _outputs(graph: Graph, node: Node, infer: _Infer) -> list[TensorType]:
    if node.op_type == "If":
        first, *others = types_of_bodies(graph, node, infer)
        return [t if all(o[k] == t for o in others) else UNKNOWN for k, t in enumerate(first)]
    if node.op_type == "Loop":
        return _loop(graph, node, infer)
    if node.op_type == "Scan" and graph.opsets.get("", 0) >= 9:
        return _scan(graph, node, infer)
    return [UNKNOWN] * len(node.outputs)


def _loop(graph: Graph, node: Node, infer: _Infer) -> list[TensorType]:
    """A state keeps its shape if the body, given it, yields it again, and so do all on which that depends."""
    body = bodies_of(node)["body"]
    states = [graph.type_of(v) for v in node.formal_inputs[2:]]
    while True:
        kinds = [TensorType("int64", ()), TensorType("bool", ()), *states]
        types = dict(zip(body.inputs, kinds, strict=True))
        (yielded,) = types_of_bodies(graph, node, infer, types)
        kept = [t if t == y else UNKNOWN for t, y in zip(states, yielded[1 : 1 + len(states)], strict=True)]
        if kept == states:
            break
        states = kept
    trips = _trip_count(graph, node, body)
    if trips == 0:
        states = [graph.type_of(v) for v in node.formal_inputs[2:]]
    return states + [_stacked(t, trips, 0) for t in yielded[1 + len(states) :]]


def _trip_count(graph: Graph, node: Node, body: Graph) -> int | None:
    """How often the body runs, where that is known before."""
    limit, first, *_ = (*node.formal_inputs, "", "")
    condition = graph.constants.get(first)
    if condition is not None and not condition.item():
        return 0
    trips = graph.constants.get(limit)
    if trips is None:
        return None
    goes_on = (not first or condition is not None) and _stays_true(graph, node, body)
    return max(int(trips.item()), 0) if goes_on or trips.item() <= 0 else None


def _stays_true(graph: Graph, node: Node, body: Graph) -> bool:
    """Whether the body yields the condition that it was given, or a constant that is true."""
    v = body.outputs[0]
    while (producer := body.producer(v)) is not None and producer.op_type in ("Identity", "Cast"):
        v = producer.inputs[0]
    if v == body.inputs[1]:
        return True
    data: Array | None = body.constants.get(v)
    if data is None:
        data = graph.constants.get(node.captured.get(v, ""))
    return data is not None and bool(data.item())


def _scan(graph: Graph, node: Node, infer: _Infer) -> list[TensorType]:
    body = bodies_of(node)["body"]
    count = node.attributes["num_scan_inputs"]
    given = [graph.type_of(v) for v in node.formal_inputs]
    axes = node.attributes.get("scan_input_axes", (0,) * count)
    states, sequences = given[:-count], given[-count:]
    if not all(map(_is_static, given)):
        return [UNKNOWN] * len(node.outputs)
    elements = [_without(t, a) for t, a in zip(sequences, axes, strict=True)]
    (yielded,) = types_of_bodies(
        graph, node, infer, dict(zip(body.inputs, [*states, *elements], strict=True))
    )
    scanned = yielded[len(states) :]
    length = sequences[0].static_shape[axes[0]]
    axes = node.attributes.get("scan_output_axes", (0,) * len(scanned))
    return yielded[: len(states)] + [_stacked(t, length, a) for t, a in zip(scanned, axes, strict=True)]


def _stacked(type: TensorType, length: int | None, axis: int) -> TensorType:
    if type == UNKNOWN or length is None:
        return UNKNOWN
    shape = list(type.shape)
    shape.insert(axis if axis >= 0 else axis + len(shape) + 1, length)
    return TensorType(type.dtype, tuple(shape))


def _without(type: TensorType, axis: int) -> TensorType:
    shape = list(type.shape)
    del shape[axis]
    return TensorType(type.dtype, tuple(shape))


def _is_static(type: TensorType) -> bool:
    return type != UNKNOWN and not type.symbolic_dims
