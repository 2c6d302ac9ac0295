"""The groups that tests of the backend and tests of its kernels are about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from collage_onnxruntime.backend import OnnxRuntimeBackend

from collage_core.backend import Variant
from collage_core.errors import Refusal
from collage_core.formats import Array
from collage_core.ir import Graph, Subgraph
from collage_core.target import Target
from collage_core.testing import make_graph, node


def array(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def variants_of(backend: OnnxRuntimeBackend, subgraph: Subgraph) -> Sequence[Variant]:
    offered = backend.variants(subgraph, Target("cpu", 2))
    assert not isinstance(offered, Refusal)
    return offered


def convolution(spatial: Sequence[int], channels: int, group: int = 1, **attributes: Any) -> Any:
    """Node, input and constants of a convolution with as many filters as channels."""
    weights = array(channels, channels // group, *[3] * len(spatial), seed=5)
    conv = node("Conv", ["x", "w", "b"], "c", group=group, **attributes)
    return conv, array(2, channels, *spatial), {"w": weights, "b": array(channels, seed=6)}


def block(channels: int = 16) -> tuple[Graph, dict[str, Array]]:
    """Two convolutions that share their weights, a residual sum, and pooling; three values are returned, one
    of them read inside as well."""
    conv, x, constants = convolution((8, 10), channels, pads=[1, 1, 1, 1])
    nodes = [
        conv,
        node("Relu", ["c"], "r"),
        node("Conv", ["r", "w", "b"], "d", pads=[1, 1, 1, 1]),
        node("Add", ["d", "z"], "s"),
        node("Relu", ["s"], "t"),
        node("GlobalAveragePool", ["t"], "p"),
        node("Mul", ["p", "scale"], "q"),
    ]
    inputs = {"x": x, "z": array(*x.shape, seed=8), "scale": array(1, channels, 1, 1, seed=9)}
    return make_graph(nodes, inputs, constants, outputs=["r", "t", "q"]), inputs
