"""The formats in which a group is offered."""

from __future__ import annotations

from collections.abc import Sequence

from collage_core.backend import Variant, plain_variant
from collage_core.errors import Refusal
from collage_core.formats import Format, channels_last
from collage_core.ir import Subgraph
from collage_openvino.integers import wide_refusal

__all__ = ["BORDER_DTYPES", "variants"]

BORDER_DTYPES = ("bool", "float32", "int8", "int32", "int64", "uint8")
"""Of values that a group reads or yields. The library computes in 32 bits: float64 is refused for that, int64
is taken for indices and shapes.
"""

_IMAGE_OPS = frozenset(
    [
        "AveragePool",
        "BatchNormalization",
        "Conv",
        "ConvTranspose",
        "DepthToSpace",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "InstanceNormalization",
        "LRN",
        "LpPool",
        "MaxPool",
        "Resize",
        "SpaceToDepth",
        "Upsample",
    ]
)
_IMAGE_RANKS = (4, 5)


def variants(subgraph: Subgraph) -> Sequence[Variant] | Refusal:
    """Everything row-major; where there are images, channels-last as well."""
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
    if (refusal := wide_refusal(subgraph)) is not None:
        return refusal
    plain = plain_variant(subgraph)
    if not _about_images(subgraph):
        return [plain]
    images = Variant(
        tuple(_channels_last(subgraph, v) for v in subgraph.inputs),
        tuple(_channels_last(subgraph, v) for v in subgraph.outputs),
    )
    return [plain] if images == plain else [plain, images]


def _about_images(subgraph: Subgraph) -> bool:
    """Whether an operator on images is inside, or right beside: what comes between two convolutions should
    not have to change their layout.
    """
    graph = subgraph.graph
    beside = [graph.producer(v) for v in subgraph.inputs]
    beside += [n for v in subgraph.outputs for n in graph.consumers(v)]
    return any(n is not None and n.op_type in _IMAGE_OPS for n in (*subgraph.nodes, *beside))


def _channels_last(subgraph: Subgraph, value: str) -> Format:
    graph = subgraph.graph
    dtype, shape = graph.type_of(value).dtype, graph.shape_of(value)
    if dtype == "float32" and len(shape) in _IMAGE_RANKS:
        return channels_last(dtype, shape)
    return graph.plain_format(value)
