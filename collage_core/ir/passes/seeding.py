"""Random operators draw the same numbers in every run of the reference."""

from __future__ import annotations

import dataclasses

import onnx

from collage_core.ir.attributes import schema_of
from collage_core.ir.bodies import bodies_of, closed
from collage_core.ir.graph import Graph
from collage_core.ir.operator import Operator
from collage_core.ir.passes.base import Pass
from collage_core.ir.randomness import draws, seed_of
from collage_core.ir.types import Attribute, Node

__all__ = ["SEED_RANDOM"]


_SPREAD = 1009
"""A prime: nodes of different bodies may have one id, and small bodies are to share no seed."""
_LARGEST = 1 << 24
"""Up to which all integers are numbers of single precision, in which ONNX keeps most seeds."""


def _seed(graph: Graph) -> Graph:
    return _seeded_graph(graph, graph, 0)


def _seeded_graph(graph: Graph, closed_graph: Graph, outside: int) -> Graph:
    """closed_graph: the graph with what it reads from outside. outside: a number for where it stands."""
    nodes = [_seeded(closed_graph, n, (outside + n.id) % _LARGEST + 1) for n in graph.nodes]
    return graph if nodes == list(graph.nodes) else graph.replace(nodes=nodes)


def _seeded(graph: Graph, node: Node, seed: int) -> Node:
    """With a seed of its own, and none that is 0: for some libraries that is no seed."""
    changed: dict[str, Attribute] = {}
    for position, (name, body) in enumerate(bodies_of(node).items()):
        inside = _seeded_graph(body, closed(graph, node, body, {}), _SPREAD * (2 * seed + position))
        if inside is not body:
            changed[name] = inside
    schema = schema_of(Operator(graph, node))
    if schema is not None and "seed" in schema.attributes and draws(graph, node) and seed_of(node) is None:
        is_float = schema.attributes["seed"].type == onnx.defs.OpSchema.AttrType.FLOAT
        changed["seed"] = float(seed) if is_float else seed
    return dataclasses.replace(node, attributes={**node.attributes, **changed}) if changed else node


SEED_RANDOM = Pass("seed-random", "give a seed to each operator that draws random numbers without one", _seed)
