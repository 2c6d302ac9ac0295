"""MobileNetV2 (Sandler et al., arXiv 1801.04381) as torchvision has it."""

from __future__ import annotations

import numpy as np
import onnx

from collage_benchmarks.networks.builder import GraphBuilder
from collage_benchmarks.networks.layers import classifier, conv_norm

__all__ = ["mobilenet_v2"]

_STAGES = (
    # expansion, channels, blocks, stride of the first
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def mobilenet_v2(*, image: int = 224, classes: int = 1000, seed: int = 0) -> onnx.ModelProto:
    """Depthwise convolutions and ReLU6 (Clip). `image` [1, 3, S, S] -> `logits` [1, classes]."""
    g = GraphBuilder("mobilenet_v2", seed=seed)
    g.constant("relu6.min", np.array(0, np.float32))
    g.constant("relu6.max", np.array(6, np.float32))
    x = g.input("image", [1, 3, image, image])
    x = _relu6(g, "features.0", conv_norm(g, "features.0/0", "features.0/1", x, 3, 32, 3, stride=2))
    channels, index = 32, 1
    for expansion, width, blocks, stride in _STAGES:
        for block in range(blocks):
            x = _inverted_residual(
                g, f"features.{index}", x, channels, width, expansion, stride if block == 0 else 1
            )
            channels, index = width, index + 1
    x = _relu6(g, "features.18", conv_norm(g, "features.18/0", "features.18/1", x, channels, 1280, 1))
    classifier(g, "", "classifier/1", x, 1280, classes)
    return g.model()


def _relu6(g: GraphBuilder, path: str, x: str) -> str:
    return g.op(path, "Clip", x, "relu6.min", "relu6.max")


def _inverted_residual(
    g: GraphBuilder, path: str, x: str, channels: int, width: int, expansion: int, stride: int
) -> str:
    """1x1 to more channels, 3x3 depthwise, 1x1 to fewer without activation; a shortcut where shapes agree."""
    y, inner, step = x, channels * expansion, 0
    if expansion != 1:
        y = conv_norm(g, f"{path}/conv.0/0", f"{path}/conv.0/1", y, channels, inner, 1)
        y, step = _relu6(g, f"{path}/conv.0", y), 1
    depth = f"{path}/conv.{step}"
    y = conv_norm(g, f"{depth}/0", f"{depth}/1", y, inner, inner, 3, stride=stride, group=inner)
    y = _relu6(g, depth, y)
    y = conv_norm(g, f"{path}/conv.{step + 1}", f"{path}/conv.{step + 2}", y, inner, width, 1)
    return g.op(path, "Add", x, y) if stride == 1 and channels == width else y
