"""Constant folding, shape computations included."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import numpy as np

from collage_core.formats import Array
from collage_core.ir.bodies import inner_nodes
from collage_core.ir.evaluated import evaluated, is_dequantisation
from collage_core.ir.graph import Graph
from collage_core.ir.onnx_read import infer_types
from collage_core.ir.passes.base import Pass
from collage_core.ir.passes.cleaning import without_unused_values
from collage_core.ir.randomness import draws
from collage_core.ir.types import UNKNOWN, Node, TensorType, Value, ValueKind

__all__ = ["FOLD_CONSTANTS", "fold"]

_MAX_GROWTH_BYTES = 1 << 20
"""A constant is not spread out (Expand, ConstantOfShape, Tile) to more than this beyond what it was computed
from.
"""

_MAX_TRIPS = 256
"""A Loop that goes round more often is left for the run."""


def fold(graph: Graph) -> Graph:
    """Evaluate what depends on constants only; then infer shapes anew, since shapes computed in the graph may
    now be known. Of what is dequantised it stays known how the model stores it.
    """
    while True:
        folded = _fold_once(graph)
        if folded is graph:
            return graph
        graph = infer_types(folded)


def _fold_once(graph: Graph) -> Graph:
    constants = dict(graph.constants)
    values = dict(graph.values)
    dequantised = dict(graph.dequantised)
    kept: list[Node] = []
    for n in graph.nodes:
        results = _evaluate(graph, n, constants)
        if results is None:
            kept.append(n)
            continue
        if is_dequantisation(n, constants):
            for v in n.inputs:
                dequantised.pop(v, None)  # what its scales come from is forgotten
            dequantised[n.outputs[0]] = n
        for name, data in results.items():
            constants[name] = data
            values[name] = Value(name, TensorType(data.dtype.name, data.shape), ValueKind.CONSTANT)
    if len(kept) == len(graph.nodes):
        return graph
    folded = graph.replace(values=values, constants=constants, dequantised=dequantised)
    return without_unused_values(folded, kept)


def _evaluate(graph: Graph, node: Node, constants: Mapping[str, Array]) -> dict[str, Array] | None:
    if not _is_foldable(graph, node, constants):
        return None
    if node.op_type in ("Shape", "Size"):
        type = graph.type_of(node.inputs[0])
        if type == UNKNOWN or type.symbolic_dims or type.size_bytes > sys.maxsize:
            return None
        # The reference evaluator reads the shape of real data; a broadcast zero has any shape and takes no
        # memory.
        operands = {node.inputs[0]: np.broadcast_to(np.zeros((), type.dtype), type.static_shape)}
    elif all(v in constants for v in node.inputs if v):
        operands = {v: constants[v] for v in node.inputs if v}
    else:
        return None
    size_bytes = sum(graph.type_of(v).size_bytes for v in node.outputs if v and graph.type_of(v).is_static)
    grows = size_bytes > sum(a.nbytes for a in operands.values()) + _MAX_GROWTH_BYTES
    if grows and not is_dequantisation(node, constants):
        return None
    results = evaluated(node, operands, graph.opsets)
    return None if results is None else {v: _typed(graph.type_of(v), r) for v, r in results.items()}


def _typed(type: TensorType, result: Array) -> Array:
    """Some of the implementations compute in another type and leave it at that."""
    return result if type == UNKNOWN else result.astype(type.dtype, copy=False)


def _is_foldable(graph: Graph, node: Node, constants: Mapping[str, Array]) -> bool:
    """Whether the node yields the same each time, and soon."""
    if draws(graph, node) or any(n.domain for n in (node, *inner_nodes(node))):
        return False
    if node.op_type == "Loop":
        trips = constants.get(node.inputs[0])
        return trips is not None and trips.size == 1 and trips.item() <= _MAX_TRIPS
    return all(n.op_type != "Loop" for n in inner_nodes(node))


FOLD_CONSTANTS = Pass(
    "fold-constants", "evaluate nodes that depend on constants and static shapes only", fold
)
