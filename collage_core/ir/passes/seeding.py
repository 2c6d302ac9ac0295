"""Random operators draw the same numbers in every run of the reference."""

from __future__ import annotations

import dataclasses

import onnx

from collage_core.ir.attributes import schema_of
from collage_core.ir.graph import Graph
from collage_core.ir.operator import Operator
from collage_core.ir.passes.base import Pass
from collage_core.ir.randomness import draws, seed_of
from collage_core.ir.types import Node

__all__ = ["SEED_RANDOM"]


def _seed(graph: Graph) -> Graph:
    nodes = [_seeded(graph, n) if draws(graph, n) and seed_of(n) is None else n for n in graph.nodes]
    return graph if nodes == list(graph.nodes) else graph.replace(nodes=nodes)


def _seeded(graph: Graph, node: Node) -> Node:
    """With a seed of its own, and none that is 0: for some libraries that is no seed."""
    schema = schema_of(Operator(graph, node))
    if schema is None or "seed" not in schema.attributes:
        return node
    is_float = schema.attributes["seed"].type == onnx.defs.OpSchema.AttrType.FLOAT
    seed = node.id + 1
    return dataclasses.replace(
        node, attributes={**node.attributes, "seed": float(seed) if is_float else seed}
    )


SEED_RANDOM = Pass("seed-random", "give a seed to each operator that draws random numbers without one", _seed)
