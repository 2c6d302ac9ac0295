"""Which nodes a graph library gets at once: groups of nodes that go to the same one, with no two groups
waiting for each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = ["offloaded_groups"]


def offloaded_groups(predecessors: Sequence[int], labels: Sequence[int]) -> list[tuple[int, int]]:
    """The largest connected groups of equally labelled nodes whose graph is acyclic, as (label, bitmask of
    the nodes), ascending by first node.

    predecessors[n]: bitmask of the nodes whose values node n reads, all smaller than n. labels[n]: 0 for a
    node that is kept, which counts as a group of its own here and is not returned; 1 or more for the library
    that gets it. Every labelled node is in exactly one group; two neighbouring groups of one library are
    apart only where a path leaves the one and comes back to the other. Taken greedily in topological order,
    so the same graph and labels give the same groups. Raises ValueError where the arguments are no such graph
    and labels.
    """
    _check(predecessors, labels)
    quotient = _Quotient(predecessors)
    # One pass is enough: what keeps two groups apart is a path through a third one, and a later node never
    # joins that third one to either, since the rest of the path would forbid it.
    for n, reads in enumerate(predecessors):
        for p in _bits(reads):
            if labels[n] and labels[p] == labels[n]:
                quotient.merge(p, n)
    return [
        (labels[n], quotient.nodes[n]) for n in range(len(labels)) if labels[n] and quotient.group[n] == n
    ]


class _Quotient:
    """The graph of groups, each known by its smallest node; at first every node is a group.

    group[n]: the group of node n. nodes[g]: bitmask of the nodes of group g. Entries of nodes that are no
    longer a group are stale.
    """

    def __init__(self, predecessors: Sequence[int]) -> None:
        self.group = list(range(len(predecessors)))
        self.nodes = [1 << n for n in self.group]
        # Bitmasks over nodes outside the group: those it reads, and those to which a path from it leads.
        self._reads = list(predecessors)
        self._below = [0] * len(predecessors)
        for n in reversed(self.group):
            for p in _bits(predecessors[n]):
                self._below[p] |= self._below[n] | 1 << n

    def merge(self, source: int, sink: int) -> None:
        """Make one group of those of two nodes, of which one reads the other, unless they are one, or a path
        leads from the one to the other through a third group: it and the joined group would wait for each
        other.
        """
        a, b = self.group[source], self.group[sink]
        if a == b or self._below[a] & self._reads[b]:
            return
        nodes, below = self.nodes[a] | self.nodes[b], self._below[a] | self._below[b]
        self._tell(self._reads[b] & ~self.nodes[a], nodes | below)
        keep, gone = min(a, b), max(a, b)
        for n in _bits(self.nodes[gone]):
            self.group[n] = keep
        self.nodes[keep] = nodes
        self._reads[keep] = (self._reads[a] | self._reads[b]) & ~nodes
        self._below[keep] = below & ~nodes

    def _tell(self, nodes: int, news: int) -> None:
        """Add to what lies below the groups of `nodes` and below all groups from which paths lead to them."""
        while nodes:
            g = self.group[nodes.bit_length() - 1]
            nodes &= ~self.nodes[g]
            # Whoever knows it has told the groups above it already.
            if news & ~self._below[g]:
                self._below[g] |= news
                nodes |= self._reads[g]


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _check(predecessors: Sequence[int], labels: Sequence[int]) -> None:
    if len(predecessors) != len(labels):
        raise ValueError(f"{len(predecessors)} nodes cannot have {len(labels)} labels")
    for n, (reads, label) in enumerate(zip(predecessors, labels, strict=True)):
        if reads < 0 or reads >> n:
            raise ValueError(f"node {n} may only read nodes before it, not those of bitmask {reads:#b}")
        if label < 0:
            raise ValueError(f"node {n} has the label {label}; 0 keeps a node, 1 and more name a library")
