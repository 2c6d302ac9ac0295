"""The formats in which a group is offered."""

from __future__ import annotations

from collage_core.backend import Variant, plain_variant, rounded_variant
from collage_core.errors import Refusal
from collage_core.formats import BFLOAT16, Format, channels_last, plain
from collage_core.ir import OpKind, Subgraph, op_kind
from collage_core.target import Target
from collage_tvm.groups import check_group
from collage_tvm.operand_layouts import contraction_variants

__all__ = ["channels_last_variant", "group_variants"]

_KEEPS_DIMENSIONS = frozenset(
    [
        "AveragePool",
        "BatchNormalization",
        "Concat",
        "CumSum",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "InstanceNormalization",
        "LRN",
        "LpPool",
        "MaxPool",
        "Pad",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceSum",
        "Resize",
        "Slice",
        "Split",
        "Tile",
        "Expand",
        "Upsample",
    ]
)
"""Beside arithmetic, the operators whose outputs' dimensions mean what their inputs' do."""


def group_variants(subgraph: Subgraph, target: Target) -> list[Variant] | Refusal:
    """Plain; and channels-last throughout, where the group's dimensions mean the same from its inputs to its
    outputs. Contractions: see `operand_layouts`. What else there is may read and yield bfloat16 where that
    is allowed and the processor multiplies it, or change to or from it in passing.
    """
    if (refusal := check_group(subgraph)) is not None:
        return refusal
    if (contractions := contraction_variants(subgraph)) is not None:
        return contractions
    variants = [plain_variant(subgraph)]
    last = channels_last_variant(subgraph)
    if last is not None and last not in variants:
        variants.append(last)
    sums_up = any(n.op_type == "CumSum" for n in subgraph.nodes)  # its schedule stores nothing but sums
    if target.multiplies_bfloat16 and not sums_up:
        rounded = [rounded_variant(v, BFLOAT16) for v in variants]
        rounded.append(rounded_variant(variants[0], BFLOAT16, outputs=False))
        rounded.append(rounded_variant(variants[0], BFLOAT16, inputs=False))
        variants += [v for v in dict.fromkeys(rounded) if v not in variants]
    return variants


def channels_last_variant(subgraph: Subgraph) -> Variant | None:
    graph = subgraph.graph
    rank = len(graph.shape_of(subgraph.outputs[0]))
    if rank not in (4, 5):
        return None
    for node in subgraph.nodes:
        if op_kind(graph, node) > OpKind.BROADCAST and node.op_type not in _KEEPS_DIMENSIONS:
            return None
        if any(v and len(graph.shape_of(v)) != rank for v in node.outputs):
            return None

    def format(value: str) -> Format:
        type = graph.type_of(value)
        shape = type.static_shape
        return channels_last(type.dtype, shape) if len(shape) == rank else plain(type.dtype, shape)

    return Variant(tuple(map(format, subgraph.inputs)), tuple(map(format, subgraph.outputs)))
