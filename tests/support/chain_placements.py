"""Placements of graphs whose nodes are groups of their own."""

from __future__ import annotations

from collage_core import Target, plain_variant
from collage_core.costs.record import CostRecord
from collage_core.ir import Graph, Subgraph
from collage_core.placement import Group, Placement

__all__ = ["OK", "TARGET", "in_turn", "key_of"]

TARGET = Target("cpu", 1)
"""What placements are made for."""
OK = CostRecord("ok", 2.0, 0.1, 30)
"""Of a kernel that runs."""


def key_of(graph: Graph, name: str, backend: str) -> tuple[str, str, str]:
    """Of the kernel of the node of this name, its values row by row."""
    (node,) = (n for n in graph.nodes if n.name == name)
    subgraph = Subgraph(graph, [node.id])
    return subgraph.key, str(plain_variant(subgraph)), backend


def in_turn(graph: Graph, *backends: str) -> Placement:
    """The nodes in their order on these, 1 ms each."""
    groups = tuple(
        Group(backend, (n.id,), plain_variant(Subgraph(graph, [n.id])), 1.0)
        for n, backend in zip(graph.nodes, backends, strict=True)
    )
    return Placement(groups, (), TARGET)
