"""The formats in which a group is offered."""

from __future__ import annotations

from collections.abc import Sequence

from collage_core.backend import Variant, rounded_variant
from collage_core.errors import Refusal
from collage_core.formats import BFLOAT16
from collage_core.graph_library import border_variants
from collage_core.ir import Subgraph
from collage_core.target import Target
from collage_openvino.faults import known_fault
from collage_openvino.integers import wide_refusal
from collage_openvino.loops import loop_refusal

__all__ = ["BORDER_DTYPES", "variants"]


BORDER_DTYPES = ("bool", "float32", "int8", "int32", "int64", "uint8")
"""Of values that a group reads or yields. The library computes in 32 bits: float64 is refused for that, int64
is taken for indices and shapes.
"""


def variants(subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
    """Everything row-major; where there are images, channels-last as well. Both in bfloat16, too, where the
    target allows it and the processor has units for it: all of the group is computed in it then.
    """
    graph = subgraph.graph
    for value in (*subgraph.inputs, *subgraph.outputs):
        type = graph.type_of(value)
        node = subgraph.nodes[0].name
        if type.dtype not in BORDER_DTYPES:
            return Refusal(f"{value!r} is {type}; OpenVINO is given {', '.join(BORDER_DTYPES)}", node)
        if type.symbolic_dims:
            return Refusal(f"dimension {type.symbolic_dims[0]!r} of {value!r} is not known", node)
        if not type.size:
            return Refusal(f"{value!r} is {type}, which has no elements", node)
    for ask in (known_fault, wide_refusal, loop_refusal):
        if (refusal := ask(subgraph)) is not None:
            return refusal
    offered = border_variants(subgraph)
    if target.multiplies_bfloat16:
        offered += [r for v in offered if (r := rounded_variant(v, BFLOAT16)) != v]
    return offered
