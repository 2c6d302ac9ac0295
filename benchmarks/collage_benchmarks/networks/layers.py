"""Layers that several networks share, named and initialised as in the frameworks they come from."""

from __future__ import annotations

import math

import numpy as np

from collage_benchmarks.networks.builder import GraphBuilder

__all__ = ["batch_norm", "classifier", "conv", "conv_norm", "linear"]


def conv(
    g: GraphBuilder,
    path: str,
    x: str,
    channels_in: int,
    channels_out: int,
    kernel: int,
    *,
    stride: int = 1,
    padding: int | None = None,
    group: int = 1,
    bias: bool = False,
    gain: float = 1.0,
) -> str:
    """A 2-D convolution with He-initialised weights, times `gain`; `padding` on all sides, half the kernel
    unless given.
    """
    weight = path.replace("/", ".")
    fan_in = channels_in // group * kernel * kernel
    inputs = [
        x,
        g.normal(
            f"{weight}.weight",
            (channels_out, channels_in // group, kernel, kernel),
            gain * math.sqrt(2 / fan_in),
        ),
    ]
    if bias:
        inputs.append(g.normal(f"{weight}.bias", (channels_out,), 0.05))
    pad = kernel // 2 if padding is None else padding
    return g.op(
        path,
        "Conv",
        *inputs,
        dilations=[1, 1],
        group=group,
        kernel_shape=[kernel, kernel],
        pads=[pad] * 4,
        strides=[stride, stride],
    )


def batch_norm(g: GraphBuilder, path: str, x: str, channels: int, *, gain: float = 1.0) -> str:
    """Batch normalisation at inference. Its statistics are placeholders until `calibrate` has seen data."""
    weight = path.replace("/", ".")
    return g.op(
        path,
        "BatchNormalization",
        x,
        g.normal(f"{weight}.weight", (channels,), 0.1 * gain, gain),
        g.normal(f"{weight}.bias", (channels,), 0.1),
        g.constant(f"{weight}.running_mean", np.zeros(channels, np.float32)),
        g.constant(f"{weight}.running_var", np.ones(channels, np.float32)),
        epsilon=1e-5,
        momentum=0.9,
    )


def conv_norm(
    g: GraphBuilder,
    conv_path: str,
    norm_path: str,
    x: str,
    channels_in: int,
    channels_out: int,
    kernel: int,
    *,
    stride: int = 1,
    group: int = 1,
    gain: float = 1.0,
) -> str:
    y = conv(g, conv_path, x, channels_in, channels_out, kernel, stride=stride, group=group)
    return batch_norm(g, norm_path, y, channels_out, gain=gain)


def linear(g: GraphBuilder, path: str, x: str, features_in: int, features_out: int, output: str) -> str:
    """A fully connected layer, [N, in] -> [N, out], as Gemm with a transposed weight."""
    weight = path.replace("/", ".")
    return g.op(
        path,
        "Gemm",
        x,
        g.normal(f"{weight}.weight", (features_out, features_in), 1 / math.sqrt(features_in)),
        g.normal(f"{weight}.bias", (features_out,), 0.05),
        output=output,
        alpha=1.0,
        beta=1.0,
        transB=1,
    )


def classifier(g: GraphBuilder, pool: str, path: str, x: str, channels: int, classes: int) -> None:
    """Global average pooling and a fully connected layer: the model's output `logits`, [N, classes]."""
    pooled = g.op(pool, "GlobalAveragePool", x)
    flat = g.op("", "Flatten", pooled, axis=1)
    g.output(linear(g, path, flat, channels, classes, "logits"))
