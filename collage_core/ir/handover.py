"""Subgraphs as models of their own, for libraries that are handed whole graphs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from collage_core.errors import BackendError
from collage_core.formats import Format
from collage_core.ir.graph import Graph
from collage_core.ir.onnx_tensors import PACKED_BITS
from collage_core.ir.onnx_write import stored_constants, to_model
from collage_core.ir.subgraph import Subgraph
from collage_core.ir.types import UNKNOWN, Node, TensorType, Value, ValueKind

__all__ = ["subgraph_model"]

_LARGEST_BYTES = 2_000_000_000
"""Protobuf's limit is 2 GiB: something is left for the nodes."""

_OUTSIDE_BYTES = 1024
"""Constants up to this size stay inside: a library may need their values to load the model."""


def subgraph_model(
    subgraph: Subgraph,
    inputs: Sequence[Format],
    outputs: Sequence[Format],
    *,
    constants_outside: bool = False,
) -> onnx.ModelProto:
    """A model of the nodes of `subgraph` alone, its constants inside.

    Its inputs and outputs are `subgraph.inputs` and `subgraph.outputs`, by name and in order, with the shapes
    and dtypes in which `inputs` and `outputs` store them: a dense row-major tensor of the model's shape is
    the memory of the logical value in its format. Where that is a permutation, a Transpose inside leads to or
    from the logical shape, so that a library can fold it into layouts of its own; where it is in another
    precision, a Cast.

    constants_outside: large constants are only declared, as external data that lies nowhere: the caller gives
    the library `subgraph.graph.constants[name]` for each initializer whose `data_location` is EXTERNAL.

    Raises BackendError for a model that protobuf cannot hold, for a format that the value cannot have, for
    open shapes at the border, and for outputs that are not computed inside or are listed twice.
    """
    border = _Border(subgraph)
    for names, formats in ((subgraph.inputs, inputs), (subgraph.outputs, outputs)):
        for name, format in zip(names, formats, strict=True):
            border.require(name, format)
    border.require_outputs()
    for name, format in zip(subgraph.inputs, inputs, strict=True):
        border.add_input(name, format)
    for name, format in zip(subgraph.outputs, outputs, strict=True):
        border.add_output(name, format)
    graph = border.graph()
    return to_model(graph, initializers=list(_initializers(graph, constants_outside)))


class _Border:
    """The graph under construction: `subgraph`'s nodes between the Transposes and Casts at its border."""

    def __init__(self, subgraph: Subgraph) -> None:
        self._subgraph = subgraph
        source = subgraph.graph
        computed = [v for n in subgraph.nodes for v in n.outputs if v]
        self._values = {v: Value(v, source.type_of(v), ValueKind.INTERMEDIATE) for v in computed} | {
            v: source.values[v] for v in subgraph.constants
        }
        self._logical: dict[str, str] = {}
        self._before: list[Node] = []
        self._after: list[Node] = []
        self._next_id = max(source.all_nodes, default=-1) + 1

    def require(self, name: str, format: Format) -> None:
        type = self._subgraph.graph.type_of(name)
        if type == UNKNOWN or type.symbolic_dims:
            raise BackendError(f"the shape of {name!r} is not known")
        if not format.can_store(type.dtype, len(type.shape)):
            raise BackendError(f"{name!r} is {type}, which cannot be stored as {format}")

    def require_outputs(self) -> None:
        outputs = self._subgraph.outputs
        computed = {v for n in self._subgraph.nodes for v in n.outputs}
        for v in outputs:
            if v not in computed:
                raise BackendError(f"output {v!r} is not computed by the group")
        if len(set(outputs)) != len(outputs):
            raise BackendError(f"the outputs {', '.join(outputs)} are not all different")

    def add_input(self, name: str, format: Format) -> None:
        type = self._declare(name, format, ValueKind.INPUT)
        if format.is_plain and format.dtype == type.dtype:
            return
        source, logical = name, self._logical_name(name, type)
        if not format.is_plain:
            as_stored = TensorType(format.dtype, type.shape)
            source = logical if as_stored == type else self._between(f"{name}.plain", as_stored)
            self._before.append(self._transpose(name, source, np.argsort(format.layout)))
        if format.dtype != type.dtype:
            self._before.append(self._cast(source, logical, type.dtype))

    def add_output(self, name: str, format: Format) -> None:
        type = self._declare(name, format, ValueKind.INTERMEDIATE)
        if format.is_plain and format.dtype == type.dtype:
            return
        source = self._logical_name(name, type)
        if format.dtype != type.dtype:
            as_stored = TensorType(format.dtype, type.shape)
            rounded = name if format.is_plain else self._between(f"{name}.plain", as_stored)
            self._after.append(self._cast(source, rounded, format.dtype))
            source = rounded
        if not format.is_plain:
            self._after.append(self._transpose(source, name, format.layout))

    def graph(self) -> Graph:
        subgraph = self._subgraph
        source = subgraph.graph
        inside = [
            dataclasses.replace(n, inputs=self._renamed(n.inputs), outputs=self._renamed(n.outputs))
            for n in subgraph.nodes
        ]
        constants = {v: source.constants[v] for v in (*subgraph.constants, *subgraph.stored_constants)}
        graph = Graph(
            source.name,
            (*self._before, *inside, *self._after),
            {**{v: source.values[v] for v in constants}, **self._values},
            subgraph.inputs,
            subgraph.outputs,
            constants,
            source.opsets,
        )
        return graph.replace(dequantised={v: source.dequantised[v] for v in subgraph.dequantised})

    def _declare(self, name: str, format: Format, kind: ValueKind) -> TensorType:
        """Give the border value the type in which it is stored; returns its logical one."""
        type = self._subgraph.graph.type_of(name)
        stored = TensorType(format.dtype, tuple(type.shape[d] for d in format.layout))
        self._values[name] = Value(name, stored, kind)
        return type

    def _logical_name(self, name: str, type: TensorType) -> str:
        self._logical[name] = self._between(f"{name}.logical", type)
        return self._logical[name]

    def _between(self, name: str, type: TensorType) -> str:
        """A further value."""
        while name in self._values or name in self._subgraph.graph.values:
            name += "_"
        self._values[name] = Value(name, type, ValueKind.INTERMEDIATE)
        return name

    def _transpose(self, source: str, destination: str, order: Iterable[int]) -> Node:
        return self._node("Transpose", source, destination, {"perm": tuple(int(d) for d in order)})

    def _cast(self, source: str, destination: str, dtype: str) -> Node:
        element_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self._node("Cast", source, destination, {"to": element_type})

    def _node(self, op_type: str, source: str, destination: str, attributes: Mapping[str, Any]) -> Node:
        id = self._next_id
        self._next_id += 1
        return Node(id, f"border.{id}", op_type, (source,), (destination,), attributes)

    def _renamed(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(self._logical.get(v, v) for v in names)


def _initializers(graph: Graph, outside: bool) -> Iterable[onnx.TensorProto]:
    inside_bytes = 0
    for name in stored_constants(graph):
        data = graph.constants[name]
        element_type = helper.np_dtype_to_tensor_dtype(data.dtype)
        numbers = data.dtype.kind not in "OU" and element_type not in PACKED_BITS
        if outside and numbers and data.nbytes > _OUTSIDE_BYTES:
            tensor = onnx.TensorProto(name=name, data_type=element_type, dims=data.shape)
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value=name)
            yield tensor
            continue
        inside_bytes += data.nbytes
        if inside_bytes > _LARGEST_BYTES:
            raise BackendError(
                f"the group's constants exceed {_LARGEST_BYTES} bytes, which no model can hold"
            )
        yield numpy_helper.from_array(np.asarray(data, order="C"), name)
