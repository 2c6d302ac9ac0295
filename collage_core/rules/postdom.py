"""Post-dominators of a graph's nodes.

The algorithm is that of K. D. Cooper, T. J. Harvey and K. Kennedy, "A Simple, Fast Dominance Algorithm"
(2001), on the reversed graph. That graph has no cycles, so one pass in reverse topological order is enough,
and no sets are needed.
"""

from __future__ import annotations

from collections.abc import Mapping

from collage_core.ir import Graph

__all__ = ["immediate_postdominators"]

_EXIT = -1


def immediate_postdominators(graph: Graph) -> Mapping[int, int | None]:
    """For every node the nearest other one that all that depends on it passes; None if there is none.

    A node whose value the graph returns, or nobody reads, leads to a virtual exit.
    """
    result: dict[int, int] = {_EXIT: _EXIT}
    # The exit has rank -1; the closer to the exit, the smaller the rank: a node's post-dominator ranks below
    # it.
    rank = {n.id: len(graph.nodes) - i for i, n in enumerate(graph.nodes)}
    rank[_EXIT] = -1
    for node in reversed(graph.nodes):
        successors = [s.id for s in graph.successors(node.id)]
        if not successors or any(graph.is_output(v) for v in node.outputs if v):
            result[node.id] = _EXIT
            continue
        meet = successors[0]
        for other in successors[1:]:
            while meet != other:
                while rank[meet] > rank[other]:
                    meet = result[meet]
                while rank[other] > rank[meet]:
                    other = result[other]
        result[node.id] = meet
    del result[_EXIT]
    return {i: None if d == _EXIT else d for i, d in result.items()}
