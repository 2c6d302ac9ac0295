"""What the tests of this plugin share: groups are built from ONNX nodes and run through the Backend interface
in every variant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from collage_onnxruntime.backend import OnnxRuntimeBackend
from onnx import helper

from collage_core.backend import Bound, Kernel, Variant
from collage_core.device import Target
from collage_core.errors import Refusal
from collage_core.formats import Array, Format, empty
from collage_core.ir import Graph, Subgraph, from_model
from collage_core.reference import evaluate

TOLERANCE = 1e-4
TARGET = Target("cpu", 2)


@dataclass(frozen=True)
class Ready:
    """A kernel bound to buffers of its own. `outputs` have the logical shapes of the subgraph's."""

    call: Bound
    inputs: Sequence[Array]
    outputs: Sequence[Array]


def make_graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Array],
    constants: Mapping[str, Array] | None = None,
    outputs: Sequence[str] | None = None,
    opset: int = 20,
) -> Graph:
    """A graph of these nodes; it returns `outputs`, or what the last node computes."""
    opsets = [helper.make_opsetid("", opset)]
    opsets += [helper.make_opsetid(d, 1) for d in {n.domain for n in nodes} if d]
    return from_model(
        helper.make_model(
            helper.make_graph(
                list(nodes),
                "test",
                [
                    helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
                    for n, a in inputs.items()
                ],
                [helper.make_empty_tensor_value_info(v) for v in outputs or [nodes[-1].output[0]]],
                [onnx.numpy_helper.from_array(a, n) for n, a in (constants or {}).items()],
            ),
            opset_imports=opsets,
        )
    )


def ready(kernel: Kernel, subgraph: Subgraph, variant: Variant, inputs: Mapping[str, Array]) -> Ready:
    """Bind to fresh buffers, which hold `inputs` and, where nothing is computed yet, bytes of 0xFF."""

    def buffer(name: str, format: Format) -> Array:
        array = empty(subgraph.graph.shape_of(name), format)
        array.transpose(format.layout).reshape(-1).view(np.uint8).fill(0xFF)
        return array

    given = [buffer(v, f) for v, f in zip(subgraph.inputs, variant.inputs, strict=True)]
    for name, array in zip(subgraph.inputs, given, strict=True):
        array[...] = inputs[name]
    outputs = [buffer(v, f) for v, f in zip(subgraph.outputs, variant.outputs, strict=True)]
    assert kernel.workspace_bytes == 0
    return Ready(kernel.bind(given, outputs, np.empty(0, np.uint8)), given, outputs)


def error_of(found: Array, expected: Array) -> float:
    """max|difference| / max|reference|."""
    if not expected.size:
        return 0.0
    scale = float(np.abs(expected.astype(np.float64)).max()) or 1.0
    return float(np.abs(found.astype(np.float64) - expected.astype(np.float64)).max()) / scale


def run_group(subgraph: Subgraph, inputs: Mapping[str, Array]) -> Sequence[Variant]:
    """Build every variant offered, run it twice, compare with the reference. The variants."""
    backend = OnnxRuntimeBackend()
    graph = subgraph.graph
    variants = backend.variants(subgraph, TARGET)
    assert not isinstance(variants, Refusal), str(variants)
    assert backend.supported([subgraph], TARGET) == [None]
    values = evaluate(graph, inputs, keep=(*subgraph.inputs, *subgraph.outputs))
    for variant in variants:
        bound = ready(backend.build(subgraph, variant, TARGET), subgraph, variant, values)
        for _ in range(2):
            assert bound.call() is None
            for name, output in zip(subgraph.outputs, bound.outputs, strict=True):
                assert error_of(output, values[name]) <= TOLERANCE, f"{name}, {variant}"
                output[...] = 0
        for name, array in zip(subgraph.inputs, bound.inputs, strict=True):
            np.testing.assert_array_equal(array, values[name])
    return variants


MakeGraph = Callable[..., Graph]
RunGroup = Callable[[Subgraph, Mapping[str, Array]], Sequence[Variant]]
GetReady = Callable[[Kernel, Subgraph, Variant, Mapping[str, Array]], Ready]


@pytest.fixture(scope="session")
def backend() -> OnnxRuntimeBackend:
    return OnnxRuntimeBackend()


@pytest.fixture(scope="session")
def target() -> Target:
    return TARGET


@pytest.fixture(scope="session")
def graph_of() -> MakeGraph:
    return make_graph


@pytest.fixture(scope="session")
def run() -> RunGroup:
    return run_group


@pytest.fixture(scope="session")
def get_ready() -> GetReady:
    return ready
