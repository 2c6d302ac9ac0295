"""The formats in which a group is offered. Loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from collage_cuda import NAME

from collage_core.backend import Variant
from collage_core.errors import Refusal
from collage_core.formats import Format
from collage_core.graph_library import border_variants
from collage_core.ir import Subgraph, bodies_of
from collage_core.target import Target

__all__ = ["DTYPES", "variants"]

DTYPES = ("bfloat16", "bool", "float16", "float32", "int32", "int64")
"""Of every value in a group. float64 would be computed in float32 without a word."""

_MOST_RANK = 8
"""nvinfer1::Dims::MAX_DIMS."""
_MOST_ELEMENTS = 2**31 - 1


def variants(subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
    """Everything row-major; where there are images, channels-last as well."""
    if NAME not in target.accelerators:
        return Refusal(f"device {NAME!r} does not take part")
    if (refusal := _refusal(subgraph)) is not None:
        return refusal
    return [_there(variant) for variant in border_variants(subgraph)]


def _refusal(subgraph: Subgraph) -> Refusal | None:
    graph = subgraph.graph
    if subgraph.dequantised:
        return Refusal(f"{next(iter(subgraph.dequantised))!r} is quantised", subgraph.nodes[0].name)
    for node in subgraph.nodes:
        if node.domain:  # whose parser does not look at it
            return Refusal(f"{node.qualified_op} is no operator of ONNX's own", node.name)
        if bodies_of(node):
            return Refusal(f"{node.op_type} has bodies of its own", node.name)
        for value in (*node.inputs, *node.outputs):
            if not value:
                continue
            type = graph.type_of(value)
            if type.dtype not in DTYPES:
                said = f"{value!r} is {type}; TensorRT is given {', '.join(DTYPES)}"
                return Refusal(said, node.name)
            if type.symbolic_dims:
                return Refusal(f"dimension {type.symbolic_dims[0]!r} of {value!r} is not known", node.name)
            if len(type.shape) > _MOST_RANK:
                return Refusal(f"{value!r} has rank {len(type.shape)}, more than {_MOST_RANK}", node.name)
            if not 0 < type.size <= _MOST_ELEMENTS:
                return Refusal(f"{value!r} has {type.size} elements", node.name)
    return None


def _there(variant: Variant) -> Variant:
    """The same in the GPU's memory."""

    def moved(format: Format) -> Format:
        return replace(format, device=NAME)

    inputs, outputs = (tuple(map(moved, formats)) for formats in (variant.inputs, variant.outputs))
    return replace(variant, inputs=inputs, outputs=outputs)
