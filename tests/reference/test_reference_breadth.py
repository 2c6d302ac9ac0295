"""What ONNX allows and `onnx.reference` refuses, through the passes and our operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage_core.ir import from_model
from collage_core.ir.passes import normalise
from collage_core.ir.static import require_static
from collage_core.reference import evaluate
from collage_core.testing import make_model, node

Arrays = Mapping[str, npt.NDArray[Any]]

FLOATS = ("float16", "float32", "float64")


def ours(model: onnx.ModelProto, inputs: Arrays) -> list[npt.NDArray[Any]]:
    """What the reference makes of the normalised model; first it must make the same of the model itself."""
    read = from_model(model)
    graph = normalise(read)
    require_static(graph)
    before, after = (list(evaluate(g, inputs).values()) for g in (read, graph))
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)
    return after


def runtime(model: onnx.ModelProto, inputs: Arrays) -> list[npt.NDArray[Any]]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, dict(inputs)))


def is_onnx_runtimes(
    nodes: Sequence[onnx.NodeProto], inputs: Arrays, constants: Arrays | None = None, opset: int = 20
) -> None:
    model = make_model(nodes, inputs, constants, opset=opset)
    for got, expected in zip(ours(model, inputs), runtime(model, inputs), strict=True):
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        rtol = 2e-3 if got.dtype == np.float16 else 1e-5
        np.testing.assert_allclose(got, expected, rtol=rtol, atol=1e-6)


def numbers(*shape: int, seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([2, 11, 13, 18, 19, 21]),
    st.sampled_from(["constant", "reflect", "edge", "wrap"]),
    st.lists(st.integers(-2, 2), min_size=4, max_size=4),
    st.booleans(),
)
def test_pad_removes_what_is_negative(opset: int, mode: str, pads: list[int], some_axes: bool) -> None:
    mode = "edge" if mode == "wrap" and opset < 19 else mode
    x, reads = numbers(5, 6), ["x"]
    constants: dict[str, npt.NDArray[Any]] = {}
    attributes: dict[str, Any] = {"mode": mode}
    if opset < 11:
        attributes |= {"pads": pads, "value": 1.5}
    else:
        constants = {"p": np.array(pads), "c": np.array(1.5, np.float32)}
        reads += ["p", "c"]
    if some_axes and opset >= 18:
        constants |= {"p": np.array(pads[:2]), "a": np.array([-1])}
        reads.append("a")
    is_onnx_runtimes([node("Pad", reads, "y", **attributes)], {"x": x}, constants, opset)


@pytest.mark.parametrize("shape", [(2, 3, 7), (2, 3, 4, 5), (2, 3, 4, 3, 2)], ids=len)
@pytest.mark.parametrize("op", ["GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool"])
def test_global_pools_of_any_rank(op: str, shape: tuple[int, ...]) -> None:
    is_onnx_runtimes([node(op, ["x"], "y")], {"x": numbers(*shape)})


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("opset", [13, 20, 22])
def test_global_lp_pool_by_definition(p: int, opset: int) -> None:
    x = numbers(2, 3, 4, 5).astype(np.float64)
    (y,) = ours(make_model([node("GlobalLpPool", ["x"], "y", p=p)], {"x": x}, opset=opset), {"x": x})
    expected = [[np.linalg.norm(plane.reshape(-1), p) for plane in image] for image in x]
    np.testing.assert_allclose(y.reshape(2, 3), expected)


@pytest.mark.parametrize("opset", [13, 20])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("shape", [(), (3, 4), (2, 0)], ids=str)
@pytest.mark.parametrize("dtype", [*FLOATS, "int32"])
@pytest.mark.parametrize("op", ["ReduceLogSumExp", "ReduceLogSum"])
def test_logarithms_of_sums(op: str, dtype: str, shape: tuple[int, ...], keepdims: int, opset: int) -> None:
    if dtype == "int32" and not np.prod(shape):
        return  # minus infinity has no integer
    x = np.asarray(np.abs(numbers(*shape)) * 5 + 1).astype(dtype)
    is_onnx_runtimes([node(op, ["x"], "y", keepdims=keepdims)], {"x": x}, opset=opset)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64"])
def test_logarithms_of_sums_of_integers_are_cut_off(dtype: str) -> None:
    x = np.array([[3, 3, 3, 1], [7, 0, 0, 0]], dtype)
    nodes = [node("ReduceLogSumExp", ["x", "a"], "e"), node("ReduceLogSum", ["x", "a"], "s")]
    model = make_model(nodes, {"x": x}, {"a": np.array([1])}, ["e", "s"])
    exponentials, sums = ours(model, {"x": x})
    assert exponentials.dtype == sums.dtype == dtype
    wide = x.astype(np.float64)
    np.testing.assert_array_equal(exponentials[:, 0], np.trunc(np.log(np.exp(wide).sum(1))))
    np.testing.assert_array_equal(sums[:, 0], np.trunc(np.log(wide.sum(1))))


def test_log_sum_exp_of_infinities() -> None:
    x = np.array([[-np.inf, -np.inf], [np.inf, 1], [-np.inf, 2], [1000, 1000]], np.float32)
    model = make_model([node("ReduceLogSumExp", ["x", "a"], "y", keepdims=0)], {"x": x}, {"a": [1]})
    (y,) = ours(model, {"x": x})
    np.testing.assert_allclose(y, [-np.inf, np.inf, 2, 1000 + np.log(2)])


@pytest.mark.parametrize("op", ["Mean", "Sum", "Max", "Min"])
def test_no_operand_need_have_the_shape_of_the_result(op: str) -> None:
    is_onnx_runtimes(
        [node(op, ["a", "b", "c"], "y")],
        {"a": numbers(1, 3), "b": numbers(2, 1, 3, seed=1), "c": np.array(2, np.float32)},
    )


def elementwise() -> list[tuple[str, int]]:
    """Operators, and how many float operands they take, whose result has the shape of theirs."""
    unary = (
        "Abs Acos Acosh Asin Asinh Atan Atanh Ceil Celu Clip Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid "
        "HardSwish Identity IsInf IsNaN LeakyRelu Log Mish Neg Reciprocal Relu Round Selu Shrink Sigmoid "
        "Sign Sin Sinh Softplus Softsign Sqrt Tan Tanh ThresholdedRelu"
    )
    binary = "Add Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mul Pow PRelu Sub Sum"
    return [(op, 1) for op in unary.split()] + [(op, 2) for op in binary.split()]


@pytest.mark.parametrize(("op", "count"), elementwise())
def test_rank_0_is_no_exception(op: str, count: int) -> None:
    for dtype in FLOATS:
        flat = {f"x{i}": np.array([0.75 + i / 4], dtype) for i in range(count)}
        scalars = {name: a.reshape(()) for name, a in flat.items()}
        (y,) = ours(make_model([node(op, list(flat), "y")], scalars), scalars)
        (expected,) = ours(make_model([node(op, list(flat), "y")], flat), flat)
        assert (y.shape, y.dtype) == ((), expected.dtype)
        np.testing.assert_array_equal(y, expected[0])


def test_softsign_is_onnx_runtimes() -> None:
    is_onnx_runtimes([node("Softsign", ["x"], "y")], {"x": numbers(3, 4)})


@pytest.mark.parametrize("opset", [10, 13, 18, 19, 21])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
def test_dequantize_linear_at_every_opset(dtype: str, opset: int) -> None:
    x = np.arange(24).reshape(2, 3, 4).astype(dtype)
    constants: dict[str, Any] = {"s": np.float32(0.25), "z": np.zeros((), dtype)}
    if opset >= 13:
        constants = {"s": np.array([0.25, 0.5, 1], np.float32), "z": np.zeros(3, dtype)}
    is_onnx_runtimes([node("DequantizeLinear", ["x", "s", "z"], "y")], {"x": x}, constants, opset)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("opset", [9, 10])
def test_scatter_under_its_former_name(opset: int, axis: int) -> None:
    places = np.array([[2, 0, 3, 1], [0, 1, 2, 3]])
    places = places if axis == 0 else places.T
    inputs = {"x": numbers(4, 4), "i": places, "u": numbers(*places.shape, seed=1)}
    is_onnx_runtimes([node("Scatter", ["x", "i", "u"], "y", axis=axis)], inputs, opset=opset)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 1), *[st.integers(-2, 18)] * 4), min_size=1, max_size=3),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.sampled_from([1.0, 0.5, 0.7]),
)
def test_max_roi_pool_is_onnx_runtimes(
    rois: list[tuple[int, ...]], pooled: tuple[int, int], scale: float
) -> None:
    places = np.array([(image, *(c / 2 for c in corners)) for image, *corners in rois], np.float32)
    is_onnx_runtimes(
        [node("MaxRoiPool", ["x", "r"], "y", pooled_shape=list(pooled), spatial_scale=scale)],
        {"x": numbers(2, 3, 5, 7), "r": places},
    )


def test_prelu_of_zero_is_zero_whatever_the_slope() -> None:
    x = {"x": np.array([0, 0, 1, -1], np.float32), "s": np.array([np.inf, np.nan, np.nan, 2], np.float32)}
    graph = from_model(make_model([node("PRelu", ["x", "s"], "y")], x))
    np.testing.assert_array_equal(evaluate(graph, x)["y"], [0, 0, 1, -2])
