"""Plans of chains without an anchor: an eltwise or binary primitive with post-operations."""

from __future__ import annotations

import numpy as np

from collage_dnnl.chain import Chain
from collage_dnnl.enums import FORWARD_INFERENCE, Alg, Arg
from collage_dnnl.kernels.plan import Argument, BinaryPostOp, Constant, Eltwise, Input, Output, Plan, Source
from collage_dnnl.kernels.site import Site
from collage_dnnl.tensor import WHOLE_NUMBERS, Tensor, collapse, regroup

__all__ = ["plan_elementwise"]


def plan_elementwise(site: Site, chain: Chain, *, sums: bool = False) -> Plan:
    """Dimensions are put into the order of memory and merged as far as the operands' broadcasting allows.

    sums: a binary primitive that adds the first operand, or changes nothing, with all else after it: what
    whole numbers need, whose zero points are taken off there.
    """
    layout = site.layout(chain.output)
    shape = site.shape(chain.output)
    groups = collapse(shape, layout, [site.operand(v, layout)[0] for v in chain.operands])
    given, value = (regroup(site.tensor(v, layout), groups) for v in (chain.source, chain.output))
    ops = site.post_ops(chain.steps, chain.output, layout, groups)
    assert given is not None  # merged in the order of memory
    assert value is not None
    assert ops is not None
    index = site.index(chain.source)
    read = [op.source for op in ops if isinstance(op, BinaryPostOp)]
    in_place = index is not None and given == value and Input(index) not in read
    may_alias = {0: index} if index is not None and in_place else {}
    src = Argument(Arg.SRC, given, site.source(chain.source))
    dst = Argument(Arg.DST, value, Output())
    first = ops[0]
    if len(ops) == 1 and isinstance(first, Eltwise) and not sums:
        parameters = (FORWARD_INFERENCE, int(first.alg), given, value, first.alpha, first.beta)
        return Plan("eltwise_forward", parameters, (src, dst), may_alias=may_alias)
    if isinstance(first, BinaryPostOp) and (first.tensor.dtype in WHOLE_NUMBERS or not sums):
        alg, tensor, source, rest = first.alg, first.tensor, first.source, ops[1:]
    elif sums:  # what is compiled for whole numbers has two of them
        alg, tensor = Alg.BINARY_ADD, Tensor((1,) * value.rank, (1,) * value.rank, "int8")
        source, rest = Constant(np.zeros(1, np.int8), (0,), dtype="int8"), ops
    else:
        assert isinstance(first, Eltwise)
        # Only the binary primitive has a compiled implementation with post-operations: a chain that starts
        # with an eltwise step starts with a multiplication instead.
        scale = first.alpha if first.alg == Alg.ELTWISE_LINEAR and first.beta == 0.0 else 1.0
        alg, tensor = Alg.BINARY_MUL, Tensor((1,) * value.rank, (1,) * value.rank)
        source, rest = _one(scale), ops if scale == 1.0 else ops[1:]
    second = Argument(Arg.SRC_1, tensor, source)
    return Plan("binary", (int(alg), given, tensor, value), (src, second, dst), rest, may_alias)


def _one(number: float) -> Source:
    return Constant(np.full((1,), number, np.float32), (0,))
