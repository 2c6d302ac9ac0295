"""Giving batch normalisations the statistics of the data that reaches them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import numpy_helper

from collage_core.formats import Array
from collage_core.ir import from_model
from collage_core.reference.evaluator import NodeEvaluator

__all__ = ["calibrate"]


def calibrate(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> onnx.ModelProto:
    """Set every BatchNormalization's mean and variance, in place, to those that its input has for `inputs`.

    One pass in graph order: each normalisation is calibrated before the values behind it are computed.
    """
    graph = from_model(model)
    values: dict[str, Array] = {**graph.constants, **inputs}
    found: dict[str, Array] = {}
    for node in graph.nodes:
        if node.op_type == "BatchNormalization":
            x = np.asarray(values[node.inputs[0]], np.float64)
            axes = (0, *range(2, x.ndim))
            found[node.inputs[3]] = x.mean(axis=axes).astype(np.float32)
            found[node.inputs[4]] = x.var(axis=axes).astype(np.float32)
            values.update(found)
        values.update(NodeEvaluator(graph, node).run(values))
    for weight in model.graph.initializer:
        if weight.name in found:
            weight.CopyFrom(numpy_helper.from_array(found[weight.name], weight.name))
    return model
