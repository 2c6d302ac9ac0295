"""Cases that look at windows of images, and the small products of attention."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from onnx import helper

from collage_benchmarks.kernels.case import Case, floats
from collage_core.formats import Array

__all__ = ["average_pool", "batched_matmul", "convolution", "global_average_pool", "max_pool"]

_node = helper.make_node
_KERNEL = 3


def _taps(x: Array, stride: int, pad: float) -> list[Array]:
    """For every position in a window of 3 x 3, what the windows have there; around x is a border of `pad`."""
    edges = [(0, 0), (0, 0), (1, 1), (1, 1)]
    if x.strides[1] == x.itemsize:  # channels last: NumPy's own copies are to stay so
        last = np.pad(x.transpose(0, 2, 3, 1), [edges[k] for k in (0, 2, 3, 1)], constant_values=pad)
        padded = last.transpose(0, 3, 1, 2)
    else:
        padded = np.pad(x, edges, constant_values=pad)
    windows = sliding_window_view(padded, (_KERNEL, _KERNEL), axis=(2, 3))
    return [windows[:, :, ::stride, ::stride, i, j] for i in range(_KERNEL) for j in range(_KERNEL)]


def max_pool(size: str, *shape: int, channels_last: bool = False) -> Case:
    """Windows of 3 x 3, every other one, as at the beginning of ResNet."""

    def in_numpy(x: Array) -> Array:
        first, *rest = _taps(x, 2, -np.inf)
        result = first.copy(order="K")
        for tap in rest:
            np.maximum(result, tap, out=result)
        return result

    return Case(
        f"max_pool/{size}",
        "pooling",
        [_node("MaxPool", ["x"], ["o"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)],
        {"x": floats(*shape)},
        in_numpy,
        lambda torch, x: torch.nn.functional.max_pool2d(x, 3, 2, 1),
        channels_last=channels_last,
    )


def average_pool(size: str, *shape: int, channels_last: bool = False) -> Case:
    """Windows of 3 x 3 around every element, as in Inception; the border counts."""

    def in_numpy(x: Array) -> Array:
        first, *rest = _taps(x, 1, 0.0)
        result = first.copy(order="K")
        for tap in rest:
            result += tap
        return result * np.float32(1 / _KERNEL**2)

    return Case(
        f"average_pool/{size}",
        "pooling",
        [
            _node(
                "AveragePool",
                ["x"],
                ["o"],
                kernel_shape=[3, 3],
                strides=[1, 1],
                pads=[1] * 4,
                count_include_pad=1,
            )
        ],
        {"x": floats(*shape)},
        in_numpy,
        lambda torch, x: torch.nn.functional.avg_pool2d(x, 3, 1, 1),
        channels_last=channels_last,
    )


def global_average_pool(size: str, *shape: int, channels_last: bool = False) -> Case:
    return Case(
        f"global_average_pool/{size}",
        "pooling",
        [_node("GlobalAveragePool", ["x"], ["o"])],
        {"x": floats(*shape)},
        lambda x: np.mean(x, axis=(2, 3), keepdims=True),
        lambda torch, x: torch.nn.functional.adaptive_avg_pool2d(x, 1),
        channels_last=channels_last,
    )


def convolution(size: str, channels: int, groups: int, pixels: int) -> Case:
    """3 x 3, channels last, `groups` groups; depthwise where there are as many as channels."""
    per_group = channels // groups

    def in_numpy(x: Array, weight: Array) -> Array:
        result = np.zeros((1, pixels, pixels, groups, per_group), np.float32)
        split = weight.reshape(groups, per_group, per_group, _KERNEL**2)
        for k, tap in enumerate(_taps(x, 1, 0.0)):
            grouped = tap.transpose(0, 2, 3, 1).reshape(1, pixels, pixels, groups, per_group)
            if per_group == 1:
                result += grouped * split[:, :, 0, k]
            else:
                result += np.einsum("nhwgi,goi->nhwgo", grouped, split[..., k], optimize=True)
        return result.reshape(1, pixels, pixels, channels).transpose(0, 3, 1, 2)

    def in_torch(torch: Any, x: Any, weight: Any) -> Any:
        return torch.nn.functional.conv2d(x, weight, padding=1, groups=groups)

    return Case(
        f"{'depthwise' if per_group == 1 else 'grouped'}_convolution/{size}",
        "convolution",
        [_node("Conv", ["x", "weight"], ["o"], kernel_shape=[3, 3], pads=[1] * 4, group=groups)],
        {"x": floats(1, channels, pixels, pixels)},
        in_numpy,
        in_torch,
        weights={"weight": floats(channels, per_group, _KERNEL, _KERNEL, scale=(9 * per_group) ** -0.5)},
        channels_last=True,
    )


def batched_matmul(size: str, heads: int, rows: int, inner: int, columns: int) -> Case:
    return Case(
        f"batched_matmul/{size}",
        "matmul",
        [_node("MatMul", ["x", "y"], ["o"])],
        {"x": floats(1, heads, rows, inner), "y": floats(1, heads, inner, columns)},
        lambda x, y: x @ y,
        lambda torch, x, y: torch.matmul(x, y),
    )
