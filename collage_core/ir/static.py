"""Whether a graph can be placed: all of its values are tensors of known shapes."""

from __future__ import annotations

import os

import onnx.defs

from collage_core.errors import ModelError
from collage_core.ir.body_types import types_of_bodies
from collage_core.ir.graph import Graph
from collage_core.ir.onnx_read import infer_types, inference_fault
from collage_core.ir.passes.bounds import bounds_of
from collage_core.ir.types import UNKNOWN, Node

__all__ = ["require_static", "require_static_inputs"]


def require_static(graph: Graph) -> None:
    """Raise ModelError unless a placement can be made: it names the value whose shape is not known, with the
    open dimension, or which holds texts, or would not fit into this machine's memory.
    """
    require_static_inputs(graph)
    for n in graph.nodes:
        for v in n.outputs:
            if v and (graph.type_of(v) == UNKNOWN or graph.type_of(v).symbolic_dims):
                raise ModelError(
                    f"the shape of {v!r}, computed by {n.name!r} ({n.qualified_op}), cannot be inferred: "
                    + _why_open(graph, n, n.outputs.index(v))
                )
            if v:
                _require_storable(graph, v)


def require_static_inputs(graph: Graph) -> None:
    """As `require_static`, of the inputs alone."""
    for v in graph.inputs:
        type = graph.type_of(v)
        if type == UNKNOWN:
            raise ModelError(f"the model does not say the shape of input {v!r}; give it with --shape {v}=...")
        if open_dims := type.symbolic_dims:
            shape = ",".join(map(str, type.shape))
            raise ModelError(
                f"input {v!r} has an open dimension {open_dims[0]!r} in its shape [{shape}]; "
                f"give it with --shape {v}=..."
            )
        _require_storable(graph, v)


def _why_open(graph: Graph, node: Node, output: int) -> str:
    """Why a node's output has no static type."""
    if node.domain and not onnx.defs.has(node.op_type, node.domain):
        return "onnx does not know the operator, and no definition of a plugin covers it"
    if fault := inference_fault(graph):
        return fault
    if node.op_type == "If" and not node.domain:
        one, other = (types[output] for types in types_of_bodies(graph, node, infer_types))
        if one != other:
            return f"its branches yield {one} and {other}"
    reason = "it depends on values that are known only when the model runs"
    try:
        bounds_of(graph, [v for v in graph.outputs if not graph.type_of(v).is_static])
    except ModelError as error:
        reason += f", and {error}"
    return reason


def _require_storable(graph: Graph, value: str) -> None:
    type = graph.type_of(value)
    if type.dtype == "object":
        raise ModelError(f"{value!r} holds texts, which is not supported")
    if min(type.static_shape, default=0) < 0:
        raise ModelError(f"{value!r} would have the shape {list(type.shape)}")
    if type.size_bytes > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
        raise ModelError(
            f"{value!r} ({type}) takes {type.size_bytes / 1e9:,.0f} GB, more than this machine's memory"
        )
