"""Matches of a pattern by the names of their nodes, and misses."""

from __future__ import annotations

from collage_core.errors import Refusal
from collage_core.ir import Graph
from collage_core.patterns import NoMatch, Pattern, find_matches, match

__all__ = ["found", "miss"]


def found(graph: Graph, pattern: Pattern) -> list[set[str]]:
    """The names of the nodes of every match."""
    return [{n.name for n in m.subgraph.nodes} for m in find_matches(graph, pattern)]


def miss(graph: Graph, pattern: Pattern, node: str) -> NoMatch:
    """Why the pattern does not match there."""
    result = match(pattern, graph, graph.node_named(node))
    assert isinstance(result, NoMatch)
    assert isinstance(result, Refusal)
    assert not result
    return result
