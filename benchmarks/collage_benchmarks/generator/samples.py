"""What a node answers for the numbers at hand: with them the generator knows what may come next."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import helper
from onnx.reference import ReferenceEvaluator

from collage_core.formats import Array

__all__ = ["answers", "inferred_types", "ir_version_for"]

_IR_VERSIONS = {13: 7, 14: 7, 15: 8, 16: 8, 17: 8, 18: 8, 19: 9, 20: 9, 21: 10, 22: 10, 23: 11}


def ir_version_for(opset: int) -> int:
    """The ONNX format in which models of an opset came first."""
    return _IR_VERSIONS.get(opset, 11)


def answers(
    node: onnx.NodeProto, opset: int, operands: dict[str, Array]
) -> tuple[dict[str, Array] | None, bool]:
    """The node's outputs by name as ONNX Runtime has them, else as `onnx.reference` does, None if neither;
    and whether they are ONNX Runtime's.
    """
    names = [v for v in node.output if v]
    model = _one_node(node, opset, operands)
    second = False
    try:
        found = _session(model).run(names, operands)
    except Exception:  # its errors have no common type; the second evaluator decides
        second = True
        try:
            with np.errstate(all="ignore"):
                found = ReferenceEvaluator(model).run(names, operands)
        except Exception:  # as above
            return None, False
    if any(not isinstance(a, np.ndarray | np.generic) for a in found):
        return None, False
    return {n: np.asarray(a) for n, a in zip(names, found, strict=True)}, not second


def inferred_types(
    node: onnx.NodeProto, opset: int, operands: dict[str, Array]
) -> list[tuple[str, tuple[int, ...] | None]]:
    """Dtype and shape of each named output by ONNX's inference; no shape where that leaves something open."""
    model = _one_node(node, opset, operands)
    for name, array in operands.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    dtypes = _stated_dtypes(node, opset, operands)
    types: list[tuple[str, tuple[int, ...] | None]] = []
    for info in model.graph.output:
        tensor = info.type.tensor_type
        dtype = dtypes[info.name]
        if tensor.elem_type:
            dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type)).name
        known = tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim)
        types.append((dtype, tuple(d.dim_value for d in tensor.shape.dim) if known else None))
    return types


def _stated_dtypes(node: onnx.NodeProto, opset: int, operands: dict[str, Array]) -> dict[str, str]:
    """The dtype of each output by the definition alone: that of an input of the same kind, else float32."""
    schema = onnx.defs.get_schema(node.op_type, opset)
    dtypes = {
        formal.type_str: operands[v].dtype.name
        for formal, v in zip(schema.inputs, node.input, strict=False)
        if v in operands
    }
    found = {}
    for place, v in enumerate(node.output):
        formal = schema.outputs[min(place, len(schema.outputs) - 1)]  # the last one may stand for many
        found[v] = dtypes.get(formal.type_str, "float32")
    return found


def _one_node(node: onnx.NodeProto, opset: int, operands: dict[str, Array]) -> onnx.ModelProto:
    graph = helper.make_graph(
        [node],
        "node",
        [helper.make_tensor_value_info(n, _element_type(a), a.shape) for n, a in operands.items()],
        [onnx.ValueInfoProto(name=v) for v in node.output if v],
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version_for(opset))


def _element_type(array: Array) -> int:
    return int(helper.np_dtype_to_tensor_dtype(array.dtype))


def _session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    onnxruntime.set_default_logger_severity(4)  # what some operators warn of goes to the default logger
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
