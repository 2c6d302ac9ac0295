"""TensorRT for RTX itself, which parses and builds without a GPU."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from collage_tensorrt.backend import TensorrtBackend
from collage_tensorrt.building import parsed
from collage_tensorrt.editions import EDITIONS
from collage_tensorrt.library import Library, loaded
from collage_tensorrt.variants import variants

from collage_core.errors import BackendError, ModelError, Refusal
from collage_core.formats import Array
from collage_core.ir import Graph, Subgraph, from_model
from collage_core.ir.passes import normalise
from collage_core.target import Target
from collage_core.testing import make_group, node

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(
        importlib.util.find_spec("tensorrt_rtx_bindings") is None, reason="TensorRT for RTX is not installed"
    ),
]

_RANDOM = np.random.default_rng(3)


def _values(*shape: int) -> Array:
    return _RANDOM.standard_normal(shape, np.float32)


_SAMPLES: Mapping[str, tuple[Sequence[onnx.NodeProto], Mapping[str, Array], Mapping[str, Array]]] = {
    "convolution": (
        [node("Conv", ["x", "w", "b"], "c", pads=[1, 1, 1, 1]), node("Relu", ["c"], "y")],
        {"x": _values(1, 4, 8, 8)},
        {"w": _values(6, 4, 3, 3), "b": _values(6)},
    ),
    "product": (
        [node("MatMul", ["x", "w"], "p"), node("Add", ["p", "b"], "s"), node("Gelu", ["s"], "y")],
        {"x": _values(2, 5, 8)},
        {"w": _values(8, 16), "b": _values(16)},
    ),
    "two inputs, two outputs": (
        [node("Add", ["x", "z"], "s"), node("Relu", ["s"], "y"), node("Tanh", ["s"], "t")],
        {"x": _values(3, 4), "z": _values(4)},
        {},
    ),
    "normalisation": (
        [node("LayerNormalization", ["x", "w", "b"], "y", axis=-1)],
        {"x": _values(2, 5, 8)},
        {"w": _values(8), "b": _values(8)},
    ),
    "pooling": (
        [node("MaxPool", ["x"], "y", kernel_shape=[2, 2], strides=[2, 2])],
        {"x": _values(1, 4, 8, 8)},
        {},
    ),
    "half precision": (
        [node("MatMul", ["x", "w"], "p"), node("Softmax", ["p"], "y")],
        {"x": _values(5, 8).astype(np.float16)},
        {"w": _values(8, 16).astype(np.float16)},
    ),
    "indices": (
        [node("Gather", ["x", "i"], "y", axis=0)],
        {"x": _values(10, 4), "i": np.array([3, 1, 4], np.int64)},
        {},
    ),
    "conditions": (
        [node("Greater", ["x", "z"], "c"), node("Where", ["c", "x", "z"], "y")],
        {"x": _values(3, 4), "z": _values(3, 4)},
        {},
    ),
}


@pytest.fixture(scope="module")
def library() -> Library:
    return loaded(EDITIONS[1])


@pytest.mark.parametrize("name", _SAMPLES)
def test_engines_are_built_for_a_gpu_that_is_not_here(name: str, library: Library, target: Target) -> None:
    group = make_group(*_SAMPLES[name])
    assert TensorrtBackend().supported([group], target) == [None]
    offered = variants(group, target)
    assert not isinstance(offered, Refusal)
    for variant in offered:
        assert len(library.engine(parsed(library, group, variant), "8.9")) > 1000


def test_what_the_parser_does_not_know_is_declined_with_its_reason(target: Target) -> None:
    group = make_group([node("Det", ["x"], "y")], {"x": _values(3, 3)})
    (refusal,) = TensorrtBackend().supported([group], target)
    assert refusal is not None
    assert "Det" in refusal.reason


def test_a_whole_network_is_one_engine(library: Library, target: Target) -> None:
    networks = pytest.importorskip("collage_benchmarks.networks")
    graph: Graph = normalise(from_model(networks.tiny_conv()))
    group = Subgraph(graph, graph.all_nodes)
    offered = variants(group, target)
    assert not isinstance(offered, Refusal)
    assert library.engine(parsed(library, group, offered[0]), "8.9")


def test_what_the_parser_takes_of_onnx_own_cases_is_built(library: Library, target: Target) -> None:
    """But for attention without a kernel of its own, and sums along an axis that is not constant."""
    suite = pytest.importorskip("collage_benchmarks.node_suite")
    built: list[str] = []
    failed: dict[str, str] = {}
    for name, case in suite.cases().items():
        try:
            graph = normalise(from_model(case.model))
        except ModelError:
            continue
        group = Subgraph(graph, graph.all_nodes)
        if not group.nodes or isinstance(offered := variants(group, target), Refusal):
            continue
        try:
            network = parsed(library, group, offered[0])
        except BackendError:
            continue
        try:
            library.engine(network, "8.9")
            built.append(name)
        except BackendError as error:
            failed[name] = str(error)
    assert len(built) > 700
    assert {name.split("_")[1] for name in failed} <= {"attention", "cumsum"}, failed


def test_the_capabilities_are_the_library_s_own() -> None:
    trt: Any = importlib.import_module("tensorrt_rtx_bindings")
    known = {n.removeprefix("SM") for n in trt.ComputeCapability.__members__ if n.startswith("SM")}
    assert {c.replace(".", "") for c in EDITIONS[1].capabilities or ()} == known


def test_what_is_not_onnx_is_told(library: Library) -> None:
    with pytest.raises(BackendError, match=r"TensorRT for RTX: .+"):
        library.parsed(b"no model")


_SIGNATURES = {
    ("IExecutionContext", "set_tensor_address"): "name: str, memory: typing.SupportsInt) -> bool",
    ("IExecutionContext", "execute_async_v3"): "stream_handle: typing.SupportsInt) -> bool",
    (
        "IExecutionContext",
        "set_device_memory",
    ): "memory: typing.SupportsInt, size: typing.SupportsInt) -> None",
    ("Runtime", "deserialize_cuda_engine"): "serialized_engine: typing_extensions.Buffer)",
    ("ICudaEngine", "create_execution_context"): "strategy: ",
    ("ICudaEngine", "device_memory_size_v2"): "",
}
"""Of what is called on a GPU only: what the bindings say of its parameters."""


@pytest.mark.parametrize("of", _SIGNATURES, ids=".".join)
def test_what_is_called_on_a_gpu_is_there(of: tuple[str, str]) -> None:
    trt: Any = importlib.import_module("tensorrt_rtx_bindings")
    assert _SIGNATURES[of] in getattr(getattr(trt, of[0]), of[1]).__doc__
    assert "USER_MANAGED" in trt.ExecutionContextAllocationStrategy.__members__
