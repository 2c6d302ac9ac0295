"""Types that `onnx` does not infer, though the model says enough: by what it declares of later values, by the
functions that define operators, and by constants at which inference does not look.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
from onnx import helper

from collage_core.ir.attributes import schema_of
from collage_core.ir.graph import Graph
from collage_core.ir.onnx_write import to_node_proto, to_value_info
from collage_core.ir.operator import Operator
from collage_core.ir.opkinds import OpKind
from collage_core.ir.types import UNKNOWN, Node, TensorType

__all__ = ["deduced_types", "tensor_type_of"]


def tensor_type_of(type: onnx.TypeProto, name: str) -> TensorType:
    """Of a tensor of a known element type; UNKNOWN for others, and where not even the rank is known. A
    dimension without size or name is called after the value.
    """
    tensor = type.tensor_type
    if not tensor.elem_type or not tensor.HasField("shape"):
        return UNKNOWN
    # Some exporters write -1 for a dimension that is open.
    shape = (
        d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else d.dim_param or f"{name}_{i}"
        for i, d in enumerate(tensor.shape.dim)
    )
    return TensorType(helper.tensor_dtype_to_np_dtype(tensor.elem_type).name, tuple(shape))


def deduced_types(graph: Graph, dtypes: Mapping[str, str]) -> dict[str, TensorType]:
    """By name, static types of intermediate values whose types in `graph` are unknown or open; of what a
    Slice yields at least what is known.

    dtypes: element types, as far as these are known. What is known by now may make more known.
    """
    found: dict[str, TensorType] = {}
    for node in reversed(graph.nodes):
        found |= _backwards(graph, node, dtypes, found)
        found |= _by_function(graph, node)
        found |= _by_constants(graph, node)
        found |= _statistics(graph, node)
        found |= _beside_slices(graph, node)
    # Inference calls dimensions that it does not know, but knows to be equal, by one name. Those that inputs
    # have are for a person to give.
    given = {d for v in graph.inputs for d in graph.type_of(v).symbolic_dims}
    sizes = {
        d: size
        for v, type in found.items()
        if len(graph.type_of(v).shape) == len(type.shape) and graph.type_of(v) != UNKNOWN
        for d, size in zip(graph.type_of(v).shape, type.shape, strict=True)
        if isinstance(d, str) and d not in given
    }
    for v in graph.intermediates():
        type = graph.type_of(v)
        if v not in found and type != UNKNOWN and any(d in sizes for d in type.symbolic_dims):
            shape = (sizes.get(d, d) if isinstance(d, str) else d for d in type.shape)
            found[v] = TensorType(type.dtype, tuple(shape))
    return found


def _backwards(
    graph: Graph, node: Node, dtypes: Mapping[str, str], found: Mapping[str, TensorType]
) -> dict[str, TensorType]:
    """The type of what an elementwise operator reads: it has the shape of what it yields."""
    operator = Operator(graph, node)
    if node.domain or (operator.kind is not OpKind.ELEMWISE and node.op_type != "CastLike"):
        return {}
    source = node.inputs[0]
    result = found.get(node.outputs[0], graph.type_of(node.outputs[0]))
    is_open = graph.producer(source) is not None and not found.get(source, graph.type_of(source)).is_static
    if not is_open or not result.is_static or source not in dtypes:
        return {}
    return {source: TensorType(dtypes[source], result.shape)}


def _statistics(graph: Graph, node: Node) -> dict[str, TensorType]:
    """What a training BatchNormalization yields of means and variances is of their types."""
    if node.op_type != "BatchNormalization" or node.domain or len(node.inputs) < 5:
        return {}
    mean = graph.type_of(node.inputs[3])
    return {v: mean for v in node.outputs[1:] if v and mean.is_static and not graph.type_of(v).is_static}


def _beside_slices(graph: Graph, node: Node) -> dict[str, TensorType]:
    """Of what a Slice yields those sizes along which it does not cut, be it unknown where it cuts."""
    if node.op_type != "Slice" or node.domain or len(node.inputs) < 3:
        return {}
    data, result = graph.type_of(node.inputs[0]), graph.type_of(node.outputs[0])
    starts, given = graph.type_of(node.inputs[1]), (*node.inputs, "")[3]
    if data == UNKNOWN or result.is_static or not starts.is_static:
        return {}
    if given and given not in graph.constants:
        return {}
    axes = graph.constants[given].tolist() if given else range(starts.size)
    cut = {axis % len(data.shape) for axis in axes}
    shape = list(data.shape)
    for axis in cut:
        shape[axis] = result.shape[axis] if result != UNKNOWN else f"{node.outputs[0]}_{axis}"
    return {node.outputs[0]: TensorType(data.dtype, tuple(shape))}


def _by_function(graph: Graph, node: Node) -> dict[str, TensorType]:
    """The types of the function by which ONNX defines an operator, where it says nothing else of them."""
    if all(graph.type_of(v) != UNKNOWN for v in node.outputs if v):
        return {}
    operator = Operator(graph, node)
    schema: Any = schema_of(operator)  # the stubs lack what is asked of it here
    types = [graph.type_of(v) for v in node.inputs if v]
    if (
        schema is None
        or schema.has_type_and_shape_inference_function
        or len(types) < len(node.inputs)
        or not all(t.is_static for t in types)
    ):
        return {}
    given = [to_value_info(v, t) for v, t in zip(node.inputs, types, strict=True)]
    proto = to_node_proto(node)
    if schema.has_context_dependent_function:
        text = schema.get_context_dependent_function(
            proto.SerializeToString(), [v.type.SerializeToString() for v in given]
        )
        body = onnx.FunctionProto.FromString(text)
        for value, name in zip(given, body.input, strict=False):
            value.name = name
        nodes, outputs, opsets = body.node, body.output, body.opset_import
    else:  # `onnx` expands the function, though without the defaults of attributes
        default = {name: a.default_value for name, a in schema.attributes.items()}
        proto.attribute.extend(a for name, a in default.items() if a.type and name not in node.attributes)
        nodes, outputs = [proto], proto.output
        opsets = [helper.make_opsetid(node.domain, graph.opsets[node.domain])]
    named = {inside: v for inside, v in zip(outputs, node.outputs, strict=False) if v}
    results = [onnx.ValueInfoProto(name=inside) for inside in named]
    model = helper.make_model(helper.make_graph(nodes, "function", given, results), opset_imports=opsets)
    try:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception:  # onnx raises several unrelated types here: nothing is known
        return {}
    found = {named[r.name]: tensor_type_of(r.type, r.name) for r in model.graph.output}
    return {v: t for v, t in found.items() if t.is_static}


def _by_constants(graph: Graph, node: Node) -> dict[str, TensorType]:
    """The types of what Compress and MaxUnpool yield, where it is a constant that tells how much that is."""
    if node.domain or node.op_type not in ("Compress", "MaxUnpool"):
        return {}
    data, deciding = graph.type_of(node.inputs[0]), node.inputs[-1]
    is_open = not graph.type_of(node.outputs[0]).is_static
    if not is_open or not data.is_static or not graph.is_constant(deciding):
        return {}
    constant = graph.constants[deciding]
    if node.op_type == "MaxUnpool":
        if len(node.inputs) < 3 or constant.ndim != 1:
            return {}
        shape = constant.tolist()
    elif (axis := node.attributes.get("axis")) is None:
        shape = [int(constant.sum())]
    else:
        shape = list(data.static_shape)
        if not -len(shape) <= axis < len(shape):
            return {}
        shape[axis] = int(constant.sum())
    return {node.outputs[0]: TensorType(data.dtype, tuple(shape))}
