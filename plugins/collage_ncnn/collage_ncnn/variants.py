"""The formats and algorithms in which a convolution is offered."""

from __future__ import annotations

from collections.abc import Sequence

from collage_core.backend import Variant
from collage_core.errors import Refusal
from collage_core.formats import channels_last, plain
from collage_core.ir import Subgraph
from collage_ncnn.convolution import TILES, parse

__all__ = ["tile", "variants"]

_OPTION = "winograd"
"""What names the results that one of Winograd's tiles yields, along each side."""


def variants(subgraph: Subgraph) -> Sequence[Variant] | Refusal:
    """Row-major and channels-last, each by every algorithm."""
    convolution = parse(subgraph)
    if isinstance(convolution, Refusal):
        return convolution
    graph, result = subgraph.graph, subgraph.outputs[0]
    algorithms = [((_OPTION, tile),) for tile in TILES] if convolution.can_winograd else [()]
    offered = [
        Variant(
            (make("float32", graph.shape_of(convolution.source)),),
            (make("float32", graph.shape_of(result)),),
            options,
        )
        for make in (plain, channels_last)
        for options in algorithms
    ]
    return list(dict.fromkeys(offered))


def tile(variant: Variant) -> str:
    """The tile that the variant asks for; "" for none."""
    return dict(variant.options).get(_OPTION, "")
