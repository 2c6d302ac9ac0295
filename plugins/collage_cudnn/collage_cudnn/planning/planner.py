"""From a group and a variant to what cuDNN is asked for."""

from __future__ import annotations

from collections.abc import Callable

from collage_core.backend import Variant
from collage_core.errors import BackendError, Refusal
from collage_core.ir import Node, Subgraph
from collage_cudnn.attention import Attention, parse_attention
from collage_cudnn.chain import TOO_MANY_WAYS, parse, pointwise_place
from collage_cudnn.description import Call, Description
from collage_cudnn.planning.attention import plan_attention
from collage_cudnn.planning.contractions import plan_conv, plan_deconv, plan_product
from collage_cudnn.planning.others import plan_layer_norm, plan_pool, plan_reduction, plan_softmax
from collage_cudnn.planning.site import WAYS, Site
from collage_cudnn.support import REDUCTIONS

__all__ = ["plan"]

_PLANNERS: dict[str, Callable[[Site, Node], Call | Description]] = {
    "AveragePool": plan_pool,
    "Conv": plan_conv,
    "ConvTranspose": plan_deconv,
    "Gemm": plan_product,
    "LayerNormalization": plan_layer_norm,
    "LogSoftmax": plan_softmax,
    "MatMul": plan_product,
    "MaxPool": plan_pool,
    "Softmax": plan_softmax,
    **dict.fromkeys(REDUCTIONS, plan_reduction),
}


def plan(subgraph: Subgraph, variant: Variant) -> tuple[Call | Description, ...]:
    """What cuDNN can be asked for a group in one of its variants: whatever it runs fastest; all say the same.
    BackendError with the reason if there is nothing.
    """
    attention = parse_attention(subgraph)
    if isinstance(attention, Attention):
        return (plan_attention(subgraph, variant, attention),)
    chain = parse(subgraph) if attention is None else attention
    if isinstance(chain, Refusal):
        raise BackendError(str(chain))
    found = {}
    for way in WAYS:
        asked = _plan(Site(subgraph, variant, chain, way))
        found[_text(asked)] = asked
    return tuple(found.values())


def _plan(site: Site) -> Call | Description:
    anchor = site.chain.anchor
    return _plan_pointwise(site) if anchor is None else _PLANNERS[anchor.op_type](site, anchor)


def _text(asked: Call | Description) -> str:
    """Alike for what asks alike."""
    return str(asked.steps) if isinstance(asked, Description) else "call"


def _plan_pointwise(site: Site) -> Description:
    place = pointwise_place(site.chain, site.formats[site.chain.output].layout)
    if place is None:
        raise BackendError(TOO_MANY_WAYS)
    return site.finish(site.follow(place, {}, site.chain.steps), place)
