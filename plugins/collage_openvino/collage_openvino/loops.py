"""Which loops the library is not given: it leaves a state undefined that the body does not read, where the
Loop turns out never to run.
"""

from __future__ import annotations

from collections.abc import Iterator

from collage_core.errors import Refusal
from collage_core.ir import Graph, Node, Subgraph, bodies_of

__all__ = ["loop_refusal"]


def loop_refusal(subgraph: Subgraph) -> Refusal | None:
    """Why a Loop of the group, or in a body of it, may come out undefined."""
    for node in subgraph.nodes:
        for graph, loop in _loops(subgraph.graph, node):
            body = bodies_of(loop)["body"]
            unread = [v for v in body.inputs[2:] if v not in _read(body)]
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
            needed.update(n.inputs)
    return needed


def _runs(graph: Graph, loop: Node) -> bool:
    """Whether it is known to run at least once."""
    trips, condition = loop.formal_inputs[:2]
    known = graph.constants
    return (not trips or (trips in known and bool(known[trips].item() > 0))) and (
        not condition or (condition in known and bool(known[condition].item()))
    )
