"""Looking for a pattern: at one operator, or in a whole graph."""

from __future__ import annotations

from collage_core.ir import Graph, Node, NodeSet
from collage_core.patterns.describe import root_types
from collage_core.patterns.matcher import Matcher
from collage_core.patterns.pattern import Pattern
from collage_core.patterns.result import Match, MatchResult, NoMatch

__all__ = ["find_matches", "match", "match_all"]


def match(pattern: Pattern, graph: Graph, node: Node) -> Match | NoMatch:
    """Match `pattern` with its root at `node`; the first way that works, or why none does."""
    matcher = Matcher(graph, pattern)
    return next(matcher.matches(node), None) or matcher.nearest_miss()


def find_matches(graph: Graph, pattern: Pattern) -> list[Match]:
    """All matches of `pattern` in `graph`, each node set once, in the order of their roots."""
    return list(match_all(graph, pattern).matches)


def match_all(graph: Graph, pattern: Pattern) -> MatchResult:
    """As `find_matches`, with the nearest misses: why the pattern did not apply where it could have."""
    roots = root_types(pattern)
    found: dict[NodeSet, Match] = {}
    misses: list[NoMatch] = []
    matcher = Matcher(graph, pattern)
    for node in graph.nodes:
        if roots is not None and (node.op_type, node.domain) not in roots:
            continue
        matches = list(matcher.matches(node))
        for m in matches:
            found.setdefault(m.subgraph.node_set, m)
        if not matches:
            misses.append(matcher.nearest_miss())
    return MatchResult(tuple(found.values()), tuple(misses))
