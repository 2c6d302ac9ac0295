"""Which groups a graph library is asked to run: it could take any connected part, which is too many."""

from __future__ import annotations

from collections.abc import Iterable

from collage_core.candidates.offload import offloaded_groups
from collage_core.ir import Graph, NodeSet
from collage_core.ir.views import is_view

__all__ = ["ALL_TAKEN", "connected_groups", "library_groups"]

ALL_TAKEN = "all that it takes"
"""What has found a library's largest groups: the whole graph, where it takes everything."""


def library_groups(graph: Graph, taken: NodeSet, offered: Iterable[NodeSet]) -> dict[NodeSet, str]:
    """Groups out of the nodes `taken` by a library, each with what found it.

    They are: what others offer to run as one (`offered`), as far as it is not part of something larger that
    is offered and taken; every operator that is in none of those; and everything taken, in as few groups as
    are connected and legal together: the whole graph, where the library takes it all. Views alone are left
    out: they cost nothing anyway.
    """
    views = NodeSet(n.id for n in graph.nodes if is_view(graph, n))
    found: dict[NodeSet, str] = {}
    covered = NodeSet()
    for nodes in _largest(n for n in offered if n <= taken and not n <= views):
        found[nodes] = "group of another backend"
        covered = covered | nodes
    for i in taken - covered - views:
        found.setdefault(NodeSet([i]), "single operator")
    for nodes in connected_groups(graph, dict.fromkeys(taken, 1)).get(1, ()):
        if not nodes <= views:
            found[nodes] = ALL_TAKEN
    return found


def connected_groups(graph: Graph, labels: dict[int, int]) -> dict[int, list[NodeSet]]:
    """Nodes with equal labels (above 0) in as few connected groups as are legal together, by label.

    See `offloaded_groups`; nodes without a label stay by themselves.
    """
    position = graph.positions
    predecessors = [sum(1 << position[p.id] for p in graph.predecessors(n.id)) for n in graph.nodes]
    groups: dict[int, list[NodeSet]] = {label: [] for label in labels.values()}
    for label, mask in offloaded_groups(predecessors, [labels.get(n.id, 0) for n in graph.nodes]):
        groups[label].append(NodeSet(n.id for i, n in enumerate(graph.nodes) if mask >> i & 1))
    return groups


def _largest(sets: Iterable[NodeSet]) -> list[NodeSet]:
    """Those that are not part of another."""
    by_size = sorted(set(sets), key=lambda s: (-len(s), list(s)))
    kept: list[NodeSet] = []
    with_node: dict[int, list[NodeSet]] = {}
    for nodes in by_size:
        first = next(iter(nodes))
        if any(nodes <= other for other in with_node.get(first, ())):
            continue
        kept.append(nodes)
        for i in nodes:
            with_node.setdefault(i, []).append(nodes)
    return kept
