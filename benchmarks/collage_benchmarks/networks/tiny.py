"""Networks small enough for tests, with what makes the large ones hard."""

from __future__ import annotations

import onnx

from collage_benchmarks.networks.bert import bert_encoder
from collage_benchmarks.networks.builder import GraphBuilder
from collage_benchmarks.networks.layers import classifier, conv_norm

__all__ = ["tiny_conv", "tiny_encoder"]


def tiny_conv(*, image: int = 16, seed: int = 0) -> onnx.ModelProto:
    """A residual block of grouped convolutions. `image` [1, 3, S, S] -> `logits` [1, 10]."""
    g = GraphBuilder("tiny_conv", seed=seed)
    x = g.input("image", [1, 3, image, image])
    x = g.op("relu", "Relu", conv_norm(g, "conv1", "bn1", x, 3, 16, 3))
    x = g.op("maxpool", "MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
    y = g.op("block/relu", "Relu", conv_norm(g, "block/conv1", "block/bn1", x, 16, 32, 1))
    y = conv_norm(g, "block/conv2", "block/bn2", y, 32, 32, 3, group=4)
    shortcut = conv_norm(g, "block/downsample.0", "block/downsample.1", x, 16, 32, 1)
    x = g.op("block/relu_1", "Relu", g.op("block", "Add", y, shortcut))
    classifier(g, "avgpool", "fc", x, 32, 10)
    return g.model()


def tiny_encoder(*, seed: int = 0) -> onnx.ModelProto:
    """One encoder layer, 4 heads of 8, with pooler: ids int64 [1, 16] below 100 -> [1, 16, 32], [1, 32]."""
    return bert_encoder(layers=1, hidden=32, heads=4, tokens=16, vocab=100, pooler=True, seed=seed)
