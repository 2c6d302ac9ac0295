"""Plans of softmax, normalisations and reductions."""

from __future__ import annotations

import math

from collage_core.errors import BackendError, Refusal
from collage_core.formats import canonical_layout
from collage_core.ir import Node
from collage_dnnl.chain import Chain
from collage_dnnl.enums import FORWARD_INFERENCE, Alg, Arg, NormFlag
from collage_dnnl.kernels.plan import Argument, BinaryPostOp, Eltwise, Input, Output, Plan
from collage_dnnl.kernels.site import Site
from collage_dnnl.kernels.spatial import spatial_layouts
from collage_dnnl.support import REDUCTIONS, reduced_axes
from collage_dnnl.tensor import Tensor, collapse, dense, regroup

__all__ = ["plan_batch_norm", "plan_layer_norm", "plan_reduction", "plan_softmax"]


def _in_place(site: Site, name: str, output: str, ops: tuple[Eltwise | BinaryPostOp, ...]) -> dict[int, int]:
    index = site.index(name)
    is_rounded = site.dtype(name) != site.dtype(output)
    read = [op.source for op in ops if isinstance(op, BinaryPostOp)]
    return {} if index is None or is_rounded or Input(index) in read else {0: index}


def plan_softmax(site: Site, chain: Chain, node: Node) -> Plan:
    """Softmax and LogSoftmax over one axis, the dimensions around it merged in the order of memory."""
    x = node.inputs[0]
    shape, layout = site.shape(x), site.layout(x)
    default = -1 if site.graph.opsets.get("", 0) >= 13 else 1
    axis = int(node.attributes.get("axis", default)) % len(shape)
    groups = collapse(shape, layout, [site.operand(v, layout)[0] for v in chain.operands], barriers={axis})
    given, value = (regroup(site.tensor(v, layout), groups) for v in (x, chain.output))
    ops = site.post_ops(chain.steps, chain.output, layout, groups)
    assert given is not None  # merged in the order of memory
    assert value is not None
    assert ops is not None
    alg = Alg.SOFTMAX_LOG if node.op_type == "LogSoftmax" else Alg.SOFTMAX_ACCURATE
    parameters = (FORWARD_INFERENCE, int(alg), given, value, groups.index([axis]))
    arguments = (Argument(Arg.SRC, given, site.source(x)), Argument(Arg.DST, value, Output()))
    return Plan("softmax_forward", parameters, arguments, ops, _in_place(site, x, chain.output, ops))


def plan_layer_norm(site: Site, chain: Chain, node: Node) -> Plan:
    """Normalises the rows of a matrix: all dimensions before the axis, all from it on."""
    x = node.inputs[0]
    shape = site.shape(x)
    axis = int(node.attributes.get("axis", -1)) % len(shape)
    groups = [range(axis), range(axis, len(shape))]
    given, value = (regroup(site.tensor(v), groups) for v in (x, chain.output))
    ops = site.post_ops(chain.steps, chain.output, site.layout(chain.output), groups)
    if given is None or value is None or ops is None:
        raise BackendError("layer normalisation's operands do not fit rows and columns")
    size = math.prod(shape[axis:])
    arguments = [Argument(Arg.SRC, given, site.source(x)), Argument(Arg.DST, value, Output())]
    flags = NormFlag.NONE
    for name, arg, flag in zip(
        node.inputs[1:], (Arg.SCALE, Arg.SHIFT), (NormFlag.USE_SCALE, NormFlag.USE_SHIFT), strict=False
    ):
        if name:
            arguments.append(Argument(arg, Tensor((size,), (1,), site.dtype(name)), site.source(name)))
            flags |= flag
    epsilon = float(node.attributes.get("epsilon", 1e-5))
    parameters = (FORWARD_INFERENCE, given, value, None, epsilon, int(flags))
    may_alias = _in_place(site, x, chain.output, ops)
    return Plan("layer_normalization_forward", parameters, tuple(arguments), ops, may_alias)


def plan_batch_norm(site: Site, chain: Chain, node: Node) -> Plan:
    """Batch normalisation with given statistics; spatial dimensions are merged."""
    x, scale, shift, mean, variance = node.inputs
    shape = site.shape(x)
    layout = spatial_layouts(site, x, chain.output)[0] if len(shape) > 2 else (0, 1)
    given, value = (site.tensor(v, layout) for v in (x, chain.output))
    ops = site.post_ops(chain.steps, chain.output, layout)
    assert ops is not None  # no dimensions are merged
    named = ((Arg.SCALE, scale), (Arg.SHIFT, shift), (Arg.MEAN, mean), (Arg.VARIANCE, variance))
    arguments = [Argument(Arg.SRC, given, site.source(x)), Argument(Arg.DST, value, Output())]
    arguments += [Argument(a, Tensor((shape[1],), (1,), site.dtype(v)), site.source(v)) for a, v in named]
    flags = NormFlag.USE_GLOBAL_STATS | NormFlag.USE_SCALE | NormFlag.USE_SHIFT
    epsilon = float(node.attributes.get("epsilon", 1e-5))
    parameters = (FORWARD_INFERENCE, given, value, epsilon, int(flags))
    may_alias = _in_place(site, x, chain.output, ops)
    return Plan("batch_normalization_forward", parameters, tuple(arguments), ops, may_alias)


def plan_reduction(site: Site, chain: Chain, node: Node) -> Plan:
    """A reduction; mean and maximum over exactly the spatial dimensions are pooling, which is compiled for
    channels-last.
    """
    x = node.inputs[0]
    shape, layout = site.shape(x), site.layout(x)
    axes = reduced_axes(site.graph, node)
    if isinstance(axes, Refusal):
        raise BackendError(str(axes))
    keep = bool(node.attributes.get("keepdims", 1))
    reduced = [1 if d in axes else size for d, size in enumerate(shape)]
    ops = tuple(s for s in chain.steps if isinstance(s, Eltwise))
    if node.op_type in _POOLS and axes == tuple(range(2, len(shape))) and 3 <= len(shape) <= 5:
        return _global_pool(site, chain, node, reduced, ops)
    kept = [d for d in range(len(shape)) if keep or d not in axes]
    out_layout = site.layout(chain.output)
    order = [*(d for d in range(len(shape)) if d not in kept), *(kept[d] for d in out_layout)]
    groups = collapse(shape, layout, [dense(reduced, tuple(order))])
    whole, result = site.tensor(x), dense(reduced, tuple(order), site.dtype(chain.output))
    src, dst = regroup(whole, groups), regroup(result, groups)
    if src is None or dst is None:
        groups = [[d] for d in range(len(shape))]
        src, dst = whole, result
    alg, p = REDUCTIONS[node.op_type]
    arguments = (Argument(Arg.SRC, src, site.source(x)), Argument(Arg.DST, dst, Output()))
    return Plan("reduction", (int(alg), src, dst, p, 0.0), arguments, ops)


_POOLS = {"ReduceMax": Alg.POOLING_MAX, "ReduceMean": Alg.POOLING_AVG_INCLUDE_PADDING}


def _global_pool(site: Site, chain: Chain, node: Node, reduced: list[int], ops: tuple[Eltwise, ...]) -> Plan:
    x = node.inputs[0]
    shape = site.shape(x)
    last = (0, *range(2, len(shape)), 1)
    # The destination's N and C are the same bytes in both orders.
    layout = last if site.layout(x) == canonical_layout(shape, last) else tuple(range(len(shape)))
    src, dst = site.tensor(x, layout), dense(reduced, layout, site.dtype(chain.output))
    kernel = tuple(shape[2:])
    ones, zeros = (1,) * len(kernel), (0,) * len(kernel)
    parameters = (FORWARD_INFERENCE, int(_POOLS[node.op_type]), src, dst, ones, kernel, zeros, zeros, zeros)
    arguments = (Argument(Arg.SRC, src, site.source(x)), Argument(Arg.DST, dst, Output()))
    return Plan("pooling_forward", parameters, arguments, ops)
