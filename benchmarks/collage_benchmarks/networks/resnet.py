"""ResNeXt (Xie et al., arXiv 1611.05431) as torchvision has it; ResNet-1001 (He et al., arXiv 1603.05027)."""

from __future__ import annotations

import onnx

from collage_benchmarks.networks.builder import GraphBuilder
from collage_benchmarks.networks.layers import batch_norm, classifier, conv, conv_norm

__all__ = ["resnet1001", "resnext50"]


def resnext50(*, image: int = 224, classes: int = 1000, seed: int = 0) -> onnx.ModelProto:
    """ResNeXt50-32x4d with its batch normalisations. `image` [1, 3, S, S] -> `logits` [1, classes]."""
    g = GraphBuilder("resnext50_32x4d", seed=seed)
    x = g.input("image", [1, 3, image, image])
    x = g.op("relu", "Relu", conv_norm(g, "conv1", "bn1", x, 3, 64, 7, stride=2))
    x = g.op("maxpool", "MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            path = f"layer{stage + 1}/layer{stage + 1}.{block}"
            x = _bottleneck(g, path, x, channels, 128 << stage, stride)
            channels = 256 << stage
    classifier(g, "avgpool", "fc", x, channels, classes)
    return g.model()


def _bottleneck(g: GraphBuilder, path: str, x: str, channels: int, width: int, stride: int) -> str:
    """1x1, 3x3 in 32 groups, 1x1 to twice the width, and the shortcut (projected where shapes differ)."""
    y = conv_norm(g, f"{path}/conv1", f"{path}/bn1", x, channels, width, 1)
    y = g.op(f"{path}/relu", "Relu", y)
    y = conv_norm(g, f"{path}/conv2", f"{path}/bn2", y, width, width, 3, stride=stride, group=32)
    y = g.op(f"{path}/relu_1", "Relu", y)
    # A gain below one, as training finds it: sums of blocks keep their scale.
    y = conv_norm(g, f"{path}/conv3", f"{path}/bn3", y, width, 2 * width, 1, gain=0.5)
    if channels != 2 * width:
        down = f"{path}/downsample"
        x = conv_norm(
            g, f"{down}/downsample.0", f"{down}/downsample.1", x, channels, 2 * width, 1, stride=stride
        )
    return g.op(f"{path}/relu_2", "Relu", g.op(path, "Add", y, x))


def resnet1001(*, blocks: int = 111, image: int = 32, classes: int = 10, seed: int = 0) -> onnx.ModelProto:
    """The pre-activation network for CIFAR: three stages of `blocks` bottlenecks, 9 * `blocks` + 2 layers.
    `image` [1, 3, S, S] -> `logits` [1, classes].
    """
    g = GraphBuilder(f"resnet{9 * blocks + 2}", seed=seed)
    x = conv(g, "conv1", g.input("image", [1, 3, image, image]), 3, 16, 3)
    channels = 16
    for stage in range(3):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            path = f"layer{stage + 1}/layer{stage + 1}.{block}"
            x = _preactivated(g, path, x, channels, 16 << stage, stride)
            channels = 64 << stage
    x = g.op("relu", "Relu", batch_norm(g, "bn", x, channels))
    classifier(g, "avgpool", "fc", x, channels, classes)
    return g.model()


def _preactivated(g: GraphBuilder, path: str, x: str, channels: int, width: int, stride: int) -> str:
    """Normalised and rectified before each of 1x1, 3x3 and 1x1 to four times the width. The shortcut is the
    sum of what came before, as it is, or projected where shapes differ.
    """
    first = g.op(f"{path}/relu", "Relu", batch_norm(g, f"{path}/bn1", x, channels))
    y = conv_norm(g, f"{path}/conv1", f"{path}/bn2", first, channels, width, 1)
    y = conv_norm(
        g,
        f"{path}/conv2",
        f"{path}/bn3",
        g.op(f"{path}/relu_1", "Relu", y),
        width,
        width,
        3,
        stride=stride,
        gain=0.1,  # more, and 333 blocks magnify rounding
    )
    y = conv(g, f"{path}/conv3", g.op(f"{path}/relu_2", "Relu", y), width, 4 * width, 1)
    if channels != 4 * width:
        x = conv(g, f"{path}/downsample", first, channels, 4 * width, 1, stride=stride)
    return g.op(path, "Add", y, x)
