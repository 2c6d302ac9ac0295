"""What oneDNN can fuse: an anchor followed by elementwise and binary post-operations."""

from __future__ import annotations

from collage_core.errors import Refusal
from collage_core.ir import Operator, OpKind, Subgraph
from collage_core.rules import PatternRule
from collage_dnnl.chain import MAX_POST_OPS, NO_POST_OPS
from collage_dnnl.quantised import QUANTISERS, parse_group
from collage_dnnl.steps import BINARY_OPS, UNARY_OPS, diamond_steps, steps_of
from collage_dnnl.support import refusal

__all__ = ["POST_OPS_RULE", "fusion_rule", "group_check", "valid_op"]


def valid_op(op: Operator) -> bool | Refusal:
    """Whether oneDNN can run the operator alone, or at an end of a group."""
    if op.op_type in QUANTISERS and not op.node.domain:
        return True
    wrong = refusal(op.graph, op.node)
    return True if wrong is None else wrong


def fusion_rule(cur_type: OpKind, src: Operator, sink: Operator) -> bool | Refusal:
    """Whether `sink` can be a post-operation of the primitive that ends in `src`.

    Nodes between them are accepted where together with `sink` they are one step (x * Sigmoid(x)).
    """
    graph, running = src.graph, src.node.outputs[0]
    if src.op_type == "DequantizeLinear" or sink.op_type == "QuantizeLinear":
        return True  # what the group is then is for its check to say
    if cur_type > OpKind.OUT_ELEMWISE_FUSABLE or src.op_type in NO_POST_OPS:
        return Refusal(f"oneDNN fuses nothing to {src.op_type}", src.node.name)
    if sink.op_type not in UNARY_OPS and sink.op_type not in BINARY_OPS:
        return Refusal(f"{sink.op_type} is no post-operation", sink.node.name)
    between = graph.descendants(src.node.id) & graph.ancestors(sink.node.id)
    if between:
        position = graph.positions
        nodes = [graph.node(i) for i in sorted(between, key=position.__getitem__)]
        if diamond_steps([*nodes, sink.node], running) is None:
            return Refusal(f"the branches between {src} and {sink} are not one step", sink.node.name)
        return True
    found = steps_of(graph, sink.node, running)
    return found if isinstance(found, Refusal) else True


def group_check(group: Subgraph) -> Refusal | None:
    """Whether the group as a whole is one primitive."""
    found = parse_group(group)
    return found if isinstance(found, Refusal) else None


POST_OPS_RULE = PatternRule(
    "dnnl", valid_op, fusion_rule, "anchor + post-ops", max_nodes=MAX_POST_OPS + 6, check=group_check
)
"""Nodes are more than post-operations where several of them make one (x * Sigmoid(x))."""
