"""ONNX models as graphs. Large constants are read as memory-mapped arrays, and stand in for themselves by
type alone while `onnx` infers shapes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx.external_data_helper
import onnx.inliner
from onnx import helper, numpy_helper

from collage_core.errors import ModelError
from collage_core.formats import Array
from collage_core.ir.graph import Graph
from collage_core.ir.onnx_write import ID_KEY, to_model
from collage_core.ir.types import UNKNOWN, Attribute, Dim, Node, TensorType, Value, ValueKind

__all__ = ["ExternalData", "from_model", "infer_types", "load_model"]


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
