"""Whole graphs on the reference, and the reference as a backend."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage_core.backend import BackendKind, plain_variant
from collage_core.devices import IMMEDIATE
from collage_core.errors import InputError, ModelError, Refusal
from collage_core.formats import empty
from collage_core.ir import Graph, Node, Subgraph, from_model
from collage_core.reference import ReferenceBackend, evaluate
from collage_core.target import Target


def residual(opset: int = 17) -> Graph:
    """y = relu(x @ w) + x, and the sum of y over its rows."""
    w = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "matmul"),
        helper.make_node("Relu", ["h"], ["r"], "relu"),
        helper.make_node("Add", ["r", "x"], ["y"], "add"),
        helper.make_node("Softmax", ["y"], ["s"], "softmax", axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "residual",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4]),
            helper.make_tensor_value_info("s", TensorProto.FLOAT, [2, 4]),
        ],
        [numpy_helper.from_array(w, "w")],
    )
    return from_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]))


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((2, 4)).astype(np.float32)


def test_outputs_by_name(x: np.ndarray) -> None:
    graph = residual()
    result = evaluate(graph, {"x": x})
    y = np.maximum(x @ graph.constants["w"], 0) + x
    assert list(result) == ["y", "s"]
    np.testing.assert_allclose(result["y"], y, rtol=1e-6)
    np.testing.assert_allclose(result["s"].sum(axis=1), 1, rtol=1e-6)


def test_any_value_can_be_kept(x: np.ndarray) -> None:
    graph = residual()
    everything = evaluate(graph, {"x": x}, keep=list(graph.values))
    assert set(everything) == set(graph.values)
    assert everything["w"] is graph.constants["w"]
    for name in graph.values:
        np.testing.assert_array_equal(evaluate(graph, {"x": x}, keep=[name])[name], everything[name])


def test_only_what_is_needed_runs(x: np.ndarray) -> None:
    graph = residual()
    broken = [n for n in graph.nodes if n.op_type != "Softmax"]
    broken.append(Node(9, "nobody", "NoSuchOperator", ("y",), ("s",)))
    graph = graph.replace(nodes=broken)
    assert list(evaluate(graph, {"x": x}, keep=["y"])) == ["y"]
    with pytest.raises(ModelError, match=r"'nobody'.*NoSuchOperator"):
        evaluate(graph, {"x": x})


def test_opsets_are_honoured(x: np.ndarray) -> None:
    # Before opset 13 Softmax flattened everything from `axis` on; with axis 0 that is all of it.
    def run(op: str, opset: int, **attributes: int) -> np.ndarray:
        nodes = [Node(0, "node", op, ("x",), ("s",), attributes)]
        graph = residual().replace(nodes=nodes, outputs=["s"], opsets={"": opset})
        return evaluate(graph, {"x": x})["s"]

    np.testing.assert_allclose(run("Softmax", 11, axis=0).sum(), 1, rtol=1e-6)
    np.testing.assert_allclose(run("Softmax", 13, axis=0).sum(axis=0), 1, rtol=1e-6)
    np.testing.assert_allclose(np.exp(run("LogSoftmax", 12, axis=0)).sum(), 1, rtol=1e-6)
    assert run("Hardmax", 1, axis=0).sum() == 1
    assert run("Hardmax", 13, axis=0).sum() == 4
    # The default was 1 and is -1: the same for two dimensions.
    np.testing.assert_allclose(run("Softmax", 11), run("Softmax", 13))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, r"'x' \(float32\[2,4\]\) is missing"),
        ({"x": np.zeros((2, 5), np.float32)}, r"must be float32\[2,4\], not float32\[2, 5\]"),
        ({"x": np.zeros((2, 4))}, "not float64"),
    ],
)
def test_wrong_inputs_are_named(inputs: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(InputError, match=message):
        evaluate(residual(), inputs)


def test_unknown_value_is_named(x: np.ndarray) -> None:
    with pytest.raises(ModelError, match="no value 'z'"):
        evaluate(residual(), {"x": x}, keep=["z"])


def test_failing_node_is_named() -> None:
    graph = residual()
    nodes = [Node(7, "cut", "Reshape", ("x", "w"), ("s",))]
    with pytest.raises(ModelError, match=r"cut \(Reshape\)"):
        evaluate(graph.replace(nodes=nodes, outputs=["s"]), {"x": np.zeros((2, 4), np.float32)})


def test_backend_runs_a_subgraph_into_given_buffers(x: np.ndarray) -> None:
    graph, backend, target = residual(), ReferenceBackend(), Target(threads=1)
    subgraph = Subgraph(graph, [0, 1, 2])
    offered = backend.variants(subgraph, target)
    assert offered == [plain_variant(subgraph)]
    variant = plain_variant(subgraph)
    kernel = backend.build(subgraph, variant, target)
    source = empty((2, 4), variant.inputs[0])
    result = empty((2, 4), variant.outputs[0])
    call = kernel.bind([source], [result], np.empty(0, np.uint8), IMMEDIATE)
    for scale in (1, -2):
        source[...] = x * np.float32(scale)
        assert not call()
        np.testing.assert_array_equal(result, evaluate(graph, {"x": np.asarray(source)})["y"])


def test_backend_declines_what_nobody_implements() -> None:
    graph = residual()
    nodes = [*graph.nodes[:3], Node(9, "nobody", "NoSuchOperator", ("y",), ("s",), domain="com.example")]
    subgraph = Subgraph(graph.replace(nodes=nodes, opsets={"": 17, "com.example": 1}), [9])
    refusal = ReferenceBackend().variants(subgraph, Target())
    assert isinstance(refusal, Refusal)
    assert refusal.node == "nobody"
    assert "com.example.NoSuchOperator" in refusal.reason


def test_info() -> None:
    info = ReferenceBackend().info()
    assert (info.name, info.kind, info.available) == ("reference", BackendKind.REFERENCE, True)
