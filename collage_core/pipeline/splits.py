"""Where a graph falls into two parts, so that a library may round the one and leave the other exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from collage_core.candidates import Candidate
from collage_core.ir import Graph, NodeSet

__all__ = ["cuts", "split_at"]

_MOST_CROSSING = 3
"""Values that one part hands to the other: a residual network has one or two, an encoder its mask as well."""

Offer = Callable[[NodeSet], Sequence[Candidate]]


def cuts(graph: Graph) -> list[int]:
    """How many nodes, in the graph's order, lie before each place where few values cross."""
    made = {v: i for i, n in enumerate(graph.nodes) for v in n.outputs if v}
    read = {v: i for i, n in enumerate(graph.nodes) for v in n.inputs if v and not graph.is_constant(v)}
    change = [0] * (len(graph.nodes) + 1)
    for v, last in read.items():  # it crosses every place behind its maker and before its last reader
        change[made.get(v, -1) + 1] += 1
        change[last + 1] -= 1
    found, crossing = [], change[0]
    for place in range(1, len(graph.nodes)):
        crossing += change[place]
        if crossing <= _MOST_CROSSING:
            found.append(place)
    return found


def split_at(
    graph: Graph, offer: Offer, holds: Callable[[Candidate], bool], *, last: bool
) -> list[Candidate]:
    """A library's largest rounded part that `holds`, and what is left of the graph, exact; [] where there is
    none. What is rounded is the end of the graph, or its beginning.

    offer: the library's. Of two parts the larger errs more: so the place is looked for by bisection.
    """
    nodes = [n.id for n in graph.nodes]
    places = cuts(graph) if last else cuts(graph)[::-1]

    def part(place: int, *, rounded: bool) -> list[Candidate]:
        of = nodes[place:] if last is rounded else nodes[:place]
        return [c for c in offer(NodeSet(of)) if c.is_rounded is rounded]

    low, high = 0, len(places)
    while low < high:
        middle = (low + high) // 2
        found = part(places[middle], rounded=True)
        if any(map(holds, found)):
            high = middle
        else:
            low = middle + 1
    if low == len(places):
        return []
    return [*filter(holds, part(places[low], rounded=True)), *part(places[low], rounded=False)]
