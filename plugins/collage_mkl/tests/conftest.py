"""What the tests of this plugin share: a product is built from an ONNX node and run through the Backend
interface in every variant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import onnx
import pytest
from collage_mkl.backend import MklBackend
from onnx import helper

from collage_core.backend import Kernel, Variant
from collage_core.device import Target
from collage_core.errors import Refusal
from collage_core.formats import Array, empty
from collage_core.ir import Graph, Subgraph, from_model
from collage_core.reference import evaluate

TOLERANCE = {"float32": 1e-5, "float64": 1e-13}
TARGET = Target("cpu", 2)


def make_graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Array],
    constants: Mapping[str, Array] | None = None,
    shape: Sequence[int] | None = None,
) -> Graph:
    """A graph of these nodes that returns what the last one computes, of `shape` if onnx cannot tell."""
    output = nodes[-1].output[0]
    graph = helper.make_graph(
        list(nodes),
        "test",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in inputs.items()
        ],
        [
            helper.make_empty_tensor_value_info(output)
            if shape is None
            else helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, shape)
        ],
        [onnx.numpy_helper.from_array(a, n) for n, a in (constants or {}).items()],
    )
    return from_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]))


def stored(value: Array, variant: Variant, index: int) -> Array:
    """`value` in memory as the variant's input of that index."""
    array = empty(value.shape, variant.inputs[index])
    array[...] = value
    return array


def run_kernel(
    kernel: Kernel,
    subgraph: Subgraph,
    variant: Variant,
    inputs: Mapping[str, Array],
    alias: Mapping[int, int] | None = None,
) -> Array:
    """Bind to fresh buffers and call, twice where nothing is aliased. `alias`: outputs that share an input's
    buffer.
    """
    arrays = [stored(inputs[n], variant, i) for i, n in enumerate(subgraph.inputs)]
    output = arrays[alias[0]] if alias else empty(_out_shape(subgraph), variant.outputs[0])
    if not alias:
        output[...] = np.nan
    bound = kernel.bind(arrays, [output], np.empty(0, np.uint8))
    assert not bound()
    result = output.copy()
    if not alias:
        assert not bound()
        np.testing.assert_array_equal(output, result)
        for name, array in zip(subgraph.inputs, arrays, strict=True):
            np.testing.assert_array_equal(array, inputs[name])
    return result


def _out_shape(subgraph: Subgraph) -> tuple[int, ...]:
    return subgraph.graph.shape_of(subgraph.outputs[0])


def error_of(found: Array, expected: Array) -> float:
    """max|difference| / max|reference|."""
    scale = float(np.abs(expected).max()) or 1.0
    return float(np.abs(found.astype(np.float64) - expected).max()) / scale


class RunProduct(Protocol):
    def __call__(
        self,
        node: onnx.NodeProto,
        inputs: Mapping[str, Array],
        constants: Mapping[str, Array] | None = None,
    ) -> list[Kernel]: ...


@pytest.fixture(scope="session")
def backend() -> MklBackend:
    return MklBackend()


@pytest.fixture(scope="session")
def target() -> Target:
    return TARGET


@pytest.fixture(scope="session")
def graph_of() -> Any:
    return make_graph


@pytest.fixture(scope="session")
def run_on() -> Any:
    return run_kernel


@pytest.fixture(scope="session")
def run_product(backend: MklBackend) -> RunProduct:
    """Builds every variant offered for the node alone, runs it, also with what it allows to share a buffer,
    and compares with the reference. Fails if nothing is offered.
    """

    def run(
        node: onnx.NodeProto, inputs: Mapping[str, Array], constants: Mapping[str, Array] | None = None
    ) -> list[Kernel]:
        graph = make_graph([node], inputs, constants)
        subgraph = Subgraph(graph, graph.all_nodes)
        expected = evaluate(graph, inputs)[subgraph.outputs[0]]
        variants = backend.variants(subgraph, TARGET)
        assert not isinstance(variants, Refusal), str(variants)
        assert variants
        kernels = []
        for variant in variants:
            kernel = backend.build(subgraph, variant, TARGET)
            found = [run_kernel(kernel, subgraph, variant, inputs)]
            if kernel.may_alias:
                found.append(run_kernel(kernel, subgraph, variant, inputs, kernel.may_alias))
            for array in found:
                assert error_of(array, expected) <= TOLERANCE[expected.dtype.name], str(variant)
            kernels.append(kernel)
        return kernels

    return run
