"""Regions: parts of a graph in which values are no tensors of known shape, each of them one node.

What a region reads and yields has a known shape. Its body is a graph of the nodes inside, which reads what it
captures, as a branch of an If does. Whoever writes the graph as ONNX writes these nodes in its place.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from collage_core.errors import ModelError
from collage_core.ir.bodies import free_values, in_place
from collage_core.ir.graph import Graph
from collage_core.ir.nodeset import NodeSet
from collage_core.ir.subgraph import Subgraph
from collage_core.ir.types import UNKNOWN, Node, Value, ValueKind

__all__ = ["REGION_DOMAIN", "Part", "body_of_region", "flattened", "is_region", "joined"]

REGION_DOMAIN = "collage"
_REGION = "Region"
_BODY = "body"


@dataclass(frozen=True, slots=True)
class Part:
    """Nodes that become one region, of this id and name."""

    id: int
    name: str
    nodes: NodeSet


def is_region(node: Node) -> bool:
    """Whether it is a region, no operator."""
    return node.domain == REGION_DOMAIN


def body_of_region(node: Node) -> Graph:
    """The graph of its nodes: without inputs, for it captures what it reads, and without constants."""
    body: Graph = node.attributes[_BODY]
    return body


def joined(graph: Graph, parts: Sequence[Part]) -> Graph:
    """The graph with each of the parts as a region. ModelError where one of them would have to wait for
    itself, or two for each other.
    """
    regions = [_region(graph, part) for part in parts]
    region_of = {i: region for part, region in zip(parts, regions, strict=True) for i in part.nodes}
    nodes = list(dict.fromkeys(region_of.get(n.id, n) for n in graph.nodes))
    inner = {v for part in parts for i in part.nodes for v in graph.node(i).outputs}
    inner -= {v for n in nodes for v in n.outputs}
    values = {v: value for v, value in graph.values.items() if v not in inner}
    return graph.replace(nodes=_sorted(nodes), values=values)


def _region(graph: Graph, part: Part) -> Node:
    inside = Subgraph(graph, part.nodes)
    captures = (*inside.inputs, *inside.constants)
    values = {v: graph.values[v] for n in inside.nodes for v in n.outputs if v}
    values |= {v: Value(v, UNKNOWN, ValueKind.INPUT) for v in captures}
    nodes = [dataclasses.replace(n, id=k) for k, n in enumerate(inside.nodes)]
    body = Graph(part.name, nodes, values, [], inside.outputs, {}, graph.opsets)
    captures = free_values(body)
    return Node(part.id, part.name, _REGION, captures, inside.outputs, {_BODY: body}, REGION_DOMAIN, captures)


def _sorted(nodes: Sequence[Node]) -> list[Node]:
    """In topological order, and otherwise as they come."""
    producer = {v: k for k, n in enumerate(nodes) for v in n.outputs if v}
    before = [{producer[v] for v in n.inputs if v in producer} for n in nodes]
    behind: dict[int, list[int]] = {}
    for k, needed in enumerate(before):
        for i in needed:
            behind.setdefault(i, []).append(k)
    missing = [len(needed) for needed in before]
    ready = [k for k, count in enumerate(missing) if not count]
    found: list[Node] = []
    while ready:
        k = heapq.heappop(ready)
        found.append(nodes[k])
        for i in behind.get(k, ()):
            missing[i] -= 1
            if not missing[i]:
                heapq.heappush(ready, i)
    if len(found) < len(nodes):
        stuck = next(n for n, count in zip(nodes, missing, strict=True) if count)
        raise ModelError(f"node {stuck} would have to wait for itself")
    return found


def flattened(graph: Graph) -> tuple[Graph, dict[int, Node]]:
    """The graph with the nodes of each region in its place, and by their ids the regions that they are in."""
    if not any(map(is_region, graph.nodes)):
        return graph, {}
    nodes: list[Node] = []
    values = dict(graph.values)
    ids = count(max(graph.all_nodes) + 1)
    region_of: dict[int, Node] = {}
    for node in graph.nodes:
        if not is_region(node):
            nodes.append(node)
            continue
        body = in_place(node, body_of_region(node), values)
        nodes += [dataclasses.replace(n, id=next(ids)) for n in body.nodes]
        region_of.update((n.id, node) for n in nodes[-len(body.nodes) :])
        values = {**body.values, **values}
    return graph.replace(nodes=nodes, values=values), region_of
