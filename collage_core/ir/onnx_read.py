"""ONNX models as graphs. Large constants are read as memory-mapped arrays, and stand in for themselves by
type alone while `onnx` infers shapes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import onnx
import onnx.inliner
from onnx import helper

from collage_core.errors import ModelError
from collage_core.ir.deduction import deduced_types, tensor_type_of
from collage_core.ir.graph import Graph
from collage_core.ir.inference import inferred
from collage_core.ir.onnx_check import (
    check_operators,
    check_texts,
    check_unique,
    check_values,
    check_versions,
    one_line,
)
from collage_core.ir.onnx_tensors import ExternalData, constant_of, dtype_of, tensor_array
from collage_core.ir.onnx_write import ID_KEY, to_model
from collage_core.ir.types import UNKNOWN, Attribute, Node, TensorType, Value, ValueKind

__all__ = ["from_model", "infer_types", "inference_fault", "load_model"]

_LARGEST_BYTES = (1 << 31) - 1
"""What protobuf reads at most."""


def load_model(path: str | Path, shapes: Mapping[str, tuple[int, ...]] | None = None) -> Graph:
    """Read an ONNX file, external data included, for one specialisation of its input shapes.

    `shapes` fixes the shapes of inputs by name; a symbolic dimension fixed in one input is fixed wherever its
    name occurs. ModelError, in one line, for what is not there, not ONNX, or not supported.
    """
    path = Path(path)
    if not path.is_file():
        raise ModelError(f"{path}: no such file")
    try:
        model = onnx.load(str(path), load_external_data=False)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from None
    except Exception as error:  # protobuf's own exception types differ between its implementations
        too_large = path.stat().st_size > _LARGEST_BYTES
        why = "over 2 GB: such a model needs external data" if too_large else one_line(error)
        raise ModelError(f"{path}: not an ONNX model ({why})") from None
    if not model.graph.node and not model.graph.output:
        raise ModelError(f"{path}: not an ONNX model (no graph in it)")
    return from_model(model, shapes, ExternalData(path.parent))


def from_model(
    model: onnx.ModelProto,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    external: ExternalData | None = None,
) -> Graph:
    """A graph from a model in memory; `external` says where its external data lies. `model` is left as it
    is. ModelError, in one line, for what ONNX forbids or Collage does not support.
    """
    shapes = shapes or {}
    check_texts(model)
    opsets = check_versions(model)
    if model.functions:
        model = _inlined(model)
    proto = model.graph
    for sparse in proto.sparse_initializer:
        raise ModelError(f"sparse initializer {sparse.values.name!r} is not supported")
    constants = {t.name: tensor_array(t, external) for t in proto.initializer}
    check_unique("initializer", [t.name for t in proto.initializer])
    inputs = [v for v in proto.input if v.name not in constants]
    check_unique("input", [v.name for v in inputs])
    values = {v.name: Value(v.name, _input_type(v, shapes.get(v.name)), ValueKind.INPUT) for v in inputs}
    values = _specialise(values, shapes)
    nodes: list[Node] = []
    protos: list[onnx.NodeProto] = []
    taken: set[str] = set()
    for node in proto.node:
        if node.op_type == "Constant" and not _domain(node.domain):
            value = constant_of(node, external)
            if node.output[0] in constants or node.output[0] in values:
                raise ModelError(f"{node.output[0]!r} is computed twice, again by a Constant")
            constants[node.output[0]] = value
        else:
            nodes.append(_node(node, len(nodes), taken))
            protos.append(node)
    check_operators(nodes, protos, model.ir_version, opsets)
    nodes = _with_stored_ids(nodes, protos)
    for name, data in constants.items():
        values[name] = Value(name, TensorType(data.dtype.name, data.shape), ValueKind.CONSTANT)
    outputs = [v.name for v in proto.output]
    check_values(nodes, values, outputs)
    for n in nodes:
        for v in n.outputs:
            if v:
                values[v] = Value(v, UNKNOWN, ValueKind.INTERMEDIATE)
    graph = Graph(proto.name or "graph", nodes, values, [v.name for v in inputs], outputs, constants, opsets)
    declared = {v.name: _type(v) for v in (*proto.value_info, *proto.output)} if not shapes else {}
    return infer_types(graph, declared)


def infer_types(graph: Graph, declared: Mapping[str, TensorType] | None = None) -> Graph:
    """The graph with the types of its intermediate values as `onnx` infers them from the inputs' types.

    Where inference knows nothing, the type in `declared` (the source's own statement), then the one known
    before, is kept.
    """
    try:
        model = _inferred(graph, strict=False)
    except Exception as error:  # onnx raises several unrelated types here
        raise ModelError(f"shape inference failed: {one_line(error)}") from None
    inferred = (*model.graph.value_info, *model.graph.output)
    found = {v.name: _type(v) for v in inferred}
    declared = declared or {}
    values = dict(graph.values)
    for name in graph.intermediates():
        candidates = (found.get(name, UNKNOWN), declared.get(name, UNKNOWN), values[name].type)
        known = [t for t in candidates if t != UNKNOWN]
        static = [t for t in known if not t.symbolic_dims]
        best = (static or known or [UNKNOWN])[0]
        values[name] = Value(name, best, values[name].kind)
    graph = graph.replace(values=values)
    if all(_is_static(graph.type_of(v)) for v in graph.intermediates()):
        return graph
    deduced = deduced_types(graph, {v.name: t for v in inferred if (t := _dtype(v)) is not None})
    if not deduced:
        return graph
    more = {name: Value(name, type, values[name].kind) for name, type in deduced.items()}
    return infer_types(graph.replace(values={**values, **more}), declared)


def inference_fault(graph: Graph) -> str | None:
    """What `onnx` has against the types of the graph, in one line; None if nothing."""
    try:
        _inferred(graph, strict=True)
    except Exception as error:  # onnx raises several unrelated types here
        return one_line(error)
    return None


def _inferred(graph: Graph, *, strict: bool) -> onnx.ModelProto:
    model = to_model(graph, large_constants_as_inputs=True)
    return inferred(model, strict=strict)


def _inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    try:
        return onnx.inliner.inline_local_functions(model, convert_version=True)
    except Exception as error:  # onnx raises several unrelated types here
        raise ModelError(f"the model's functions cannot be inlined: {one_line(error)}") from None


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _input_type(info: onnx.ValueInfoProto, shape: tuple[int, ...] | None) -> TensorType:
    """As `_type`, with the `shape` that a person gives for an input that has none."""
    if not info.name:
        raise ModelError("an input of the model has no name")
    type = _type(info)
    element_type = info.type.tensor_type.elem_type
    if type == UNKNOWN and not element_type:
        raise ModelError(f"the model does not say the element type of input {info.name!r}")
    if type == UNKNOWN and shape is not None:
        return TensorType(dtype_of(element_type, f"input {info.name!r}").name, shape)
    return type


def _type(info: onnx.ValueInfoProto) -> TensorType:
    kind = info.type.WhichOneof("value")
    if kind is None:
        return UNKNOWN
    if kind != "tensor_type":
        raise ModelError(
            f"value {info.name!r} is a {kind.removesuffix('_type')}, not a tensor: not supported"
        )
    if element_type := info.type.tensor_type.elem_type:
        dtype_of(element_type, f"value {info.name!r}")
    return tensor_type_of(info.type, info.name)


def _dtype(info: onnx.ValueInfoProto) -> str | None:
    """Of a tensor whose element type is known, be its rank unknown."""
    element_type = info.type.tensor_type.elem_type
    return dtype_of(element_type, f"value {info.name!r}").name if element_type else None


def _is_static(type: TensorType) -> bool:
    return type != UNKNOWN and not type.symbolic_dims


def _specialise(values: dict[str, Value], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Value]:
    for name in shapes:
        if name not in values:
            raise ModelError(
                f"--shape {name}: the model has no such input; its inputs: {', '.join(values) or 'none'}"
            )
    sizes: dict[str, int] = {}
    for name, shape in shapes.items():
        if any(given < 0 for given in shape):
            raise ModelError(f"--shape {name}={','.join(map(str, shape))}: dimensions cannot be negative")
        declared = values[name].type.shape
        if len(declared) != len(shape) or any(
            isinstance(d, int) and d != given for d, given in zip(declared, shape, strict=True)
        ):
            wanted = ",".join(map(str, declared))
            raise ModelError(
                f"--shape {name}={','.join(map(str, shape))}: the model declares {name}={wanted}"
            )
        for d, given in zip(declared, shape, strict=True):
            if isinstance(d, str) and sizes.setdefault(d, given) != given:
                raise ModelError(f"--shape {name}: dimension {d!r} is both {sizes[d]} and {given}")
    result = {}
    for name, value in values.items():
        dims = tuple(sizes.get(d, d) if isinstance(d, str) else d for d in value.type.shape)
        result[name] = Value(name, TensorType(value.type.dtype, dims), value.kind)
    return result


def _with_stored_ids(nodes: list[Node], protos: list[onnx.NodeProto]) -> list[Node]:
    """The nodes with the ids that `to_model` has stored, unless another tool has added or doubled some."""
    stored = [p.value for n in protos for p in n.metadata_props if p.key == ID_KEY]
    if len(stored) != len(nodes) or len(set(stored)) != len(stored) or not all(map(str.isdecimal, stored)):
        return nodes
    return [dataclasses.replace(n, id=int(i)) for n, i in zip(nodes, stored, strict=True)]


def _node(proto: onnx.NodeProto, position: int, taken: set[str]) -> Node:
    base = proto.name or f"{proto.op_type}_{position}"
    name, k = base, 1
    while name in taken:
        name, k = f"{base}_{k}", k + 1
    taken.add(name)
    attributes = {a.name: _attribute(proto, name, a) for a in proto.attribute}
    return Node(
        position,
        name,
        proto.op_type,
        tuple(proto.input),
        tuple(proto.output),
        attributes,
        _domain(proto.domain),
    )


def _attribute(proto: onnx.NodeProto, node: str, attribute: onnx.AttributeProto) -> Attribute:
    kind = onnx.AttributeProto
    if attribute.type in (kind.GRAPH, kind.GRAPHS):
        raise ModelError(
            f"node {node!r}: {proto.op_type} holds a graph (control flow), which is not supported yet"
        )
    what = f"node {node!r}: attribute {attribute.name!r}"
    if attribute.ref_attr_name:
        raise ModelError(f"{what} refers to an attribute of a function, and is in none")
    value = helper.get_attribute_value(attribute)
    try:
        if attribute.type == kind.TENSOR:
            return tensor_array(value, None, what)
        if attribute.type == kind.STRING:
            return value.decode()
        if attribute.type == kind.STRINGS:
            return tuple(s.decode() for s in value)
    except UnicodeDecodeError:
        raise ModelError(f"{what} is not UTF-8") from None
    if attribute.type in (kind.INTS, kind.FLOATS):
        return tuple(value)
    if attribute.type in (kind.INT, kind.FLOAT):
        return value
    raise ModelError(f"{what} has a type that is not supported")
