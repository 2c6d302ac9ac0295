"""What must be true of every graph."""

from __future__ import annotations

import os

import onnx.defs

from collage_core.errors import ModelError
from collage_core.ir.bodies import bodies_of, free_values
from collage_core.ir.body_types import types_of_bodies
from collage_core.ir.graph import Graph
from collage_core.ir.onnx_read import infer_types, inference_fault
from collage_core.ir.types import UNKNOWN, Node

__all__ = ["require_static", "verify"]


def verify(graph: Graph, after: str = "reading") -> None:
    """Raise ModelError unless ids and names are unique, nodes are in topological order and every value is
    known and computed once.
    """
    known = set(graph.inputs) | set(graph.constants)
    ids: set[int] = set()
    names: set[str] = set()
    for n in graph.nodes:
        if n.id in ids:
            raise ModelError(f"after {after}: node id {n.id} occurs twice ({n.name})")
        if n.name in names:
            raise ModelError(f"after {after}: two nodes are named {n.name!r}")
        ids.add(n.id)
        names.add(n.name)
        for v in n.inputs:
            if v and v not in known:
                raise ModelError(f"after {after}: node {n.name!r} reads {v!r} before it is computed")
        for body in bodies_of(n).values():
            for v in free_values(body):
                if v not in n.captured:
                    raise ModelError(
                        f"after {after}: a body of {n.name!r} reads {v!r}, which it is not given"
                    )
        for v in n.outputs:
            if v in known:
                raise ModelError(f"after {after}: {v!r} is computed twice, again by {n.name!r}")
            if v:
                known.add(v)
    for v in graph.outputs:
        if v not in known:
            raise ModelError(f"after {after}: output {v!r} is not computed")
    for v in known:
        if v not in graph.values:
            raise ModelError(f"after {after}: {v!r} has no type")


def require_static(graph: Graph) -> None:
    """Raise ModelError unless a placement can be made: it names the value whose shape is not known, with the
    open dimension, or which holds texts, or would not fit into this machine's memory.
    """
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
    for n in graph.nodes:
        for v in n.outputs:
            if v and (graph.type_of(v) == UNKNOWN or graph.type_of(v).symbolic_dims):
                raise ModelError(
                    f"the shape of {v!r}, computed by {n.name!r} ({n.qualified_op}), cannot be inferred: "
                    + _why_open(graph, n, n.outputs.index(v))
                )
            if v:
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
    return "it depends on values that are known only when the model runs"


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
