"""Graphs as ONNX models. Large constants never pass through protobuf's 2 GB limit: they are written as
external data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from collage_core.formats import Array
from collage_core.ir.bodies import free_name, free_values, renamed
from collage_core.ir.graph import Graph
from collage_core.ir.onnx_tensors import PACKED_BITS
from collage_core.ir.regions import flattened
from collage_core.ir.types import UNKNOWN, Attribute, Node, TensorType

__all__ = [
    "DEQUANTISED_KEY",
    "ID_KEY",
    "INLINE_BYTES",
    "OPEN_KEY",
    "REGION_KEY",
    "WEIGHTS_FILE",
    "WrittenWeights",
    "stored_constants",
    "to_model",
    "to_node_proto",
    "to_value_info",
    "write_external",
]

WEIGHTS_FILE = "weights.bin"
"""Location that `write_external` gives to the constants it writes."""

ID_KEY = "collage.id"
"""Metadata property that holds a node's id."""

REGION_KEY = "collage.region"
"""Metadata property that holds, of a node inside of a region, the region's id and name."""

OPEN_KEY = "collage.open"
"""Metadata property of an output whose shape is open, in JSON: which output holds its sizes, and as what
shape it is delivered.
"""

DEQUANTISED_KEY = "collage.dequantised"
"""Metadata property of a DequantizeLinear that our graphs have as a constant."""

INLINE_BYTES = 1024
"""Constants up to this size are handed to `onnx` with their values, which shape inference may need."""
_ALIGNMENT = 64


def to_node_proto(node: Node, outside: Collection[str] = ()) -> onnx.NodeProto:
    """The node as ONNX writes it. Its bodies read what they capture by the names that the graph has for it,
    and have no names of their own that are among those `outside`.
    """
    proto = onnx.NodeProto(op_type=node.op_type, name=node.name, domain=node.domain)
    proto.input.extend(node.formal_inputs)
    proto.output.extend(node.outputs)
    for name, attribute in node.attributes.items():
        if isinstance(attribute, Graph):
            known = {*outside, *node.inputs, *node.outputs}
            proto.attribute.append(helper.make_attribute(name, _body_proto(attribute, node.captured, known)))
        else:
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

    `initializers`, if given, are taken in place of the constants' own data. What is dequantised is computed
    by the model, where its constants are inside. The nodes of a region stand in its place.
    """
    graph, regions = flattened(graph)
    model = onnx.ModelProto(ir_version=10, producer_name="collage")
    for domain, version in graph.opsets.items():
        model.opset_import.append(helper.make_opsetid(domain, version))
    proto = model.graph
    for name in graph.inputs:
        proto.input.append(to_value_info(name, graph.type_of(name)))
    if large_constants_as_inputs:
        for name, data in graph.constants.items():
            if data.nbytes > INLINE_BYTES:
                proto.input.append(to_value_info(name, graph.type_of(name)))
            else:
                proto.initializer.append(_initializer(name, data))
        dequantised = []
    else:
        stored = (_initializer(v, graph.constants[v]) for v in stored_constants(graph))
        proto.initializer.extend(stored if initializers is None else initializers)
        dequantised = [*graph.dequantised.values()]
    _write_nodes(graph, proto, graph.values, dequantised)
    for node, written in zip((*dequantised, *graph.nodes), proto.node, strict=True):
        if (region := regions.get(node.id)) is None:
            written.metadata_props.add(key=ID_KEY, value=str(node.id))
        else:
            written.metadata_props.add(key=REGION_KEY, value=f"{region.id} {region.name}")
    for written in proto.node[: len(dequantised)]:
        written.metadata_props.add(key=DEQUANTISED_KEY, value="")
    for output in proto.output:
        if (opened := graph.open_outputs.get(output.name)) is not None:
            told = {"sizes": opened.sizes, "shape": opened.type.shape}
            output.metadata_props.add(key=OPEN_KEY, value=json.dumps(told))
    return model


def stored_constants(graph: Graph) -> list[str]:
    """The constants that a model of the graph holds: what is dequantised is not among them."""
    return [v for v in graph.constants if v not in graph.dequantised]


@dataclass
class WrittenWeights:
    """What several graphs have in one file: how far it is written, and where contents lie, by digest."""

    end: int = 0
    offsets: dict[bytes, int] = field(default_factory=dict)


def write_external(
    graph: Graph, weights: IO[bytes], written: WrittenWeights | None = None
) -> onnx.ModelProto:
    """The graph as a model whose large constants are written to `weights`, at multiples of 64 bytes.

    written: by graphs before; equal contents are written once, and told there.
    """
    initializers = []
    position = 0 if written is None else written.end
    for name in stored_constants(graph):
        data = graph.constants[name]
        element_type = helper.np_dtype_to_tensor_dtype(data.dtype)
        if data.nbytes <= INLINE_BYTES or data.dtype.kind in "OU" or element_type in PACKED_BITS:
            initializers.append(_initializer(name, data))
            continue
        content = np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
        digest = b"" if written is None else hashlib.sha256(content).digest()
        offset = None if written is None else written.offsets.get(digest)
        if offset is None:
            position += weights.write(b"\0" * (-position % _ALIGNMENT))
            offset = position
            position += weights.write(content)
        if written is not None:
            written.offsets[digest] = offset
        tensor = onnx.TensorProto(name=name, data_type=element_type, dims=data.shape)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", WEIGHTS_FILE), ("offset", offset), ("length", data.nbytes)):
            tensor.external_data.add(key=key, value=str(value))
        initializers.append(tensor)
    if written is not None:
        written.end = position
    return to_model(graph, initializers=initializers)


def _initializer(name: str, data: Array) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(data, order="C"), name)


def _write_nodes(
    graph: Graph, proto: onnx.GraphProto, names: Collection[str], before: Iterable[Node] = ()
) -> None:
    """What comes after the inputs and the constants. names: all that bodies may read, or must not hide.
    before: nodes that come first.
    """
    proto.name = graph.name
    outputs = set(graph.outputs)
    for node in (*before, *graph.nodes):
        proto.node.append(to_node_proto(node, names))
        for v in node.outputs:
            if v and v not in outputs and graph.type_of(v) != UNKNOWN:
                proto.value_info.append(to_value_info(v, graph.type_of(v)))
    for name in graph.outputs:
        proto.output.append(to_value_info(name, graph.type_of(name)))


def _body_proto(body: Graph, captured: Mapping[str, str], outside: Collection[str]) -> onnx.GraphProto:
    free = free_values(body)
    names = {v: captured[v] for v in free}
    own = [v for v in body.values if v not in names]
    taken = {*outside, *own}
    for v in own:
        if v in outside:
            names[v] = free_name(v, taken)
            taken.add(names[v])
    body = renamed(body, names)
    proto = onnx.GraphProto()
    proto.input.extend(to_value_info(v, body.type_of(v)) for v in body.inputs)
    proto.initializer.extend(_initializer(v, data) for v, data in body.constants.items())
    _write_nodes(body, proto, {*outside, *body.values})
    return proto


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
