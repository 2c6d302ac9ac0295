"""Which products MKL can run, and why not the others. Loads nothing."""

from __future__ import annotations

import numpy as np

from collage_core.errors import Refusal
from collage_core.ir import Graph, Node

__all__ = ["PRODUCT_OPS", "addend", "refusal"]

PRODUCT_OPS = ("Gemm", "MatMul")
_DTYPES = ("float32", "float64")


def addend(node: Node) -> str:
    """The name of Gemm's C, "" where nothing is added."""
    named = node.op_type == "Gemm" and len(node.inputs) > 2 and node.attributes.get("beta", 1.0) != 0.0
    return node.inputs[2] if named else ""


def refusal(graph: Graph, node: Node) -> Refusal | None:
    """Why MKL cannot run `node`, or None if it can."""
    if node.domain or node.op_type not in PRODUCT_OPS:
        return Refusal(f"{node.op_type} is no matrix product", node.name)
    names = [v for v in node.inputs if v]
    for v in (*names, node.outputs[0]):
        type = graph.type_of(v)
        if not type.dtype:
            return Refusal(f"the type of {v!r} is not known", node.name)
        if type.dtype not in _DTYPES:
            return Refusal(f"{type.dtype} is not supported, only {' and '.join(_DTYPES)}", node.name)
        if type.symbolic_dims:
            return Refusal(f"dimension {type.symbolic_dims[0]!r} is not known", node.name)
        if type.size == 0:
            return Refusal("a tensor has no elements", node.name)
    if all(graph.is_constant(v) for v in node.inputs[:2]):
        # Both would be packed, each with alpha
        return Refusal("both factors are constant", node.name)
    shape = graph.shape_of(node.outputs[0])
    if (c := addend(node)) and not _broadcasts(graph.shape_of(c), shape):
        return Refusal("the addend does not broadcast to the output", node.name)
    return None


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False
