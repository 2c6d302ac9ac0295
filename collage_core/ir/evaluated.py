"""What a node yields on constants, by ONNX's reference and our own operators."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx.reference import ReferenceEvaluator

from collage_core.formats import Array
from collage_core.ir.graph import Graph
from collage_core.ir.onnx_write import to_model
from collage_core.ir.types import UNKNOWN, Node, TensorType, Value, ValueKind
from collage_core.operators import OPERATORS

__all__ = ["evaluated", "is_dequantisation"]

_FLOAT = "float"
"""DequantizeLinear reads floats of eight bits, too."""


def evaluated(node: Node, operands: dict[str, Array], opsets: Mapping[str, int]) -> dict[str, Array] | None:
    """What the node yields, by name; None where no implementation takes it, or that is no tensor."""
    alone = Graph(
        node.name,
        [node],
        {v: Value(v, TensorType(a.dtype.name, a.shape), ValueKind.INPUT) for v, a in operands.items()}
        | {v: Value(v, UNKNOWN, ValueKind.INTERMEDIATE) for v in node.outputs if v},
        operands,
        [v for v in node.outputs if v],
        {},
        opsets,
    )
    try:
        with np.errstate(all="ignore"):
            results = ReferenceEvaluator(to_model(alone), new_ops=list(OPERATORS)).run(None, operands)
    except Exception:  # whatever an implementation raises: the node stays, and fails or not when it is run
        return None
    if any(isinstance(r, list) for r in results):  # optionals and sequences
        return None
    return dict(zip(alone.outputs, map(np.asarray, results), strict=True))


def is_dequantisation(node: Node, constants: Mapping[str, Array]) -> bool:
    """Whether the node makes floats of constants that are whole numbers."""
    return (
        node.op_type == "DequantizeLinear"
        and not node.domain
        and all(v in constants for v in node.inputs if v)
        and _FLOAT not in constants[node.inputs[0]].dtype.name
    )
