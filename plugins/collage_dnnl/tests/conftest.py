"""What the tests of this plugin share: groups are built from ONNX nodes and run through the Backend interface
in every variant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import onnx
import pytest
from collage_dnnl.backend import DnnlBackend
from collage_dnnl.kernels import PrimitiveKernel, plan
from collage_dnnl.library import load
from onnx import helper

from collage_core.backend import Kernel, Variant
from collage_core.device import Target
from collage_core.errors import BackendError, Refusal
from collage_core.formats import Array, empty
from collage_core.ir import Graph, Subgraph, from_model
from collage_core.reference import evaluate

TOLERANCE = 1e-4
TARGET = Target("cpu", 2)


@dataclass(frozen=True)
class Built:
    """A variant that has been built, run and compared."""

    variant: Variant
    kernel: Kernel


@dataclass(frozen=True)
class Outcome:
    """built: variants that ran. declined: those of them that the backend declines for being slow."""

    subgraph: Subgraph
    built: list[Built] = field(default_factory=list)
    declined: list[Variant] = field(default_factory=list)


def make_graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Array],
    constants: Mapping[str, Array] | None = None,
    outputs: Sequence[str] | None = None,
    opset: int = 20,
    declared: Sequence[int] | None = None,
) -> Graph:
    """A graph of these nodes; it returns `outputs`, or what the last node computes, of shape `declared` if
    onnx cannot tell.
    """
    model = helper.make_model(
        helper.make_graph(
            list(nodes),
            "test",
            [
                helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
                for n, a in inputs.items()
            ],
            [
                helper.make_empty_tensor_value_info(v)
                if declared is None
                else helper.make_tensor_value_info(v, onnx.TensorProto.FLOAT, declared)
                for v in outputs or [nodes[-1].output[0]]
            ],
            [onnx.numpy_helper.from_array(a, n) for n, a in (constants or {}).items()],
        ),
        opset_imports=[helper.make_opsetid("", opset)],
    )
    return from_model(model)


def run_kernel(
    kernel: Kernel,
    subgraph: Subgraph,
    variant: Variant,
    inputs: Mapping[str, Array],
    alias: Mapping[int, int] | None = None,
) -> Array:
    """Bind to fresh buffers and call. `alias`: outputs that share an input's buffer."""
    arrays = []
    for name, format in zip(subgraph.inputs, variant.inputs, strict=True):
        array = empty(inputs[name].shape, format)
        array[...] = inputs[name]
        arrays.append(array)
    shape = subgraph.graph.shape_of(subgraph.outputs[0])
    output = arrays[alias[0]] if alias else empty(shape, variant.outputs[0])
    if not alias:
        output[...] = np.nan
    workspace = np.full(kernel.workspace_bytes + 64, 0xFF, np.uint8)
    offset = -workspace.ctypes.data % 64
    bound = kernel.bind(arrays, [output], workspace[offset : offset + kernel.workspace_bytes])
    assert not bound()
    result = output.copy()
    if not alias:
        assert not bound()
        np.testing.assert_array_equal(output, result)
        for name, array in zip(subgraph.inputs, arrays, strict=True):
            np.testing.assert_array_equal(array, inputs[name])
    return result


def error_of(found: Array, expected: Array) -> float:
    """max|difference| / max|reference|."""
    scale = float(np.abs(expected).max()) or 1.0
    return float(np.abs(found.astype(np.float64) - expected).max()) / scale


class RunGroup(Protocol):
    def __call__(
        self,
        nodes: Sequence[onnx.NodeProto],
        inputs: Mapping[str, Array],
        constants: Mapping[str, Array] | None = None,
        opset: int = 20,
        expected: Array | None = None,
    ) -> Outcome: ...


class MakeGraph(Protocol):
    def __call__(
        self,
        nodes: Sequence[onnx.NodeProto],
        inputs: Mapping[str, Array],
        constants: Mapping[str, Array] | None = None,
        outputs: Sequence[str] | None = None,
        opset: int = 20,
        declared: Sequence[int] | None = None,
    ) -> Graph: ...


@pytest.fixture(scope="session")
def backend() -> DnnlBackend:
    return DnnlBackend()


@pytest.fixture(scope="session")
def target() -> Target:
    return TARGET


@pytest.fixture(scope="session")
def graph_of() -> MakeGraph:
    return make_graph


@pytest.fixture(scope="session")
def run_on() -> Callable[..., Array]:
    return run_kernel


@pytest.fixture(scope="session")
def relative_error() -> Callable[[Array, Array], float]:
    return error_of


@pytest.fixture(scope="session")
def run_group(backend: DnnlBackend) -> RunGroup:
    """Builds every variant offered for the whole graph, runs it, also with each alias that it allows, and
    compares with the reference (or `expected`).

    Fails if nothing is offered, something cannot be built, or something answers wrongly. What the backend
    declines because oneDNN has only a slow implementation for it is built past the backend: its numbers must
    be right all the same.
    """

    def run(
        nodes: Sequence[onnx.NodeProto],
        inputs: Mapping[str, Array],
        constants: Mapping[str, Array] | None = None,
        opset: int = 20,
        expected: Array | None = None,
    ) -> Outcome:
        graph = make_graph(nodes, inputs, constants, opset=opset)
        subgraph = Subgraph(graph, graph.all_nodes)
        if expected is None:
            expected = evaluate(graph, inputs)[subgraph.outputs[0]]
        variants = backend.variants(subgraph, TARGET)
        assert not isinstance(variants, Refusal), str(variants)
        assert backend.supported([subgraph], TARGET) == [None]
        outcome = Outcome(subgraph)
        for variant in variants:
            kernel: Kernel
            try:
                kernel = backend.build(subgraph, variant, TARGET)
            except BackendError as error:
                if "uncompiled" not in str(error):
                    raise
                outcome.declined.append(variant)
                kernel = PrimitiveKernel(load(), plan(subgraph, variant), TARGET.threads)
            found = run_kernel(kernel, subgraph, variant, inputs)
            assert error_of(found, expected) <= TOLERANCE, f"{variant}: {error_of(found, expected)}"
            if kernel.may_alias:
                found = run_kernel(kernel, subgraph, variant, inputs, kernel.may_alias)
                assert error_of(found, expected) <= TOLERANCE, f"{variant} in place"
            outcome.built.append(Built(variant, kernel))
        return outcome

    return run
