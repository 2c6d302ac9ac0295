"""From a subgraph and a variant to a compiled model."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx

from collage_core.backend import Bound, Kernel, Variant
from collage_core.device import Target
from collage_core.errors import BackendError
from collage_core.formats import Array, Format, Layout
from collage_core.ir import Subgraph, subgraph_model
from collage_openvino.library import CompiledModel, Port, load
from collage_openvino.settings import properties

__all__ = ["OpenvinoKernel", "build_kernel"]

_WEIGHTS = "weights.bin"
_ALIGNMENT = 64


class OpenvinoKernel(Kernel):
    """A compiled group. Its scratch memory is the library's own, one for each `bind`."""

    def __init__(self, model: CompiledModel, inputs: Sequence[Layout], outputs: Sequence[Layout]) -> None:
        self._model = model
        self._inputs = tuple(inputs)
        self._outputs = tuple(outputs)

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array) -> Bound:
        return self._model.bind(_stored(inputs, self._inputs), _stored(outputs, self._outputs))


def build_kernel(subgraph: Subgraph, variant: Variant, target: Target) -> OpenvinoKernel:
    """The compiled kernel. BackendError, with what the library says, if it cannot run the subgraph."""
    model = subgraph_model(subgraph, variant.inputs, variant.outputs, constants_outside=True)
    with tempfile.TemporaryDirectory(prefix="collage-openvino-") as folder:
        path = Path(folder, "model.onnx")
        _write_constants(model, subgraph, Path(folder, _WEIGHTS))
        onnx.save(model, path)
        compiled = load().compiled(path, properties(target))
    _check("input", subgraph, subgraph.inputs, variant.inputs, compiled.inputs())
    _check("output", subgraph, subgraph.outputs, variant.outputs, compiled.outputs())
    return OpenvinoKernel(compiled, [f.layout for f in variant.inputs], [f.layout for f in variant.outputs])


def _check(
    kind: str, subgraph: Subgraph, names: Sequence[str], formats: Sequence[Format], ports: Sequence[Port]
) -> None:
    """BackendError where the library has inferred another type than ONNX, as it does for some attributes."""
    for name, format, port in zip(names, formats, ports, strict=True):
        shape = subgraph.graph.shape_of(name)
        expected = format.dtype, tuple(shape[d] for d in format.layout)
        if port != expected:
            raise BackendError(
                f"OpenVINO takes {kind} {name!r} for {_text(port)}, which is {_text(expected)}"
            )


def _text(port: Port) -> str:
    return f"{port[0]}{list(port[1])}"


def _write_constants(model: onnx.ModelProto, subgraph: Subgraph, path: Path) -> None:
    """Give the library the large constants as a file, which it maps: nobody copies them, and protobuf's limit
    of 2 GiB does not count.
    """
    outside = [t for t in model.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
    if not outside:
        return
    with path.open("wb") as file:
        position = 0
        for tensor in outside:
            data = np.ascontiguousarray(subgraph.graph.constants[tensor.name])
            position += file.write(b"\0" * (-position % _ALIGNMENT))
            del tensor.external_data[:]
            for key, value in (("location", _WEIGHTS), ("offset", position), ("length", data.nbytes)):
                tensor.external_data.add(key=key, value=str(value))
            position += file.write(data.reshape(-1).view(np.uint8).data)


def _stored(arrays: Sequence[Array], layouts: Sequence[Layout]) -> list[Array]:
    """The arrays with their dimensions in the order in which they lie in memory."""
    return [a.transpose(o) for a, o in zip(arrays, layouts, strict=True)]
