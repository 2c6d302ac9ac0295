"""Subgraphs as models of their own, for libraries that are handed whole graphs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from collage_core.errors import BackendError
from collage_core.formats import Format
from collage_core.ir.graph import Graph
from collage_core.ir.onnx_tensors import PACKED_BITS
from collage_core.ir.onnx_write import to_model
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
    in which `inputs` and `outputs` store them: a dense row-major tensor of the model's shape is the memory of
    the logical value in its format. Where that is a permutation, a Transpose inside leads to or from the
    logical shape, so that a library can fold it into layouts of its own.

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
    """The graph under construction: `subgraph`'s nodes between the Transposes at its border."""

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
        if format.dtype != type.dtype or len(format.layout) != len(type.shape):
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
        if not format.is_plain:
            self._before.append(
                self._transpose(name, self._logical_name(name, type), np.argsort(format.layout))
            )

    def add_output(self, name: str, format: Format) -> None:
        type = self._declare(name, format, ValueKind.INTERMEDIATE)
        if not format.is_plain:
            self._after.append(self._transpose(self._logical_name(name, type), name, format.layout))

    def graph(self) -> Graph:
        subgraph = self._subgraph
        source = subgraph.graph
        inside = [
            dataclasses.replace(n, inputs=self._renamed(n.inputs), outputs=self._renamed(n.outputs))
            for n in subgraph.nodes
        ]
        constants = {v: source.constants[v] for v in subgraph.constants}
        nodes = (*self._before, *inside, *self._after)
        return Graph(
            source.name, nodes, self._values, subgraph.inputs, subgraph.outputs, constants, source.opsets
        )

    def _declare(self, name: str, format: Format, kind: ValueKind) -> TensorType:
        """Give the border value the shape in which it is stored; returns its logical type."""
        type = self._subgraph.graph.type_of(name)
        stored = TensorType(type.dtype, tuple(type.shape[d] for d in format.layout))
        self._values[name] = Value(name, stored, kind)
        return type

    def _logical_name(self, name: str, type: TensorType) -> str:
        logical = f"{name}.logical"
        while logical in self._subgraph.graph.values:
            logical += "_"
        self._logical[name] = logical
        self._values[logical] = Value(logical, type, ValueKind.INTERMEDIATE)
        return logical

    def _transpose(self, source: str, destination: str, order: Iterable[int]) -> Node:
        id = self._next_id
        self._next_id += 1
        perm = tuple(int(d) for d in order)
        return Node(id, f"border.{id}", "Transpose", (source,), (destination,), {"perm": perm})

    def _renamed(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(self._logical.get(v, v) for v in names)


def _initializers(graph: Graph, outside: bool) -> Iterable[onnx.TensorProto]:
    inside_bytes = 0
    for name, data in graph.constants.items():
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
