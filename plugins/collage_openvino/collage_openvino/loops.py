"""Which loops the library is not given: it leaves a state undefined that the body does not read, where the
Loop turns out never to run.
"""

from __future__ import annotations

from collections.abc import Iterator

from collage_core.errors import Refusal
from collage_core.ir import Graph, Node, Subgraph, bodies_of

__all__ = ["loop_refusal"]

_CONTROLS = 2
"""A Loop's trip count and condition come before its states."""


def loop_refusal(subgraph: Subgraph) -> Refusal | None:
    """Why a Loop of the group, or in a body of it, may come out undefined."""
    for node in subgraph.nodes:
        for graph, loop in _loops(subgraph.graph, node):
            body = bodies_of(loop)["body"]
            unread = [v for v in body.inputs[_CONTROLS:] if v not in _read(body)]
            if unread and not _runs(graph, loop):
                said = f"{loop} may run no time, and its body does not read {unread[0]!r}"
                return Refusal(f"{said}, which OpenVINO then leaves undefined", node.name)
    return None


def _loops(graph: Graph, node: Node) -> Iterator[tuple[Graph, Node]]:
    if node.op_type == "Loop" and not node.domain:
        yield graph, node
    for body in bodies_of(node).values():
        for inner in body.nodes:
            yield from _loops(body, inner)


def _read(body: Graph) -> set[str]:
    """All that the body's outputs depend on."""
    needed = set(body.outputs)
    for n in reversed(body.nodes):
        if not needed.isdisjoint(n.outputs):
            needed.update(_needs(n))
    return needed


def _needs(node: Node) -> Iterator[str]:
    """The inputs that count: a state that a nested Loop or Scan is given, and does not read, is none."""
    body = bodies_of(node).get("body")
    if body is None:
        yield from node.inputs
        return
    read = _read(body)
    yield from node.captured.values()
    for k, (given, inside) in enumerate(zip(node.formal_inputs, body.inputs, strict=False)):
        if inside in read or (node.op_type == "Loop" and k < _CONTROLS):
            yield given


def _runs(graph: Graph, loop: Node) -> bool:
    """Whether it is known to run at least once."""
    trips, condition = loop.formal_inputs[:_CONTROLS]
    known = graph.constants
    return (not trips or (trips in known and bool(known[trips].item() > 0))) and (
        not condition or (condition in known and bool(known[condition].item()))
    )
