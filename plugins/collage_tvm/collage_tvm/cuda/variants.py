"""The formats in which a group is offered on the GPU."""

from __future__ import annotations

from collections.abc import Sequence

from collage_core.backend import Variant, plain_variant, rounded_variant
from collage_core.errors import Refusal
from collage_core.ir import Operator, OpKind, Subgraph, op_kind
from collage_core.target import Target
from collage_tvm.cuda.rules import check_types
from collage_tvm.groups import check_group
from collage_tvm.operand_layouts import contraction_variants
from collage_tvm.variants import channels_last_variant

__all__ = ["DEVICE_NAME", "STORED", "cuda_variants"]

STORED = ("bfloat16", "float16")
"""What float32 values may be stored as. They are computed with as float32."""
DEVICE_NAME = "cuda"


def cuda_variants(subgraph: Subgraph, target: Target) -> list[Variant] | Refusal:
    """As on the CPU; products and convolutions plain as well. Each in every precision that is allowed,
    throughout or at one side.
    """
    if DEVICE_NAME not in target.accelerators:
        return Refusal(f"device {DEVICE_NAME!r} does not take part", subgraph.nodes[0].name)
    graph = subgraph.graph
    refusals = [check_group(subgraph), *(check_types(Operator(graph, node)) for node in subgraph.nodes)]
    for refusal in refusals:
        if refusal is not None:
            return refusal
    exact = [plain_variant(subgraph)]
    if any(op_kind(graph, n) == OpKind.OUT_ELEMWISE_FUSABLE for n in subgraph.nodes):
        exact += contraction_variants(subgraph) or []
    elif (last := channels_last_variant(subgraph)) is not None:
        exact.append(last)
    return [_on_device(v) for v in dict.fromkeys([*exact, *_rounded(subgraph, exact, target)])]


def _rounded(subgraph: Subgraph, exact: Sequence[Variant], target: Target) -> list[Variant]:
    if any(n.op_type == "CumSum" for n in subgraph.nodes):  # its schedule stores nothing but sums
        return []
    if contraction_variants(subgraph) is not None:  # whose operands are read where they lie
        return []
    found: list[Variant] = []
    for dtype in (d for d in STORED if d in target.precisions):
        found += [rounded_variant(v, dtype) for v in exact]
        found.append(rounded_variant(exact[0], dtype, outputs=False))
        found.append(rounded_variant(exact[0], dtype, inputs=False))
    return found


def _on_device(variant: Variant) -> Variant:
    return Variant(
        tuple(f.on(DEVICE_NAME) for f in variant.inputs),
        tuple(f.on(DEVICE_NAME) for f in variant.outputs),
        variant.options,
    )
