"""The generator of DCGAN (Radford, Metz, Chintala, arXiv 1511.06434)."""

from __future__ import annotations

import itertools
import math

import onnx

from collage_benchmarks.networks.builder import GraphBuilder
from collage_benchmarks.networks.layers import batch_norm

__all__ = ["dcgan_generator"]

_KERNEL = 4


def dcgan_generator(*, latent: int = 100, features: int = 64, seed: int = 0) -> onnx.ModelProto:
    """Five transposed convolutions, the first from 1x1 to 4x4, each further one to twice the size; `latent`
    [1, latent, 1, 1] -> `image` [1, 3, 64, 64] in -1..1.
    """
    g = GraphBuilder("dcgan_generator", seed=seed)
    x = g.input("latent", [1, latent, 1, 1])
    widths = (latent, 8 * features, 4 * features, 2 * features, features)
    for i, (channels_in, channels_out) in enumerate(itertools.pairwise(widths)):
        path = f"main.{3 * i}"
        x = _upsample(g, path, x, channels_in, channels_out, stride=1 if i == 0 else 2)
        x = g.op(f"main.{3 * i + 2}", "Relu", batch_norm(g, f"main.{3 * i + 1}", x, channels_out))
    x = _upsample(g, "main.12", x, features, 3, stride=2)
    g.output(g.op("main.13", "Tanh", x, output="image"))
    return g.model()


def _upsample(g: GraphBuilder, path: str, x: str, channels_in: int, channels_out: int, *, stride: int) -> str:
    """A transposed convolution: to 4x4 with stride 1, to twice the size with stride 2."""
    # Of each output element only a stride-th of the kernel's rows and columns takes part.
    fan_in = channels_in * (_KERNEL // stride) ** 2 if stride > 1 else channels_in
    weights = g.normal(f"{path}.weight", (channels_in, channels_out, _KERNEL, _KERNEL), math.sqrt(2 / fan_in))
    return g.op(
        path,
        "ConvTranspose",
        x,
        weights,
        dilations=[1, 1],
        group=1,
        kernel_shape=[_KERNEL, _KERNEL],
        pads=[stride // 2] * 4,
        strides=[stride, stride],
    )
