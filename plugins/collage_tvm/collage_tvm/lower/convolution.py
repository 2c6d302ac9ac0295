"""Convolutions as sums of products over the positions of a window."""

from __future__ import annotations

import numpy as np

from collage_core.formats import Array
from collage_tvm.contraction import Contraction, Inside, Kept, Summed
from collage_tvm.lower.context import LoweringContext, lowering
from collage_tvm.lower.product import contracted, operand
from collage_tvm.lower.reduction import elementwise
from collage_tvm.tensor import ARITHMETIC, Memory, Tensor
from collage_tvm.window import Window, window_of


@lowering("Conv")
def _convolution(node: LoweringContext) -> list[Tensor]:
    (x, memory), weights, shape = operand(node, 0), node.constant(1), node.shape()
    assert weights is not None
    attributes = {"kernel_shape": weights.shape[2:], **node.node.attributes}
    window = window_of(attributes, x.shape, shape)
    groups = int(node.attribute("group", 1))
    sums = contracted(shape, x.dtype, [x], _contraction(x, memory, weights, shape, window, groups))
    if not node.has(2):
        return [sums]
    bias = node.reshaped(node.tensor(2), (-1, *(1,) * len(window.kernel)))
    return [elementwise(ARITHMETIC, lambda s, v, b: v + b, sums, bias)]


def _contraction(
    x: Tensor, memory: Memory, weights: Array, shape: tuple[int, ...], window: Window, groups: int
) -> Contraction:
    """Rows lie along the last spatial dimension, columns along the channels of a group; where every channel
    is a group of its own, along all of them."""
    batch, channel, *space = memory.strides
    ranks = range(len(window.kernel))
    outputs, inputs = weights.shape[0] // groups, weights.shape[1]
    positions = [Kept(2 + d, shape[2 + d], space[d] * window.strides[d]) for d in ranks]
    kept = [Kept(0, shape[0], batch), *positions]
    if outputs == inputs == 1:
        own, column, right = 1, Kept(1, groups, channel), weights[:, 0]
    else:
        own, column = groups, Kept(1, outputs, 0)
        right = weights.reshape(groups, outputs, inputs, -1).transpose(0, 3, 2, 1)
    if own > 1:
        kept.insert(0, Kept(1, groups, channel * inputs, step=outputs))
    first = len(kept) - len(window.kernel)
    inside = [
        Inside(first + d, window.strides[d], window.dilations[d], window.before[d], x.shape[2 + d])
        for d in ranks
    ]
    summed = [Summed(window.kernel[d], space[d] * window.dilations[d], inside=inside[d]) for d in ranks]
    if outputs == inputs == 1:
        right = np.moveaxis(right, 0, -1)
    else:
        summed.append(Summed(inputs, channel))
    base = -sum(p * s for p, s in zip(window.before, space, strict=True))
    return Contraction(tuple(kept), column, tuple(summed), memory.buffer, base, right, own)
