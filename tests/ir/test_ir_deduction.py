"""Types that `onnx` leaves open."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from collage_core.errors import ModelError
from collage_core.ir import TensorType, from_model
from collage_core.ir.passes import normalise
from collage_core.ir.static import require_static
from collage_core.reference import evaluate
from collage_core.testing import make_graph, make_model, node

X = np.random.default_rng(0).standard_normal((2, 8, 4, 4)).astype(np.float32)


@pytest.mark.parametrize("is_constant", [False, True])
@pytest.mark.parametrize(("opset", "count"), [(18, 2), (20, 2), (21, 8), (23, 8)])
def test_group_normalization_has_the_shape_of_its_input(opset: int, count: int, is_constant: bool) -> None:
    scale, bias = np.linspace(1, 2, count, dtype=np.float32), np.linspace(0, 1, count, dtype=np.float32)
    given = {"s": scale, "b": bias}
    nodes = [node("GroupNormalization", ["x", "s", "b"], "g", num_groups=2), node("Relu", ["g"], "y")]
    inputs = {"x": X} if is_constant else {"x": X, **given}
    graph = normalise(make_graph(nodes, inputs, given if is_constant else None, opset=opset))
    require_static(graph)
    assert graph.type_of("g") == TensorType("float32", X.shape)
    groups = X.reshape(2, 2, -1)
    mean, std = groups.mean(2, keepdims=True), np.sqrt(groups.var(2, keepdims=True) + 1e-5)
    plain = ((groups - mean) / std).reshape(X.shape)
    each = 8 // count
    expected = plain * scale.repeat(each)[:, None, None] + bias.repeat(each)[:, None, None]
    np.testing.assert_allclose(evaluate(graph, inputs)["y"], np.maximum(expected, 0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("keepdims", [0, 1])
def test_axes_that_are_an_input_leave_the_shape_to_what_is_declared(keepdims: int) -> None:
    inputs = {"x": X, "axes": np.array([1, -1])}
    nodes = [
        node("Exp", ["x"], "e"),
        node("ReduceSum", ["e", "axes"], "s", keepdims=keepdims),
        node("Log", ["s"], "l"),
        node("CastLike", ["l", "x"], "y"),
    ]
    expected = np.log(np.exp(X).sum((1, 3), keepdims=bool(keepdims)))
    declared = {"y": TensorType("float32", expected.shape)}
    graph = normalise(make_graph(nodes, inputs, None, ["y"], types=declared))
    require_static(graph)
    assert graph.type_of("s") == declared["y"]
    np.testing.assert_allclose(evaluate(graph, inputs)["y"], expected, rtol=1e-5)


def test_without_a_declaration_the_reason_is_told() -> None:
    nodes = [node("ReduceSum", ["x", "axes"], "s", keepdims=0), node("Log", ["s"], "y")]
    graph = make_graph(nodes, {"x": X, "axes": np.array([1])})
    with pytest.raises(ModelError, match=r"shape of 's'.*known only when the model runs"):
        require_static(graph)


def test_one_size_that_is_declared_tells_equal_ones() -> None:
    inputs = {"n": np.array(5.0, np.float32)}
    constants = {"zero": np.float32(0), "one": np.float32(1)}
    nodes = [
        node("Range", ["zero", "n", "one"], "r"),
        node("Cos", ["r"], "c"),
        node("Mul", ["c", "r"], "m"),
        node("Neg", ["m"], "y"),
    ]
    declared = {"y": TensorType("float32", (5,))}
    graph = normalise(make_graph(nodes, inputs, constants, ["y"], types=declared))
    require_static(graph)
    assert {str(graph.type_of(v)) for v in "rcmy"} == {"float32[5]"}
    counted = np.arange(5, dtype=np.float32)
    np.testing.assert_allclose(evaluate(graph, inputs)["y"], -np.cos(counted) * counted, rtol=1e-6)


def test_what_is_declared_of_outputs_leaves_open_inputs_open() -> None:
    model = make_model([node("Neg", ["x"], "n"), node("Relu", ["n"], "y")], {"x": X[0, 0]})
    dims = model.graph.input[0].type.tensor_type.shape.dim
    dims[0].dim_param = "batch"
    model.graph.output[0].CopyFrom(model.graph.input[0])
    model.graph.output[0].name = "y"
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 4
    graph = from_model(model)
    assert graph.type_of("x").symbolic_dims == ("batch",)
    with pytest.raises(ModelError, match="open dimension 'batch'"):
        require_static(graph)


def test_axes_computed_from_shapes_are_constants() -> None:
    nodes = [
        node("Exp", ["x"], "e"),
        node("Shape", ["e"], "shape"),
        node("Size", ["shape"], "rank"),
        node("Range", ["zero", "rank", "one"], "axes"),
        node("ReduceSum", ["e", "axes"], "s", keepdims=0),
        node("Log", ["s"], "y"),
    ]
    graph = normalise(make_graph(nodes, {"x": X}, {"zero": np.array(0), "one": np.array(1)}))
    require_static(graph)
    assert [n.op_type for n in graph.nodes] == ["Exp", "ReduceSum", "Log"]
    np.testing.assert_allclose(evaluate(graph, {"x": X})["y"], np.log(np.exp(X).sum()), rtol=1e-5)


@pytest.mark.parametrize("attributes", [{}, {"axes": [1]}], ids=str)
@pytest.mark.parametrize("opset", [9, 13, 20])
def test_mean_variance_normalization_need_not_state_its_axes(opset: int, attributes: dict[str, Any]) -> None:
    nodes = [node("MeanVarianceNormalization", ["x"], "m", **attributes), node("Neg", ["m"], "y")]
    graph = normalise(make_graph(nodes, {"x": X}, opset=opset))
    require_static(graph)
    over = tuple(attributes.get("axes", (0, 2, 3)))
    expected = (X.mean(over, keepdims=True) - X) / X.std(over, keepdims=True)
    np.testing.assert_allclose(evaluate(graph, {"x": X})["y"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attributes", [{}, {"axis": 1}, {"axis": -2}], ids=str)
def test_a_constant_condition_tells_what_compress_yields(attributes: dict[str, int]) -> None:
    chosen = np.array([True, False, True])
    nodes = [node("Compress", ["x", "c"], "m", **attributes), node("Neg", ["m"], "y")]
    graph = normalise(make_graph(nodes, {"x": X}, {"c": chosen}))
    require_static(graph)
    expected = -np.compress(chosen, X, attributes.get("axis"))
    assert graph.type_of("y") == TensorType("float32", expected.shape)
    np.testing.assert_array_equal(evaluate(graph, {"x": X})["y"], expected)


def test_a_constant_shape_tells_what_max_unpool_yields() -> None:
    inputs: dict[str, Any] = {"x": X[:, :, :2, :2], "i": np.arange(64).reshape(2, 8, 2, 2)}
    nodes = [node("MaxUnpool", ["x", "i", "s"], "m", kernel_shape=[2, 2]), node("Neg", ["m"], "y")]
    graph = normalise(make_graph(nodes, inputs, {"s": np.array([2, 8, 5, 4])}))
    require_static(graph)
    assert evaluate(graph, inputs)["y"].shape == (2, 8, 5, 4)
