"""Operators on the paths between two operators of a graph."""

from __future__ import annotations

from collections.abc import Callable

from collage_core.errors import Refusal
from collage_core.ir import Node, Operator

__all__ = ["check_path", "nodes_between"]


def nodes_between(src: Operator, sink: Operator) -> list[Node]:
    """The nodes on paths from `src` to `sink`, both excluded, in graph order."""
    if src.graph is not sink.graph:
        raise ValueError(f"{src} and {sink} stand in different graphs")
    graph, position = src.graph, src.graph.positions
    # Walking up from the sink stops at whatever stands before src: nothing up there is reached from src.
    above: dict[int, Node] = {}
    stack = [sink.node]
    while stack:
        for p in graph.predecessors(stack.pop().id):
            if p.id not in above and position[p.id] > position[src.node.id]:
                above[p.id] = p
                stack.append(p)
    reached = {src.node.id}
    found = []
    for node in sorted(above.values(), key=lambda n: position[n.id]):
        if any(p.id in reached for p in graph.predecessors(node.id)):
            reached.add(node.id)
            found.append(node)
    return found


def check_path(
    src: Operator, sink: Operator, fchecker: Callable[[Operator], bool | Refusal]
) -> bool | Refusal:
    """Whether all operators on the paths from `src` to `sink` satisfy `fchecker`: `src` left out, `sink`
    included, as in TVM's CheckPath. A checker that means to be kinder to the sink compares with it.

    True, or a `Refusal` that names the first operator that does not.
    """
    for node in (*nodes_between(src, sink), sink.node):
        verdict = fchecker(Operator(src.graph, node))
        if isinstance(verdict, Refusal):
            return verdict
        if not verdict:
            return Refusal(f"it is on the way from {src} to {sink}", node.name)
    return True
