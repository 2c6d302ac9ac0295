"""What takes away a mean and divides by a deviation, of each group of elements by itself.

`onnx.reference` does it in the data's own type, where half-width floats overflow or lose their digits. By
ONNX's text (`stash_type`) the statistics are computed in single precision.
"""

from __future__ import annotations

import numpy as np
from onnx.reference.op_run import OpRun

from collage_core.operators.windows import Tensor, accumulator

__all__ = ["GroupNormalization", "InstanceNormalization", "LayerNormalization", "RMSNormalization"]


class InstanceNormalization(OpRun):
    def _run(self, x: Tensor, scale: Tensor, bias: Tensor, epsilon: float = 1e-5) -> tuple[Tensor]:
        normal, _, _ = _normal(_wide(x), tuple(range(2, x.ndim)), epsilon)
        channels = (-1, *([1] * (x.ndim - 2)))
        return (_scaled(normal, scale.reshape(channels), bias.reshape(channels), x),)


class GroupNormalization(OpRun):
    """Scale and bias are those of channels; of groups before opset 21."""

    def _run(
        self,
        x: Tensor,
        scale: Tensor,
        bias: Tensor,
        epsilon: float = 1e-5,
        num_groups: int = 1,
        stash_type: int = 1,
    ) -> tuple[Tensor]:
        grouped = _wide(x).reshape(x.shape[0], num_groups, -1, *x.shape[2:])
        normal, _, _ = _normal(grouped, tuple(range(2, grouped.ndim)), epsilon)
        if self.run_params["opsets"][""] < 21:
            scale, bias = (np.repeat(v, x.shape[1] // num_groups) for v in (scale, bias))
        channels = (-1, *([1] * (x.ndim - 2)))
        return (_scaled(normal.reshape(x.shape), scale.reshape(channels), bias.reshape(channels), x),)


class LayerNormalization(OpRun):
    def _run(
        self,
        x: Tensor,
        scale: Tensor,
        bias: Tensor | None = None,
        axis: int = -1,
        epsilon: float = 1e-5,
        stash_type: int = 1,
    ) -> tuple[Tensor, ...]:
        normal, mean, inverse = _normal(_wide(x), _from(axis, x), epsilon)
        return (_scaled(normal, scale, bias, x), mean, inverse)[: len(self.output)]


class RMSNormalization(OpRun):
    def _run(
        self, x: Tensor, scale: Tensor, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
    ) -> tuple[Tensor]:
        wide = _wide(x)
        squares = np.square(wide).mean(axis=_from(axis, x), keepdims=True)
        return (_scaled(wide / np.sqrt(squares + wide.dtype.type(epsilon)), scale, None, x),)


def _wide(x: Tensor) -> Tensor:
    return x.astype(accumulator(x.dtype), copy=False)


def _from(axis: int, x: Tensor) -> tuple[int, ...]:
    """All axes from one on."""
    return tuple(range(axis % x.ndim, x.ndim))


def _normal(wide: Tensor, axes: tuple[int, ...], epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """Normalised over `axes`; their means, and the inverse of their deviations."""
    mean = wide.mean(axis=axes, keepdims=True)
    deviation = wide - mean
    spread = np.square(deviation).mean(axis=axes, keepdims=True)
    inverse = np.asarray(1 / np.sqrt(spread + wide.dtype.type(epsilon)))
    return deviation * inverse, mean, inverse


def _scaled(normal: Tensor, scale: Tensor, bias: Tensor | None, like: Tensor) -> Tensor:
    result = normal * _wide(scale)
    return np.asarray(result if bias is None else result + _wide(bias)).astype(like.dtype, copy=False)
