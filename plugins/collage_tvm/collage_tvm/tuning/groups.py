"""Which groups the tuner takes: a convolution or matrix product and what is computed from its elements. Told
without TVM.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace

from collage_core.backend import Variant
from collage_core.errors import Refusal
from collage_core.ir import Node, Subgraph
from collage_core.target import Target
from collage_tvm.groups import check_group
from collage_tvm.operand_layouts import contraction_variants
from collage_tvm.tuning.records import is_any_kept, tuned_variant

__all__ = ["anchor_of", "tunable_variants", "tuned_variants", "untunable"]

_ANCHORS = frozenset({"Conv", "Gemm", "MatMul"})
_DTYPE = "float32"


def tunable_variants(subgraph: Subgraph, target: Target) -> list[Variant] | Refusal:
    """The formats in which the group can be tuned: a convolution channels-last, a product plain."""
    if (missing := _missing_package()) is not None:
        return missing
    anchor = anchor_of(subgraph)
    if isinstance(anchor, Refusal):
        return anchor
    return [_variant(subgraph)]


def tuned_variants(subgraph: Subgraph, target: Target) -> list[Variant]:
    """What the tuner has found for this group so far."""
    # Asked for every group of a network: what is cheap first.
    if _anchor(subgraph) is None or not is_any_kept() or isinstance(anchor_of(subgraph), Refusal):
        return []
    found = tuned_variant(subgraph, _variant(subgraph), target)
    return [] if found is None else [found]


def untunable(subgraph: Subgraph, variant: Variant) -> Refusal | None:
    """Why no schedule can be meant for this variant, its options aside; None if one can."""
    anchor = anchor_of(subgraph)
    if isinstance(anchor, Refusal):
        return anchor
    if replace(variant, options=()) != (tuned := _variant(subgraph)):
        return Refusal(f"it is tuned as {tuned} only", anchor.name)
    return None


def _missing_package() -> Refusal | None:
    if importlib.util.find_spec("xgboost") is None:
        return Refusal("tuning needs the package xgboost: pip install 'collage-tvm[tune]'")
    return None


def anchor_of(subgraph: Subgraph) -> Node | Refusal:
    """The one convolution or product of a group that can be tuned, which must be a kernel untuned, too."""
    graph = subgraph.graph
    anchor = _anchor(subgraph)
    if anchor is None:
        return Refusal("only groups with a convolution or matrix product are tuned", subgraph.nodes[0].name)
    if (refusal := check_group(subgraph)) is not None:
        return refusal
    for value in (*subgraph.inputs, *subgraph.constants, *subgraph.outputs):
        type = graph.type_of(value)
        if type.dtype != _DTYPE or type.size == 0:
            return Refusal(f"{value!r} is {type}; only {_DTYPE} is tuned", anchor.name)
    if (reason := _operands(subgraph, anchor)) is not None:
        return Refusal(reason, anchor.name)
    below = set(anchor.outputs)
    shape = graph.shape_of(anchor.outputs[0])
    for node in subgraph.nodes:
        if node is anchor:
            continue
        if not below & set(node.inputs):
            return Refusal("nothing is fused into the inputs of what is tuned", node.name)
        if graph.shape_of(node.outputs[0]) != shape:
            return Refusal("its result has another shape than what is tuned", node.name)
        below.update(node.outputs)
    return anchor


def _anchor(subgraph: Subgraph) -> Node | None:
    return next((n for n in subgraph.nodes if n.op_type in _ANCHORS), None)


def _operands(subgraph: Subgraph, anchor: Node) -> str | None:
    graph = subgraph.graph
    ranks = [len(graph.shape_of(v)) for v in anchor.inputs if v]
    if anchor.op_type == "Conv":
        return None if 3 <= ranks[0] <= 5 else f"convolutions of rank {ranks[0]} are not tuned"
    return None if min(ranks[:2]) >= 2 else "products with vectors are not tuned"


def _variant(subgraph: Subgraph) -> Variant:
    """The first of the formats in which contractions are offered: each takes minutes."""
    offered = contraction_variants(subgraph)
    assert offered, f"{subgraph} has no contraction"
    return offered[0]
