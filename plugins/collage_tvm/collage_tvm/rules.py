"""What TVM fuses: the paper's section 3.2, and the kinds of TVM's own fusion."""

from __future__ import annotations

from collage_core.errors import Refusal
from collage_core.ir import Operator, OpKind
from collage_core.rules import PatternRule
from collage_tvm.groups import MAX_OPERATORS, POOLS
from collage_tvm.support import check_operator

__all__ = ["NAME", "fusion_rule", "tvm_rule", "valid_op"]

NAME = "tvm"


def valid_op(op: Operator) -> bool | Refusal:
    """Whether one operator can be compiled at all."""
    refusal = check_operator(op)
    return True if refusal is None else refusal


def fusion_rule(kind: OpKind, src: Operator, sink: Operator) -> bool | Refusal:
    """Whether a group of `kind` that ends in `src` may take `sink` in: movers and arithmetic among each
    other, into reductions, and arithmetic after them."""
    if OpKind.TUPLE in (kind, sink.kind):
        return Refusal("a split is compiled on its own", sink.node.name)
    if sink.kind == OpKind.OUT_ELEMWISE_FUSABLE:
        return Refusal(
            f"a {sink.op_type} reads every element several times, so nothing is fused into its input",
            sink.node.name,
        )
    if kind == OpKind.OUT_ELEMWISE_FUSABLE and sink.kind > OpKind.BROADCAST:
        return Refusal("only arithmetic follows a convolution or a product in its kernel", sink.node.name)
    if max(kind, sink.kind) > OpKind.OUT_ELEMWISE_FUSABLE:
        return Refusal(f"{sink.op_type} is not fused with {src.op_type}", sink.node.name)
    if sink.kind == OpKind.REDUCTION and sink.op_type in POOLS:
        return Refusal(
            f"{sink.op_type} reads every element several times, so nothing is fused into its input",
            sink.node.name,
        )
    if kind == OpKind.REDUCTION and sink.kind == OpKind.INJECTIVE:
        return Refusal("the result of a reduction is not rearranged in the same kernel", sink.node.name)
    return True


def tvm_rule() -> PatternRule:
    return PatternRule(NAME, valid_op, fusion_rule, "fused", max_nodes=MAX_OPERATORS)
