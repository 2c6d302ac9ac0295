"""A model as a few lines of Python, which make it again."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from collage_core.formats import Array

__all__ = ["as_code"]


def as_code(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> str:
    """Python that leaves the model in `model`, and its inputs in `inputs`."""
    graph = model.graph
    lines = ["import numpy as np", "from onnx import TensorProto, helper, numpy_helper", "", "nodes = ["]
    lines += [f"    {_node(n)}," for n in graph.node]
    lines += ["]", "initializers = {"]
    lines += [f"    {t.name!r}: {_array(numpy_helper.to_array(t))}," for t in graph.initializer]
    lines += ["}", "inputs = {"]
    lines += [f"    {n!r}: {_array(a)}," for n, a in inputs.items()]
    lines += ["}", "graph = helper.make_graph(", "    nodes,", "    'found',"]
    lines += [f"    [{', '.join(map(_info, graph.input))}],", f"    [{', '.join(map(_info, graph.output))}],"]
    lines += ["    [numpy_helper.from_array(a, n) for n, a in initializers.items()],", ")"]
    opsets = ", ".join(f"helper.make_opsetid({o.domain!r}, {o.version})" for o in model.opset_import)
    lines.append(f"model = helper.make_model(graph, opset_imports=[{opsets}], ir_version={model.ir_version})")
    return "\n".join(lines) + "\n"


def _node(node: onnx.NodeProto) -> str:
    parts = [repr(node.op_type), repr(list(node.input)), repr(list(node.output))]
    if node.domain:
        parts.append(f"domain={node.domain!r}")
    for a in node.attribute:
        value = helper.get_attribute_value(a)
        if a.type == onnx.AttributeProto.TENSOR:
            parts.append(f"{a.name}=numpy_helper.from_array({_array(numpy_helper.to_array(value))})")
        elif a.type == onnx.AttributeProto.GRAPH:
            parts.append(f"{a.name}={_body(value)}")
        elif isinstance(value, bytes):
            parts.append(f"{a.name}={value.decode()!r}")
        else:
            parts.append(f"{a.name}={value!r}")
    return f"helper.make_node({', '.join(parts)})"


def _body(graph: onnx.GraphProto) -> str:
    parts = [
        f"[{', '.join(map(_node, graph.node))}]",
        repr(graph.name),
        f"[{', '.join(map(_info, graph.input))}]",
        f"[{', '.join(map(_info, graph.output))}]",
        "[" + ", ".join(_tensor(t) for t in graph.initializer) + "]",
    ]
    return f"helper.make_graph({', '.join(parts)})"


def _tensor(tensor: onnx.TensorProto) -> str:
    return f"numpy_helper.from_array({_array(numpy_helper.to_array(tensor))}, {tensor.name!r})"


def _array(array: Array) -> str:
    if array.dtype == bool and array.all() and array.size > 4:
        return f"np.ones({array.shape}, 'bool')"
    numbers = np.asarray(array).ravel().tolist()
    text = ", ".join("np.nan" if x != x else repr(x).replace("inf", "np.inf") for x in numbers)
    return f"np.array([{text}], {array.dtype.name!r}).reshape({array.shape})"


def _info(info: onnx.ValueInfoProto) -> str:
    tensor = info.type.tensor_type
    if not info.type.WhichOneof("value"):
        return f"helper.make_empty_tensor_value_info({info.name!r})"
    name = onnx.TensorProto.DataType.Name(tensor.elem_type)
    if not tensor.HasField("shape"):
        return f"helper.make_tensor_value_info({info.name!r}, TensorProto.{name}, None)"
    shape = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim]
    return f"helper.make_tensor_value_info({info.name!r}, TensorProto.{name}, {shape})"
