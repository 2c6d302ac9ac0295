"""Writing ONNX graphs from Python: values are names, weights are drawn from one seeded generator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from collage_core.formats import Array

__all__ = ["GraphBuilder"]

_IR_VERSION = 8


class GraphBuilder:
    """Collects nodes and weights; `model()` hands over a checked ModelProto with the types of all values.

    Node names are slash-separated paths and weight names dotted ones, as exporters write them.
    """

    def __init__(self, name: str, *, seed: int, opset: int = 17) -> None:
        self.name = name
        self.rng = np.random.default_rng(seed)
        self._opset = opset
        self._nodes: list[onnx.NodeProto] = []
        self._weights: dict[str, Array] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[str] = []

    def input(self, name: str, shape: Sequence[int], dtype: str = "float32") -> str:
        element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self._inputs.append(helper.make_tensor_value_info(name, element, shape))
        return name

    def output(self, name: str) -> None:
        self._outputs.append(name)

    def constant(self, name: str, data: Array) -> str:
        """A weight or other constant under `name`, once."""
        if name in self._weights:
            raise ValueError(f"constant {name!r} is there already")
        self._weights[name] = np.asarray(data)
        return name

    def normal(self, name: str, shape: Sequence[int], scale: float, mean: float = 0.0) -> str:
        """A float32 weight from N(mean, scale^2)."""
        drawn = self.rng.standard_normal(tuple(shape), dtype=np.float32)
        return self.constant(name, drawn * np.float32(scale) + np.float32(mean))

    def op(self, path: str, op_type: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Append the node `/path/op_type`; returns its output's name."""
        name = f"/{path}/{op_type}" if path else f"/{op_type}"
        result = output or f"{name}_output_0"
        self._nodes.append(helper.make_node(op_type, inputs, [result], name, **attributes))
        return result

    def model(self) -> onnx.ModelProto:
        outputs = [helper.make_empty_tensor_value_info(v) for v in self._outputs]
        # Shapes of weights and values of indices are all that inference looks at.
        graph = helper.make_graph(
            self._nodes,
            self.name,
            self._inputs,
            outputs,
            [numpy_helper.from_array(data, name) for name, data in self._weights.items()],
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", self._opset)],
            ir_version=_IR_VERSION,
            producer_name="collage-benchmarks",
        )
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        onnx.checker.check_model(inferred)
        return inferred
