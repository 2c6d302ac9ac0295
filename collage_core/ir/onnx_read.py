"""ONNX models as graphs. Large constants stand in for themselves by type alone while `onnx` infers shapes."""

from __future__ import annotations

import dataclasses
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import onnx
import onnx.inliner
from collage_run.files import regular

from collage_core.errors import ModelError
from collage_core.ir.bodies import inner_nodes
from collage_core.ir.body_types import of_two_ranks, with_typed_bodies, yielded_types
from collage_core.ir.deduction import deduced_types
from collage_core.ir.functions import Definition, with_definitions
from collage_core.ir.graph import Graph
from collage_core.ir.inference import inferred, is_doubtful
from collage_core.ir.legacy import check_legacy_broadcasts
from collage_core.ir.onnx_check import check_texts, check_unique, check_versions, one_line
from collage_core.ir.onnx_graph import GraphReader, declared_type, require_tensor
from collage_core.ir.onnx_tensors import ExternalData, dtype_of, tensor_array
from collage_core.ir.onnx_write import to_model
from collage_core.ir.sequence_types import joined_types
from collage_core.ir.types import UNKNOWN, TensorType, Value, ValueKind

__all__ = ["from_model", "infer_types", "inference_fault", "load_model"]

_LARGEST_BYTES = (1 << 31) - 1
"""What protobuf reads at most."""
_TOO_LARGE = 1 << 63
"""What ONNX cannot hold as a size."""


def load_model(
    path: str | Path,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    *,
    definitions: Sequence[Definition] = (),
    mapped: bool = False,
) -> Graph:
    """Read an ONNX file, external data included, for one specialisation of its input shapes.

    `shapes` fixes the shapes of inputs by name, and symbolic dimensions by theirs, as in {"batch": (8,)}; one
    that is fixed is fixed wherever its name occurs. definitions: of operators that are not ONNX's. mapped: as
    of `ExternalData`.

    ModelError, in one line, for what is not there, not ONNX, or not supported.
    """
    path = Path(path)
    try:
        with open(path, "rb", opener=regular) as file:
            model = onnx.load(file, load_external_data=False)
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from None
    except Exception as error:  # protobuf's own exception types differ between its implementations
        too_large = path.stat().st_size > _LARGEST_BYTES
        why = "over 2 GB: such a model needs external data" if too_large else one_line(error)
        if zipfile.is_zipfile(path):
            why = "a ZIP archive, as bundles are"
        raise ModelError(f"{path}: not an ONNX model ({why})") from None
    if not model.graph.node and not model.graph.output:
        raise ModelError(f"{path}: not an ONNX model (no graph in it)")
    return from_model(model, shapes, ExternalData(path.parent, mapped=mapped), definitions)


def from_model(
    model: onnx.ModelProto,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    external: ExternalData | None = None,
    definitions: Sequence[Definition] = (),
) -> Graph:
    """A graph from a model in memory; `external` says where its external data lies. `model` is left as it
    is. definitions: of operators that are not ONNX's.

    ModelError, in one line, for what ONNX forbids or Collage does not support.
    """
    shapes = shapes or {}
    check_texts(model)
    opsets = check_versions(model)
    for sparse in model.graph.sparse_initializer:
        raise ModelError(f"sparse initializer {sparse.values.name!r} is not supported")
    constants = {t.name: tensor_array(t, external) for t in model.graph.initializer}
    check_unique("the model", "initializer", [t.name for t in model.graph.initializer])
    inputs = [v for v in model.graph.input if v.name not in constants]
    check_unique("the model", "input", [v.name for v in inputs])
    values = {v.name: Value(v.name, _input_type(v, shapes.get(v.name)), ValueKind.INPUT) for v in inputs}
    given, values = values, _specialise(values, shapes)
    known = {name: v.type.shape for name, v in values.items() if v.type != UNKNOWN}
    model = with_definitions(model, definitions, opsets.get("", 0), known)
    proto = model.graph
    for info in proto.output:
        require_tensor(info)
    reader = GraphReader(opsets, model.ir_version, external, trusts_shapes=not shapes)
    graph = reader.graph(proto, values, constants)
    declared = {v.name: declared_type(v) for v in (*proto.value_info, *proto.output)}
    if shapes:
        declared = _specialised(declared, given, values)
    graph = infer_types(graph, declared)
    if open_values := of_two_ranks(graph, infer_types):
        # PyTorch's exporter states one branch's type of an If. What it really is hangs on the condition.
        unknown = {v: dataclasses.replace(graph.values[v], type=UNKNOWN) for v in open_values}
        declared = {v: type for v, type in declared.items() if v not in open_values}
        graph = infer_types(graph.replace(values={**graph.values, **unknown}), declared)
    check_legacy_broadcasts(graph)
    _check_outputs(graph, proto.output)
    return graph


def _check_outputs(graph: Graph, stated: Iterable[onnx.ValueInfoProto]) -> None:
    """ModelError for an output that has another element type than the model says."""
    for info in stated:
        said, found = declared_type(info), graph.type_of(info.name)
        if UNKNOWN not in (said, found) and said.dtype != found.dtype:
            raise ModelError(
                f"the model says that its output {info.name!r} is {said.dtype}; it is {found.dtype}"
            )


def _specialised(
    declared: Mapping[str, TensorType], before: Mapping[str, Value], after: Mapping[str, Value]
) -> dict[str, TensorType]:
    """Those of the stated types that hold for the shapes of the inputs `after` some were given: stated in the
    names of their dimensions. What is stated in numbers alone may be of other shapes.
    """
    pairs = ((before[v].type.shape, after[v].type.shape) for v in before)
    sizes = {d: n for old, new in pairs for d, n in zip(old, new, strict=True) if isinstance(d, str)}
    return {
        v: TensorType(type.dtype, tuple(sizes[d] if isinstance(d, str) else d for d in type.shape))
        for v, type in declared.items()
        if type.symbolic_dims and all(isinstance(sizes.get(d), int) for d in type.symbolic_dims)
    }


def infer_types(graph: Graph, declared: Mapping[str, TensorType] | None = None) -> Graph:
    """The graph with the types of its intermediate values as `onnx` infers them from the inputs' types.

    Where inference knows nothing, the type in `declared` (the source's own statement), then the one known
    before, is kept. What control flow yields is inferred from its bodies where `onnx` leaves it open.
    """
    declared = declared or {}
    while True:
        graph, dtypes = _with_found_types(graph, declared)
        found = yielded_types(graph, infer_types) or deduced_types(graph, dtypes)
        found |= joined_types(graph, infer_types)
        more = {v: type for v, type in found.items() if type != graph.type_of(v)}
        if not more:
            return with_typed_bodies(graph, infer_types)
        values = {v: dataclasses.replace(graph.values[v], type=type) for v, type in more.items()}
        graph = graph.replace(values={**graph.values, **values})


def _with_found_types(graph: Graph, declared: Mapping[str, TensorType]) -> tuple[Graph, dict[str, str]]:
    """The graph as `onnx` infers it once, and the element types of values, be their ranks unknown."""
    try:
        model = _inferred(graph, strict=False)
    except Exception as error:  # onnx raises several unrelated types here
        raise ModelError(f"shape inference failed: {one_line(error)}") from None
    typed = (*model.graph.value_info, *model.graph.output)
    found = {v.name: declared_type(v) for v in typed}
    # Of bodies `onnx` knows only what it infers itself, which ours stands in for outside of them.
    for n in graph.nodes:
        if any(is_doubtful(i.op_type, i.attributes) for i in inner_nodes(n) if not i.domain):
            found.update(dict.fromkeys(n.outputs, UNKNOWN))
    values = dict(graph.values)
    for name in graph.intermediates():
        candidates = (found.get(name, UNKNOWN), declared.get(name, UNKNOWN), values[name].type)
        known = [t for t in candidates if t != UNKNOWN]
        static = [t for t in known if not t.symbolic_dims]
        best = static[0] if static else _merged(known)
        values[name] = Value(name, best, values[name].kind)
    dtypes = {
        v.name: dtype_of(element_type, f"value {v.name!r}").name
        for v in typed
        if (element_type := v.type.tensor_type.elem_type)
    }
    return graph.replace(values=values), dtypes


def _merged(known: Sequence[TensorType]) -> TensorType:
    """The first of these open types, with what a later one of its rank knows of its dimensions: sizes, or
    names that the model gives.
    """
    best = known[0] if known else UNKNOWN
    for type in known[1:]:
        if len(type.shape) == len(best.shape):
            pairs = zip(best.shape, type.shape, strict=True)
            best = TensorType(best.dtype, tuple(d if isinstance(d, int) else other for d, other in pairs))
    return best


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


def _input_type(info: onnx.ValueInfoProto, shape: tuple[int, ...] | None) -> TensorType:
    """As `declared_type`, with the `shape` that a person gives for an input that has none."""
    if not info.name:
        raise ModelError("an input of the model has no name")
    require_tensor(info)
    type = declared_type(info)
    element_type = info.type.tensor_type.elem_type
    if type == UNKNOWN and not element_type:
        raise ModelError(f"the model does not say the element type of input {info.name!r}")
    if type == UNKNOWN and shape is not None:
        return TensorType(dtype_of(element_type, f"input {info.name!r}").name, shape)
    return type


def _specialise(values: dict[str, Value], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Value]:
    dimensions = dict.fromkeys(d for v in values.values() if v.type != UNKNOWN for d in v.type.symbolic_dims)
    sizes: dict[str, int] = {}
    for name, shape in shapes.items():
        if name in values:
            continue
        if name not in dimensions:
            open_ones = f"; its open dimensions: {', '.join(dimensions)}" if dimensions else ""
            raise ModelError(
                f"--shape {name}: the model has no such input; its inputs: "
                f"{', '.join(values) or 'none'}{open_ones}"
            )
        if len(shape) != 1:
            raise ModelError(f"--shape {name}: a dimension of the model has one size, as in {name}=8")
        (sizes[name],) = shape
    for name, shape in shapes.items():
        if any(given < 0 for given in shape):
            raise ModelError(f"--shape {name}={','.join(map(str, shape))}: dimensions cannot be negative")
        if any(given >= _TOO_LARGE for given in shape):
            raise ModelError(f"--shape {name}={','.join(map(str, shape))}: dimensions are less than 2**63")
        if name not in values:
            continue
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
