"""From a subgraph and a variant to a compiled model."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np
import onnx

from collage_core.backend import StoredKernel, Variant, rounded_to
from collage_core.errors import BackendError
from collage_core.formats import Array, Format, Layout, row_major_bytes
from collage_core.ir import Subgraph, TensorType, from_model, subgraph_model, to_value_info
from collage_core.target import Target
from collage_openvino.kernel import WEIGHTS, OpenvinoKernel, stored
from collage_openvino.library import CompiledModel, Port, load
from collage_openvino.settings import properties

__all__ = ["build_conversion", "build_kernel", "check_together", "stored_kernel"]

_ALIGNMENT = 64
_OPSET = 13

_Group = tuple[Subgraph, Variant]


def build_kernel(
    subgraph: Subgraph, variant: Variant, target: Target, stored: StoredKernel | None = None
) -> OpenvinoKernel:
    """The compiled kernel. BackendError, with what the library says, if it cannot run the subgraph. stored:
    see `OpenvinoKernel`.
    """
    model = subgraph_model(subgraph, variant.inputs, variant.outputs, constants_outside=True)
    is_rounded = bool(rounded_to(subgraph, variant))
    compiled = _compiled(model, subgraph.graph.constants, [(subgraph, variant)], target, is_rounded)
    return OpenvinoKernel(compiled, *_layouts(variant), stored)


def build_conversion(type: TensorType, source: Format, destination: Format, target: Target) -> OpenvinoKernel:
    """The kernel that stores a float otherwise. BackendError as of `build_kernel`."""
    identity = onnx.helper.make_node("Identity", ["x"], ["y"])
    ends = [to_value_info("x", type)], [to_value_info("y", type)]
    opsets = [onnx.helper.make_opsetid("", _OPSET)]
    graph = from_model(
        onnx.helper.make_model(onnx.helper.make_graph([identity], "conversion", *ends), opset_imports=opsets)
    )
    subgraph, variant = Subgraph(graph, graph.all_nodes), Variant((source,), (destination,))
    return build_kernel(subgraph, variant, target, stored_kernel(subgraph, variant, target))


def stored_kernel(subgraph: Subgraph, variant: Variant, target: Target) -> StoredKernel:
    """What the library makes the same of again."""
    model = subgraph_model(subgraph, variant.inputs, variant.outputs, constants_outside=True)
    weights = io.BytesIO()
    _write_constants(model, subgraph.graph.constants, weights)
    data = np.frombuffer(weights.getbuffer(), np.uint8) if weights.tell() else np.empty(0, np.uint8)
    return stored(
        model.SerializeToString(),
        data,
        *_layouts(variant),
        target.threads,
        bool(rounded_to(subgraph, variant)),
    )


def _layouts(variant: Variant) -> tuple[list[Layout], list[Layout]]:
    return [f.layout for f in variant.inputs], [f.layout for f in variant.outputs]


def check_together(groups: Sequence[_Group], target: Target) -> None:
    """Compile groups of the same opsets beside each other in one model. BackendError if any cannot be.

    A group that holds bodies of control flow must come alone: `onnx` gives the constants that they read from
    outside other names, and leaves the bodies as they are.
    """
    whole = onnx.ModelProto()
    constants: dict[str, Array] = {}
    for k, (subgraph, variant) in enumerate(groups):
        model = subgraph_model(subgraph, variant.inputs, variant.outputs, constants_outside=True)
        prefix = f"{k}." if len(groups) > 1 else ""
        model.graph.CopyFrom(onnx.compose.add_prefix_graph(model.graph, prefix))
        if k:
            model.ClearField("opset_import")  # merging appends
        whole.MergeFrom(model)
        constants.update({prefix + v: subgraph.graph.constants[v] for v in subgraph.stored_constants})
    whole.graph.name = "together"
    _compiled(whole, constants, groups, target)


def _compiled(
    model: onnx.ModelProto,
    constants: Mapping[str, Array],
    groups: Sequence[_Group],
    target: Target,
    is_rounded: bool = False,
) -> CompiledModel:
    """The model of `groups`, which bring their inputs and outputs one after the other."""
    with tempfile.TemporaryDirectory(prefix="collage-openvino-") as folder:
        with Path(folder, WEIGHTS).open("wb") as file:
            _write_constants(model, constants, file)
        path = Path(folder, "model.onnx")
        onnx.save(model, path)
        compiled = load().compiled(path, properties(target.threads, is_rounded=is_rounded))
    given, returned = compiled.inputs(), compiled.outputs()
    inputs = [(s, v, f) for s, variant in groups for v, f in zip(s.inputs, variant.inputs, strict=True)]
    outputs = [(s, v, f) for s, variant in groups for v, f in zip(s.outputs, variant.outputs, strict=True)]
    _check("input", inputs, given)
    _check("output", outputs, returned)
    if same := {p.name for p in given} & {p.name for p in returned}:
        # It takes some operators for nothing at all (Dropout, Max of one), and then writes no output.
        raise BackendError(f"OpenVINO computes nothing between an input and an output ({', '.join(same)})")
    return compiled


def _check(kind: str, values: Sequence[tuple[Subgraph, str, Format]], ports: Sequence[Port]) -> None:
    """BackendError where the library has inferred another type than ONNX, as it does for some attributes."""
    if len(values) != len(ports):
        raise BackendError(f"OpenVINO's model has {len(ports)} {kind}s; the group has {len(values)}")
    for (subgraph, name, format), port in zip(values, ports, strict=True):
        shape = subgraph.graph.shape_of(name)
        expected = Port(port.name, format.dtype, tuple(shape[d] for d in format.layout))
        if port != expected:
            raise BackendError(f"OpenVINO takes {kind} {name!r} for {port}, which is {expected}")


def _write_constants(model: onnx.ModelProto, constants: Mapping[str, Array], file: IO[bytes]) -> None:
    """Give the library the large constants as a file, which it maps: nobody copies them, and protobuf's limit
    of 2 GiB does not count.
    """
    position = 0
    for tensor in model.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        data = constants[tensor.name]
        position += file.write(b"\0" * (-position % _ALIGNMENT))
        del tensor.external_data[:]
        for key, value in (("location", WEIGHTS), ("offset", position), ("length", data.nbytes)):
            tensor.external_data.add(key=key, value=str(value))
        position += file.write(row_major_bytes(data))
