"""From a group and a variant to the plan of its primitive."""

from __future__ import annotations

from collections.abc import Callable

from collage_core.backend import Variant
from collage_core.errors import BackendError, Refusal
from collage_core.ir import Node, Subgraph
from collage_dnnl.chain import Chain
from collage_dnnl.kernels.elementwise import plan_elementwise
from collage_dnnl.kernels.matmul import plan_gemm, plan_matmul
from collage_dnnl.kernels.movement import plan_concat, plan_conversion, plan_quantising
from collage_dnnl.kernels.normalization import plan_batch_norm, plan_layer_norm, plan_reduction, plan_softmax
from collage_dnnl.kernels.plan import Plan
from collage_dnnl.kernels.site import Site
from collage_dnnl.kernels.spatial import plan_conv, plan_lrn, plan_pool, plan_resize
from collage_dnnl.quantised import parse_group, quantised_plan
from collage_dnnl.support import REDUCTIONS

__all__ = ["plan", "plan_conversion"]

_PLANNERS: dict[str, Callable[[Site, Chain, Node], Plan]] = {
    "AveragePool": plan_pool,
    "BatchNormalization": plan_batch_norm,
    "Concat": plan_concat,
    "Conv": plan_conv,
    "ConvTranspose": plan_conv,
    "Gemm": plan_gemm,
    "GlobalAveragePool": plan_pool,
    "GlobalMaxPool": plan_pool,
    "LRN": plan_lrn,
    "LayerNormalization": plan_layer_norm,
    "LogSoftmax": plan_softmax,
    "MatMul": plan_matmul,
    "MaxPool": plan_pool,
    "Resize": plan_resize,
    "Softmax": plan_softmax,
    **dict.fromkeys(REDUCTIONS, plan_reduction),
}


def plan(subgraph: Subgraph, variant: Variant) -> Plan:
    """The plan of a group that `parse_group` can read, in one of its variants; BackendError with the reason
    otherwise.
    """
    found = parse_group(subgraph)
    if isinstance(found, Refusal):
        raise BackendError(str(found))
    chain, quantisation = found
    site = Site(subgraph, variant, {} if quantisation is None else quantisation.whole)
    anchor = chain.anchor
    if anchor is None and not chain.steps:
        planned = plan_quantising(site, chain)
    elif anchor is None:
        planned = plan_elementwise(site, chain, sums=quantisation is not None)
    else:
        planned = _PLANNERS[anchor.op_type](site, chain, anchor)
    return planned if quantisation is None else quantised_plan(planned, quantisation)
