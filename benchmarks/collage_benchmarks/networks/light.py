"""The networks that the `onnx` package carries for its own tests, with weights.

Theirs are ConstantOfShape nodes: every weight is one number, so that any wiring gives the same answer. Here
each is filled with seeded values of a sensible scale for where it is read.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test
from onnx import helper, numpy_helper

from collage_core.formats import Array

__all__ = ["LIGHT_NETWORKS", "light_network"]

LIGHT_NETWORKS = {
    "alexnet": "light_bvlc_alexnet",
    "densenet121": "light_densenet121",
    "inception_v1": "light_inception_v1",
    "inception_v2": "light_inception_v2",
    "resnet50": "light_resnet50",
    "shufflenet": "light_shufflenet",
    "squeezenet": "light_squeezenet",
    "vgg19": "light_vgg19",
    "zfnet512": "light_zfnet512",
}
"""Name here -> file in the `onnx` package (`backend/test/data/light`)."""

_MOVERS = frozenset(["Reshape", "Squeeze", "Unsqueeze", "Transpose", "Identity"])
_SEED = 62


def light_network(name: str) -> onnx.ModelProto:
    """One of `LIGHT_NETWORKS`, its weights initializers; the same at every call."""
    folder = Path(onnx.backend.test.__file__).parent / "data" / "light"
    model = onnx.load(folder / f"{LIGHT_NETWORKS[name]}.onnx")
    model.ir_version = 8  # from version 4 on, initializers need not be inputs
    graph = model.graph
    rng = np.random.default_rng(_SEED)
    shapes = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    kept: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type == "ConstantOfShape" and node.input[0] in shapes:
            shape = tuple(int(d) for d in shapes[node.input[0]])
            data = _weights(rng, shape, *_reader(graph, node.output[0]))
            graph.initializer.append(numpy_helper.from_array(data, node.output[0]))
        else:
            kept.append(node)
    read = {v for node in kept for v in node.input}
    del graph.node[:]
    graph.node.extend(kept)
    used = [t for t in graph.initializer if t.name in read]
    del graph.initializer[:]
    graph.initializer.extend(used)
    inputs = [v for v in graph.input if v.name not in shapes]
    del graph.input[:]
    graph.input.extend(inputs)
    return model


def _reader(graph: onnx.GraphProto, value: str) -> tuple[onnx.NodeProto, int]:
    """The operator that the value is a parameter of, and at which place, looked for behind what only
    moves it.
    """
    for node in graph.node:
        if value in node.input:
            if node.op_type in _MOVERS:
                return _reader(graph, node.output[0])
            return node, list(node.input).index(value)
    return helper.make_node("Identity", [value], []), 0


def _weights(rng: np.random.Generator, shape: tuple[int, ...], reader: onnx.NodeProto, place: int) -> Array:
    """Values that keep activations at their scale: He's for products, about 1 for factors, about 0 for
    terms.
    """
    normal = rng.standard_normal(shape)
    if reader.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul") and place == 1:
        transposed = any(a.name == "transB" and a.i for a in reader.attribute)
        fan_in = math.prod(shape[1:]) if reader.op_type == "Conv" or transposed else shape[0]
        data = normal * math.sqrt(2 / fan_in)
    elif reader.op_type in ("Mul", "Div") or (reader.op_type == "BatchNormalization" and place in (1, 4)):
        data = rng.uniform(0.5, 1.5, shape)
    else:
        data = normal * 0.1
    return data.astype(np.float32)
