"""Types of what control flow yields, where `onnx` leaves them open: it takes every state of a Loop for one
that may change its shape.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping

from collage_core.errors import ModelError
from collage_core.formats import Array
from collage_core.ir.bodies import bodies_of, closed
from collage_core.ir.graph import Graph
from collage_core.ir.types import UNKNOWN, Node, TensorType

__all__ = [
    "of_two_ranks",
    "trip_count",
    "types_of_bodies",
    "types_of_loop",
    "with_typed_bodies",
    "yielded_types",
]

_Infer = Callable[[Graph], Graph]


def yielded_types(graph: Graph, infer: _Infer) -> dict[str, TensorType]:
    """Static types of those outputs of If, Loop and Scan of which the graph has none, as far as the types of
    what they are given tell. `infer` gives the values of a graph their types.
    """
    found: dict[str, TensorType] = {}
    for node in graph.nodes:
        if node.domain or not bodies_of(node) or all(graph.type_of(v).is_static for v in node.outputs if v):
            continue
        try:
            types = _outputs(graph, node, infer)
        except (IndexError, ValueError) as error:
            raise ModelError(f"node {node}: what it yields cannot be told: {error}") from None
        for v, type in zip(node.outputs, types, strict=True):
            if v and type.is_static and not graph.type_of(v).is_static:
                found[v] = type
    return found


def of_two_ranks(graph: Graph, infer: _Infer) -> set[str]:
    """What an If yields in another rank in one branch than in the other, and all that is computed of it."""
    found: set[str] = set()
    for node in graph.nodes:
        if not found.isdisjoint(node.inputs):
            found.update(v for v in node.outputs if v)
        elif node.op_type == "If" and not node.domain:
            types = zip(*types_of_bodies(graph, node, infer), strict=True)
            found.update(v for v, t in zip(node.outputs, types, strict=True) if v and _differ_in_rank(t))
    return found


def _differ_in_rank(types: Iterable[TensorType]) -> bool:
    known = list(types)
    return UNKNOWN not in known and len({len(t.shape) for t in known}) > 1


def types_of_bodies(
    graph: Graph, node: Node, infer: _Infer, given: Mapping[str, TensorType] | None = None
) -> Iterator[list[TensorType]]:
    """The types of each body's outputs. given: those of its inputs."""
    for body in bodies_of(node).values():
        inferred = infer(closed(graph, node, body, given or {}))
        yield [inferred.type_of(v) for v in body.outputs]


def with_typed_bodies(graph: Graph, infer: _Infer) -> Graph:
    """The graph with types inside those bodies that do not state the types of what they take and yield, which
    some libraries ask for.
    """
    typed: dict[int, Node] = {}
    for node in graph.nodes:
        for name, body in bodies_of(node).items():
            if not node.domain and any(body.type_of(v) == UNKNOWN for v in (*body.inputs, *body.outputs)):
                node = dataclasses.replace(
                    node, attributes={**node.attributes, name: _typed(graph, node, body, infer)}
                )
                typed[node.id] = node
    return graph.replace(nodes=[typed.get(n.id, n) for n in graph.nodes]) if typed else graph


def _typed(graph: Graph, node: Node, body: Graph, infer: _Infer) -> Graph:
    given = dict(zip(body.inputs, _given(graph, node, infer), strict=False))
    inside = infer(closed(graph, node, body, given))
    own = {v: inside.values[v] for v in (*body.inputs, *body.intermediates()) if inside.type_of(v).is_static}
    return body.replace(nodes=inside.nodes, values={**body.values, **own})


def _given(graph: Graph, node: Node, infer: _Infer) -> list[TensorType]:
    """The types of what the body of a Loop or Scan is given; of an If's, nothing."""
    if node.op_type == "Loop":
        return _kept_states(graph, node, infer)[0]
    return _elements(graph, node) if node.op_type == "Scan" else []


def _outputs(graph: Graph, node: Node, infer: _Infer) -> list[TensorType]:
    if node.op_type == "If":
        first, *others = types_of_bodies(graph, node, infer)
        return [t if all(o[k] == t for o in others) else UNKNOWN for k, t in enumerate(first)]
    if node.op_type == "Loop":
        return types_of_loop(graph, node, infer, trip_count(graph, node, bodies_of(node)["body"]))
    if node.op_type == "Scan" and graph.opsets.get("", 0) >= 9:
        return _scan(graph, node, infer)
    return [UNKNOWN] * len(node.outputs)


def types_of_loop(graph: Graph, node: Node, infer: _Infer, trips: int | None) -> list[TensorType]:
    """The types of what a Loop yields that goes round so often; UNKNOWN of what that does not tell."""
    given, yielded = _kept_states(graph, node, infer)
    states = given[2:]
    if trips == 0:
        states = [graph.type_of(v) for v in node.formal_inputs[2:]]
    return states + [_stacked(t, trips, 0) for t in yielded[1 + len(states) :]]


def _kept_states(graph: Graph, node: Node, infer: _Infer) -> tuple[list[TensorType], list[TensorType]]:
    """What the body of a Loop is given and yields each time: a state keeps its shape if the body, given it,
    yields it again, and so do all on which that depends.
    """
    body = bodies_of(node)["body"]
    states = [graph.type_of(v) for v in node.formal_inputs[2:]]
    while True:
        given = [TensorType("int64", ()), TensorType("bool", ()), *states]
        (yielded,) = types_of_bodies(graph, node, infer, dict(zip(body.inputs, given, strict=True)))
        kept = [t if t == y else UNKNOWN for t, y in zip(states, yielded[1 : 1 + len(states)], strict=True)]
        if kept == states:
            return given, yielded
        states = kept


def trip_count(graph: Graph, node: Node, body: Graph) -> int | None:
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


def _elements(graph: Graph, node: Node) -> list[TensorType]:
    """What the body of a Scan is given; UNKNOWN where that is open, and in batches (opset 8)."""
    given = [graph.type_of(v) if v else UNKNOWN for v in node.formal_inputs]
    count = node.attributes["num_scan_inputs"]
    axes = node.attributes.get("scan_input_axes", (0,) * count)
    if graph.opsets.get("", 0) < 9 or not all(t.is_static for t in given):
        return [UNKNOWN] * len(bodies_of(node)["body"].inputs)
    return given[:-count] + [_without(t, a) for t, a in zip(given[-count:], axes, strict=True)]


def _scan(graph: Graph, node: Node, infer: _Infer) -> list[TensorType]:
    body = bodies_of(node)["body"]
    count = node.attributes["num_scan_inputs"]
    given = _elements(graph, node)
    if UNKNOWN in given:
        return [UNKNOWN] * len(node.outputs)
    (yielded,) = types_of_bodies(graph, node, infer, dict(zip(body.inputs, given, strict=True)))
    states = len(given) - count
    axis = node.attributes.get("scan_input_axes", (0,))[0]
    length = graph.shape_of(node.formal_inputs[states])[axis]
    axes = node.attributes.get("scan_output_axes", (0,) * (len(yielded) - states))
    return yielded[:states] + [_stacked(t, length, a) for t, a in zip(yielded[states:], axes, strict=True)]


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
