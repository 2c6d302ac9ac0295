"""Convolutions as sums of products over the positions of a window."""

from __future__ import annotations

import numpy as np

from collage_core.formats import Array
from collage_tvm.contraction import Contraction, Inside, Kept, Summed
from collage_tvm.host import vector_lanes
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
    """Rows lie along the last spatial dimension, columns along the channels of a group. Where every channel
    is a group of its own, or several groups fit into a vector, columns lie along all of them."""
    batch, channel, *space = memory.strides
    ranks = range(len(window.kernel))
    outputs, inputs = weights.shape[0] // groups, weights.shape[1]
    depthwise = outputs == inputs == 1
    interleaved = not depthwise and groups > 1 and channel == 1 and _shares_vectors(inputs, outputs, x.dtype)
    first = 1 if depthwise or interleaved or groups == 1 else 2
    kept = [Kept(0, shape[0], batch)]
    if first == 2:
        kept.insert(0, Kept(1, groups, channel * inputs, step=outputs))
    kept += [Kept(2 + d, shape[2 + d], space[d] * window.strides[d]) for d in ranks]
    summed = [
        Summed(
            window.kernel[d],
            space[d] * window.dilations[d],
            inside=Inside(
                first + d, window.strides[d], window.dilations[d], window.before[d], x.shape[2 + d]
            ),
        )
        for d in ranks
    ]
    if not depthwise:
        summed.append(Summed(inputs, channel))
    base = -sum(p * s for p, s in zip(window.before, space, strict=True))
    if first == 2:
        right = weights.reshape(groups, outputs, inputs, -1).transpose(0, 3, 2, 1)
        return Contraction(
            tuple(kept), Kept(1, outputs, 0), tuple(summed), memory.buffer, base, right, groups
        )
    column = Kept(1, outputs * groups, channel if depthwise else 0)
    right = weights.reshape(1, groups * outputs, inputs, -1).transpose(0, 3, 2, 1)
    return Contraction(
        tuple(kept),
        column,
        tuple(summed),
        memory.buffer,
        base,
        right,
        interleaved=(inputs, outputs) if interleaved else None,
    )


def _shares_vectors(inputs: int, outputs: int, dtype: str) -> bool:
    """Whether a vector holds the outputs of several whole groups, and their inputs are few registers."""
    lanes = vector_lanes() * 4 // np.dtype(dtype).itemsize
    return outputs < lanes and lanes % outputs == 0 and lanes // outputs * inputs <= 2 * lanes
