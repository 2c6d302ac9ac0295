"""Activations that ncnn computes on a convolution's result, by its own numbers for them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from collage_core.errors import Refusal
from collage_core.ir import Graph, Node
from collage_ncnn.convolution import Activation

__all__ = ["ACTIVATION_OPS"]

_FLOAT_MAX = float(np.finfo(np.float32).max)


def _clip(graph: Graph, node: Node) -> Activation | Refusal:
    bounds = [float(node.attributes.get("min", -_FLOAT_MAX)), float(node.attributes.get("max", _FLOAT_MAX))]
    for i, name in enumerate(node.inputs[1:3]):
        if name:
            value = graph.constants.get(name)
            if value is None or value.size != 1:
                return Refusal("the bounds of Clip are not constant numbers", node.name)
            bounds[i] = float(value.reshape(()))
    low, high = bounds
    if not low <= high:  # NaN, too
        return Refusal("Clip's lower bound is not below its upper bound", node.name)
    # ncnn's text format has no infinity
    return Activation(3, (max(low, -_FLOAT_MAX), min(high, _FLOAT_MAX)))


ACTIVATION_OPS: dict[str, Callable[[Graph, Node], Activation | Refusal]] = {
    "Clip": _clip,
    "HardSwish": lambda g, n: Activation(6, (1.0 / 6.0, 0.5)),
    "LeakyRelu": lambda g, n: Activation(2, (float(n.attributes.get("alpha", 0.01)),)),
    "Mish": lambda g, n: Activation(5),
    "Relu": lambda g, n: Activation(1),
    "Sigmoid": lambda g, n: Activation(4),
}
"""ONNX operators of one variable input, and what they are to ncnn."""
