"""What a backend is asked of a model's nodes, tried on a few."""

from __future__ import annotations

import onnx.parser

from collage_core.backend import Backend
from collage_core.ir import NodeSet, Subgraph, from_model
from collage_core.target import Target

__all__ = ["ask_variants"]

_MODEL = """<ir_version: 10, opset_import: ["" : 20]>
tried (float[4, 4] x) => (float[4, 4] z) { y = MatMul (x, x) w = Add (y, x) z = Relu (w) }"""


def ask_variants(backend: Backend) -> None:
    """What it would offer of each of three nodes. Raises whatever it raises."""
    graph = from_model(onnx.parser.parse_model(_MODEL))
    for node in graph.nodes:
        backend.variants(Subgraph(graph, NodeSet([node.id])), Target())
