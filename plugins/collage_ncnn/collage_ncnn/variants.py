"""The formats and algorithms in which a convolution is offered."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from collage_core.backend import Variant
from collage_core.errors import Refusal
from collage_core.formats import channels_last, plain
from collage_core.ir import Subgraph
from collage_ncnn.convolution import TILES, Convolution
from collage_ncnn.parsing import parse

__all__ = ["strip_rows", "tile", "variants"]

_TILE = "winograd"
"""What names the results that one of Winograd's tiles yields, along each side."""

_STRIP = "strip"
"""What names how much is computed at a time, in rows of tiles."""
_STRIPS = (2, 4)
_LEAST_STRIPS = 3
"""Fewer of them spare little."""


def variants(subgraph: Subgraph) -> Sequence[Variant] | Refusal:
    """Row-major and channels-last, each by every algorithm; channels-last in strips, too."""
    convolution = parse(subgraph)
    if isinstance(convolution, Refusal):
        return convolution
    shapes = [subgraph.graph.shape_of(v) for v in (subgraph.nodes[0].inputs[0], subgraph.outputs[0])]
    offered = []
    for make, strips in ((plain, ()), (channels_last, _STRIPS)):
        source, result = (make("float32", shape) for shape in shapes)
        offered += [Variant((source,), (result,), o) for o in _algorithms(convolution, strips)]
    return list(dict.fromkeys(offered))


def _algorithms(convolution: Convolution, strips: Sequence[int]) -> Iterator[tuple[tuple[str, str], ...]]:
    if not convolution.can_winograd:
        yield ()
        return
    for side in TILES:
        yield ((_TILE, side),)
        for strip in strips:
            if math.ceil(convolution.output.height / (strip * int(side))) >= _LEAST_STRIPS:
                yield (_STRIP, str(strip)), (_TILE, side)


def tile(variant: Variant) -> str:
    """The tile that the variant asks for; "" for none."""
    return dict(variant.options).get(_TILE, "")


def strip_rows(variant: Variant) -> int:
    """How many of the result's rows are computed at a time; 0 for all."""
    options = dict(variant.options)
    return int(options.get(_STRIP, "0")) * int(options.get(_TILE, "0"))
