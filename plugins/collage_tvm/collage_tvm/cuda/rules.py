"""What is fused on the GPU: what `collage_tvm.rules` fuses on the CPU."""

from __future__ import annotations

from collage_core.errors import Refusal
from collage_core.ir import Operator
from collage_core.rules import PatternRule
from collage_tvm.groups import MAX_OPERATORS
from collage_tvm.rules import fusion_rule, valid_op

__all__ = ["NAME", "check_types", "cuda_rule"]

NAME = "tvm-cuda"
_MAX_ELEMENTS = 2**31 - 2**21
"""Below 2**31 by more than the threads of a grid that find nothing to do."""


def check_types(op: Operator) -> Refusal | None:
    """Why the values of an operator are not handled on the GPU; None if they are."""
    for name in (*op.node.inputs, *op.node.outputs):
        if not name:
            continue
        type = op.graph.type_of(name)
        if type.dtype == "float16":
            return Refusal(f"{name!r} is float16, which is stored, but not computed with", op.node.name)
        if type.size > _MAX_ELEMENTS:
            return Refusal(f"{name!r} has more elements than 32-bit indices reach", op.node.name)
    return None


def _valid_op(op: Operator) -> bool | Refusal:
    valid = valid_op(op)
    if valid is not True:
        return valid
    refusal = check_types(op)
    return True if refusal is None else refusal


def cuda_rule() -> PatternRule:
    return PatternRule(NAME, _valid_op, fusion_rule, "fused", max_nodes=MAX_OPERATORS)
