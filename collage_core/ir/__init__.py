"""The graph that everything else works on: ONNX operators, typed values, subgraphs, and the passes that
normalise them.
"""

from collage_core.ir.graph import Graph
from collage_core.ir.nodeset import NodeSet
from collage_core.ir.operator import Operator
from collage_core.ir.opkinds import OpKind, op_kind
from collage_core.ir.subgraph import Subgraph
from collage_core.ir.types import Attribute, Dim, Node, TensorType, Value, ValueKind

__all__ = [
    "Attribute",
    "Dim",
    "Graph",
    "Node",
    "NodeSet",
    "OpKind",
    "Operator",
    "Subgraph",
    "TensorType",
    "Value",
    "ValueKind",
    "op_kind",
]
