"""ONNX in and out.

Large constants never pass through protobuf's 2 GB limit: they are read as memory-mapped arrays, stand in for
themselves by type alone while `onnx` infers shapes, and are stored as external data.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnx
import onnx.external_data_helper
import onnx.inliner
from onnx import helper, numpy_helper

from collage_core.errors import ModelError
from collage_core.formats import Array
from collage_core.ir.graph import Graph
from collage_core.ir.types import Attribute, Dim, Node, TensorType, Value, ValueKind

__all__ = [
    "MODEL_FILE",
    "UNKNOWN",
    "WEIGHTS_FILE",
    "ExternalData",
    "from_model",
    "infer_types",
    "load_model",
    "load_stored",
    "save_stored",
    "to_model",
    "to_node_proto",
    "to_value_info",
    "write_external",
]

UNKNOWN = TensorType("", ("?",))
"""Type of a value that shape inference says nothing about (yet)."""

_INLINE_BYTES = 1024
"""Constants up to this size are handed to `onnx` with their values, which shape inference may need."""
WEIGHTS_FILE = "weights.bin"
MODEL_FILE = "model.onnx"
_ID_KEY = "collage.id"
_ALIGNMENT = 64


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
    except Exception as error:  # protobuf's own exception types differ between its implementations
        raise ModelError(f"{path}: not an ONNX model ({error})") from None
    if not model.graph.node and not model.graph.output:
        raise ModelError(f"{path}: not an ONNX model (no graph in it)")
    return from_model(model, shapes, ExternalData(path.parent))


@dataclass(frozen=True, slots=True)
class ExternalData:
    """Where a model's external data lies: in files of `folder`, or all of it at `offset` inside the one file
    `archive`.
    """

    folder: Path
    archive: Path | None = None
    offset: int = 0

    def locate(self, location: str) -> tuple[Path, int]:
        """File and offset in it at which the external data file `location` starts; ModelError if that is
        outside the folder.
        """
        if self.archive is not None:
            return self.archive, self.offset
        path = (self.folder / location).resolve()
        if not path.is_relative_to(self.folder.resolve()):
            raise ModelError(f"external data {location!r} lies outside the model's folder")
        return path, 0


def from_model(
    model: onnx.ModelProto,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    external: ExternalData | None = None,
) -> Graph:
    """A graph from a model in memory; `external` says where its external data lies. `model` is left as it
    is.
    """
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    proto = model.graph
    constants = {t.name: _array(t, external) for t in proto.initializer}
    for sparse in proto.sparse_initializer:
        raise ModelError(f"sparse initializer {sparse.values.name!r} is not supported")
    inputs = [v for v in proto.input if v.name not in constants]
    values = {v.name: Value(v.name, _type(v), ValueKind.INPUT) for v in inputs}
    values = _specialise(values, shapes or {})
    nodes: list[Node] = []
    protos: list[onnx.NodeProto] = []
    taken: set[str] = set()
    for node in proto.node:
        if node.op_type == "Constant" and not node.domain:
            constants[node.output[0]] = _constant(node)
        else:
            nodes.append(_node(node, len(nodes), taken))
            protos.append(node)
    nodes = _with_stored_ids(nodes, protos)
    for name, data in constants.items():
        values[name] = Value(name, TensorType(data.dtype.name, data.shape), ValueKind.CONSTANT)
    for n in nodes:
        for v in n.outputs:
            if v:
                values[v] = Value(v, UNKNOWN, ValueKind.INTERMEDIATE)
    opsets = {_domain(o.domain): o.version for o in model.opset_import}
    outputs = [v.name for v in proto.output]
    _check_names(nodes, values, outputs)
    graph = Graph(proto.name or "graph", nodes, values, [v.name for v in inputs], outputs, constants, opsets)
    declared = {v.name: _type(v) for v in (*proto.value_info, *proto.output)} if not shapes else {}
    return infer_types(graph, declared)


def infer_types(graph: Graph, declared: Mapping[str, TensorType] | None = None) -> Graph:
    """The graph with the types of its intermediate values as `onnx` infers them from the inputs' types.

    Where inference knows nothing, the type in `declared` (the source's own statement), then the one known
    before, is kept.
    """
    try:
        model = onnx.shape_inference.infer_shapes(
            to_model(graph, large_constants_as_inputs=True),
            check_type=False,
            strict_mode=False,
            data_prop=True,
        )
    except Exception as error:  # onnx raises several unrelated types here
        raise ModelError(f"shape inference failed: {error}") from None
    found = {v.name: _type(v) for v in (*model.graph.value_info, *model.graph.output)}
    declared = declared or {}
    values = dict(graph.values)
    for name in graph.intermediates():
        candidates = (found.get(name, UNKNOWN), declared.get(name, UNKNOWN), values[name].type)
        known = [t for t in candidates if t != UNKNOWN]
        static = [t for t in known if not t.symbolic_dims]
        best = (static or known or [UNKNOWN])[0]
        values[name] = Value(name, best, values[name].kind)
    return graph.replace(values=values)


def to_node_proto(node: Node) -> onnx.NodeProto:
    """The node as ONNX writes it."""
    proto = onnx.NodeProto(op_type=node.op_type, name=node.name, domain=node.domain)
    proto.input.extend(node.inputs)
    proto.output.extend(node.outputs)
    for name, attribute in node.attributes.items():
        proto.attribute.append(_attribute_proto(node, name, attribute))
    return proto


def to_value_info(name: str, type: TensorType) -> onnx.ValueInfoProto:
    """A declaration of a tensor; without a type where that is unknown."""
    if type == UNKNOWN:
        return onnx.ValueInfoProto(name=name)
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(np.dtype(type.dtype)), type.shape
    )


def to_model(
    graph: Graph, *, large_constants_as_inputs: bool = False, initializers: Iterable[Any] | None = None
) -> onnx.ModelProto:
    """The graph as a model with its constants inside, or (for `onnx` functions that only need types) the
    large ones as inputs.

    `initializers`, if given, are taken in place of the constants' own data.
    """
    model = onnx.ModelProto(ir_version=10, producer_name="collage")
    for domain, version in graph.opsets.items():
        model.opset_import.append(helper.make_opsetid(domain, version))
    proto = model.graph
    proto.name = graph.name
    for name in graph.inputs:
        proto.input.append(to_value_info(name, graph.type_of(name)))
    if initializers is not None:
        proto.initializer.extend(initializers)
    else:
        for name, data in graph.constants.items():
            if large_constants_as_inputs and data.nbytes > _INLINE_BYTES:
                proto.input.append(to_value_info(name, graph.type_of(name)))
            else:
                proto.initializer.append(numpy_helper.from_array(np.asarray(data, order="C"), name))
    outputs = set(graph.outputs)
    for node in graph.nodes:
        written = to_node_proto(node)
        written.metadata_props.add(key=_ID_KEY, value=str(node.id))
        proto.node.append(written)
        for v in node.outputs:
            if v and v not in outputs and graph.type_of(v) != UNKNOWN:
                proto.value_info.append(to_value_info(v, graph.type_of(v)))
    for name in graph.outputs:
        proto.output.append(to_value_info(name, graph.type_of(name)))
    return model


def save_stored(graph: Graph, directory: Path) -> None:
    """Write the graph into a folder: `model.onnx`, which other tools read too, and its large constants as
    external data.

    Node ids are kept.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / WEIGHTS_FILE).open("wb") as weights:
        model = write_external(graph, weights)
    (directory / MODEL_FILE).write_bytes(model.SerializeToString())


def load_stored(directory: Path) -> Graph:
    """Read what `save_stored` wrote; large constants are memory-mapped, read-only."""
    return load_model(directory / MODEL_FILE)


def write_external(graph: Graph, weights: IO[bytes]) -> onnx.ModelProto:
    """The graph as a model whose large constants are written to `weights`, at multiples of 64 bytes."""
    initializers = []
    position = 0
    for name, data in graph.constants.items():
        if data.nbytes <= _INLINE_BYTES or data.dtype.kind in "OU":
            initializers.append(numpy_helper.from_array(np.asarray(data, order="C"), name))
            continue
        position += weights.write(b"\0" * (-position % _ALIGNMENT))
        tensor = onnx.TensorProto(
            name=name, data_type=helper.np_dtype_to_tensor_dtype(data.dtype), dims=data.shape
        )
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", WEIGHTS_FILE), ("offset", position), ("length", data.nbytes)):
            tensor.external_data.add(key=key, value=str(value))
        initializers.append(tensor)
        position += weights.write(np.ascontiguousarray(data).reshape(-1).view(np.uint8).data)
    return to_model(graph, initializers=initializers)


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _type(info: onnx.ValueInfoProto) -> TensorType:
    kind = info.type.WhichOneof("value")
    if kind is None:
        return UNKNOWN
    if kind != "tensor_type":
        raise ModelError(
            f"value {info.name!r} is a {kind.removesuffix('_type')}, not a tensor: not supported"
        )
    tensor = info.type.tensor_type
    if not tensor.elem_type or not tensor.HasField("shape"):
        return UNKNOWN
    shape: list[Dim] = []
    for i, d in enumerate(tensor.shape.dim):
        if d.HasField("dim_value"):
            shape.append(d.dim_value)
        else:
            shape.append(d.dim_param or f"{info.name}_{i}")
    return TensorType(helper.tensor_dtype_to_np_dtype(tensor.elem_type).name, tuple(shape))


def _specialise(values: dict[str, Value], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Value]:
    for name in shapes:
        if name not in values:
            raise ModelError(
                f"--shape {name}: the model has no such input; its inputs: {', '.join(values) or 'none'}"
            )
    sizes: dict[str, int] = {}
    for name, shape in shapes.items():
        declared = values[name].type.shape if values[name].type != UNKNOWN else shape
        if len(declared) != len(shape) or any(
            (isinstance(d, int) and d != given) or given < 0 for d, given in zip(declared, shape, strict=True)
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
    stored = [p.value for n in protos for p in n.metadata_props if p.key == _ID_KEY]
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
    value = helper.get_attribute_value(attribute)
    if attribute.type == kind.TENSOR:
        return numpy_helper.to_array(value)
    if attribute.type == kind.STRING:
        return value.decode()
    if attribute.type == kind.STRINGS:
        return tuple(s.decode() for s in value)
    if attribute.type in (kind.INTS, kind.FLOATS):
        return tuple(value)
    if attribute.type in (kind.INT, kind.FLOAT):
        return value
    raise ModelError(f"node {node!r}: attribute {attribute.name!r} has a type that is not supported")


def _attribute_proto(node: Node, name: str, attribute: Attribute) -> onnx.AttributeProto:
    if isinstance(attribute, np.ndarray):
        return helper.make_attribute(name, numpy_helper.from_array(attribute))
    if isinstance(attribute, tuple) and not attribute:
        # An empty list does not tell its type; the operator's schema does.
        declared = onnx.defs.get_schema(node.op_type, domain=node.domain).attributes[name].type
        kinds = onnx.defs.OpSchema.AttrType
        empty = {kinds.FLOATS: onnx.AttributeProto.FLOATS, kinds.STRINGS: onnx.AttributeProto.STRINGS}
        return onnx.AttributeProto(name=name, type=empty.get(declared, onnx.AttributeProto.INTS))
    return helper.make_attribute(name, list(attribute) if isinstance(attribute, tuple) else attribute)


def _constant(proto: onnx.NodeProto) -> Array:
    attribute = proto.attribute[0]
    value = helper.get_attribute_value(attribute)
    if attribute.name == "value":
        return numpy_helper.to_array(value)
    if attribute.name in ("value_float", "value_floats"):
        return np.asarray(value, np.float32)
    if attribute.name in ("value_int", "value_ints"):
        return np.asarray(value, np.int64)
    raise ModelError(f"node {proto.name!r}: Constant with attribute {attribute.name!r} is not supported")


def _array(tensor: onnx.TensorProto, external: ExternalData | None) -> Array:
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return numpy_helper.to_array(tensor)
    info = onnx.external_data_helper.ExternalDataInfo(tensor)
    if external is None:
        raise ModelError(
            f"constant {tensor.name!r} lies in external data, and the model was not read from a file"
        )
    path, start = external.locate(info.location)
    start += info.offset or 0
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    count = math.prod(tensor.dims)
    if not path.is_file():
        raise ModelError(f"constant {tensor.name!r}: external data file {path} is missing")
    if path.stat().st_size < start + count * dtype.itemsize:
        raise ModelError(f"constant {tensor.name!r}: external data file {path} is too short")
    if count == 0:
        return np.empty(tuple(tensor.dims), dtype)
    return np.memmap(path, dtype, "r", start, tuple(tensor.dims))


def _check_names(nodes: list[Node], values: Mapping[str, Value], outputs: list[str]) -> None:
    known = {v for v in values if values[v].kind is not ValueKind.INTERMEDIATE}
    for n in nodes:
        for v in n.inputs:
            if v and v not in known:
                raise ModelError(
                    f"node {n.name!r} ({n.op_type}) reads {v!r}, which nothing before it computes"
                )
        known.update(v for v in n.outputs if v)
    for v in outputs:
        if v not in known:
            raise ModelError(f"the model returns {v!r}, which nothing computes")
