"""What cuDNN fuses: pointwise operators, alone or behind a convolution or a matrix product."""

from __future__ import annotations

from collage_core.errors import Refusal
from collage_core.ir import Operator, OpKind, Subgraph
from collage_core.rules import PatternRule
from collage_cudnn import NAME
from collage_cudnn.chain import MOST_NODES, parse
from collage_cudnn.pointwise import POINTWISE_OPS
from collage_cudnn.support import FUSING_OPS, refusal

__all__ = ["FUSION_RULE", "fusion_rule", "group_check", "valid_op"]


def valid_op(op: Operator) -> bool | Refusal:
    """Whether cuDNN may run the operator alone, or at an end of a group."""
    wrong = refusal(op.graph, op.node)
    return True if wrong is None else wrong


def fusion_rule(cur_type: OpKind, src: Operator, sink: Operator) -> bool | Refusal:
    """Whether the group that ends in `src` may grow to `sink`, with all that lies between."""
    if src.op_type not in POINTWISE_OPS and src.op_type not in FUSING_OPS:
        return Refusal(f"nothing is fused to {src.op_type}", src.node.name)
    graph = src.graph
    between = graph.descendants(src.node.id) & graph.ancestors(sink.node.id)
    for node in (*(graph.node(i) for i in between), sink.node):
        if node.op_type not in POINTWISE_OPS:
            return Refusal(f"{node.op_type} is not pointwise", node.name)
        wrong = refusal(graph, node)
        if wrong is not None:
            return wrong
    return True


def group_check(group: Subgraph) -> Refusal | None:
    """Whether the group as a whole is one kernel."""
    found = parse(group)
    return found if isinstance(found, Refusal) else None


FUSION_RULE = PatternRule(
    NAME, valid_op, fusion_rule, "anchor + pointwise", max_nodes=MOST_NODES, check=group_check
)
