"""The small convolutional network that TVM's Collage RFC 0062 explains itself with."""

from __future__ import annotations

import numpy as np
import onnx

from collage_benchmarks.networks.builder import GraphBuilder

__all__ = ["mnist"]


def mnist(*, seed: int = 0) -> onnx.ModelProto:
    """Pads and biases as operators of their own, as there. `image` [1, 1, 28, 28] -> `logits` [1, 10]."""
    g = GraphBuilder("mnist", seed=seed)
    border = g.constant("border", np.array([0, 0, 2, 2, 0, 0, 2, 2], np.int64))
    x = g.input("image", [1, 1, 28, 28])
    for i, (channels_in, channels_out, window) in enumerate(((1, 8, 2), (8, 16, 3))):
        path = f"block{i + 1}"
        x = g.op(path, "Pad", x, border)
        weight = g.normal(f"{path}.weight", (channels_out, channels_in, 5, 5), (2 / channels_in / 25) ** 0.5)
        x = g.op(path, "Conv", x, weight, kernel_shape=[5, 5])
        x = g.op(path, "Add", x, g.normal(f"{path}.bias", (channels_out, 1, 1), 0.1))
        x = g.op(path, "Relu", x)
        x = g.op(path, "MaxPool", x, kernel_shape=[window] * 2, strides=[window] * 2)
    x = g.op("", "Reshape", x, g.constant("flat", np.array([1, 256], np.int64)))
    x = g.op("", "MatMul", x, g.normal("weight", (256, 10), 1 / 16))
    g.output(g.op("", "Add", x, g.normal("bias", (1, 10), 0.1), output="logits"))
    return g.model()
