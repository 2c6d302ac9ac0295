"""Bundles of one backend, and a graph with weights."""

from __future__ import annotations

import numpy as np
import onnx
from small_models import relu_model

from collage_core import Bundle, Group, Placement, Subgraph, Target, plain_variant
from collage_core.ir import Graph, from_model

__all__ = ["bundle_of", "weighted_graph"]


def bundle_of(graph: Graph, backend: str = "reference") -> Bundle:
    """The graph with every node alone on the one backend."""
    groups = [Group(backend, (n.id,), plain_variant(Subgraph(graph, [n.id]))) for n in graph.nodes]
    return Bundle(graph, Placement(tuple(groups), (), Target("cpu", 1)), {"groups": []})


def weighted_graph() -> Graph:
    """y = Relu(x) + w, w large enough to lie in weights.bin."""
    model = relu_model()
    relu = model.graph.node[0]
    relu.output[0] = "r"
    model.graph.node.append(onnx.helper.make_node("Add", ["r", "w"], ["y"], name="sum"))
    weights = np.arange(600, dtype=np.float32).reshape(100, 2, 3)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return from_model(model)
