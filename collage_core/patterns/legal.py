"""Whether what a pattern has matched may become one kernel."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from collage_core.ir import Node, Subgraph

__all__ = ["refuse_group"]


def refuse_group(
    subgraph: Subgraph, outside: Iterable[str], declared: Collection[str]
) -> tuple[Node, str] | None:
    """None if the group is legal, else the node at fault and the reason.

    outside: values that must come from elsewhere, since wildcards stand for them. declared: those that may be
    read outside, since the pattern yields them.
    """
    graph = subgraph.graph
    for value in outside:
        producer = graph.producer(value)
        if producer is not None and producer.id in subgraph.node_set:
            return producer, f"a wildcard stands for {value!r}, which the match itself computes"
    for node in subgraph.nodes:
        for value in node.outputs:
            if value in declared or value not in subgraph.outputs:
                continue
            readers = [c.name for c in graph.consumers(value) if c.id not in subgraph.node_set]
            reader = f"{readers[0]!r}, outside the match, reads it too" if readers else "the graph returns it"
            return node, f"its result {value!r} leaks: {reader}"
    if len(subgraph.node_set) > 1 and not subgraph.is_convex:
        return subgraph.nodes[-1], "the match is not convex: a path leaves it and comes back"
    return None
