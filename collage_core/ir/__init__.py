"""The graph that everything else works on: ONNX operators, typed values, subgraphs, and the passes that
normalise them.
"""

from collage_core.ir.bodies import bodies_of
from collage_core.ir.functions import Call, Definition
from collage_core.ir.graph import Graph
from collage_core.ir.handover import subgraph_model
from collage_core.ir.nodeset import NodeSet
from collage_core.ir.onnx_read import from_model, infer_types, load_model
from collage_core.ir.onnx_tensors import ExternalData
from collage_core.ir.onnx_write import (
    WEIGHTS_FILE,
    WrittenWeights,
    to_model,
    to_node_proto,
    to_value_info,
    write_external,
)
from collage_core.ir.operator import Operator
from collage_core.ir.opkinds import OpKind, op_kind
from collage_core.ir.row_axes import RowAxes
from collage_core.ir.stored import MODEL_FILE, load_stored, save_stored
from collage_core.ir.subgraph import Subgraph
from collage_core.ir.types import UNKNOWN, Attribute, Dim, Node, TensorType, Value, ValueKind

__all__ = [
    "MODEL_FILE",
    "UNKNOWN",
    "WEIGHTS_FILE",
    "Attribute",
    "Call",
    "Definition",
    "Dim",
    "ExternalData",
    "Graph",
    "Node",
    "NodeSet",
    "OpKind",
    "Operator",
    "RowAxes",
    "Subgraph",
    "TensorType",
    "Value",
    "ValueKind",
    "WrittenWeights",
    "bodies_of",
    "from_model",
    "infer_types",
    "load_model",
    "load_stored",
    "op_kind",
    "save_stored",
    "subgraph_model",
    "to_model",
    "to_node_proto",
    "to_value_info",
    "write_external",
]
