"""Models of operators of ONNX Runtime's own, and what its kernels say beside what this package says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
from collage_onnxruntime.definitions import definitions
from onnx import helper

from collage_core.formats import Array
from collage_core.ir import Graph, from_model
from collage_core.ir.passes import normalise
from collage_core.reference import evaluate

__all__ = ["RNG", "Operands", "compare", "floats", "one_node", "read_defined"]

RNG = np.random.default_rng(11)

Operands = Mapping[str, Array]


def floats(*shape: int) -> Array:
    """Of that shape, float32, around 0."""
    return RNG.standard_normal(shape).astype(np.float32)


def one_node(
    op: str,
    inputs: Operands,
    operands: str,
    outputs: str = "y",
    *,
    opset: int = 17,
    constants: Operands | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """One node. operands, outputs: names, in order, "-" for what is absent."""
    read, names = (["" if v == "-" else v for v in text.split()] for text in (operands, outputs))
    node = helper.make_node(op, read, names, domain="com.microsoft", **attributes)
    given = [
        helper.make_tensor_value_info(v, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for v, a in inputs.items()
    ]
    made = [helper.make_empty_tensor_value_info(v) for v in names if v]
    for info in made:
        info.type.tensor_type.elem_type = onnx.TensorProto.INT32 if info.name == "index" else 1
    kept = [onnx.numpy_helper.from_array(a, v) for v, a in (constants or {}).items()]
    graph = helper.make_graph([node], "g", given, made, kept)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def read_defined(model: onnx.ModelProto) -> Graph:
    """With this package's definitions in the place of the operators."""
    return from_model(model, definitions=definitions())


def compare(model: onnx.ModelProto, inputs: Operands) -> None:
    """All outputs, in shape, dtype and numbers, read and normalised, beside the library's own."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    names = [v.name for v in model.graph.output]
    expected = dict(zip(names, session.run(names, dict(inputs)), strict=True))
    read = read_defined(model)
    assert not any(n.domain for n in read.nodes)
    for graph in (read, normalise(read)):
        found = evaluate(graph, inputs)
        for name, right in expected.items():
            assert (found[name].dtype, found[name].shape) == (right.dtype, right.shape), name
            np.testing.assert_allclose(found[name], right, rtol=2e-5, atol=2e-5, err_msg=name)
