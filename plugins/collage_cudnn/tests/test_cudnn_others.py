"""What is no convolution, planned and reckoned by NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from collage_cudnn.backend import CudnnBackend
from collage_cudnn.description import Call, Description
from collage_cudnn.planning.others import plan_conversion
from cudnn_checks import TARGET, RunGroup, each, in_memory
from cudnn_emulator import emulate

from collage_core.formats import Array, Format
from collage_core.ir import TensorType
from collage_core.testing import node

_RNG = np.random.default_rng(0)


def _random(*shape: int) -> Array:
    return _RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("a", "b"), [((5, 7), (7, 3)), ((2, 5, 7), (7, 3)), ((2, 3, 5, 7), (7, 4)), ((1, 7), (7, 1))]
)
def test_product_with_a_matrix(run_group: RunGroup, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    constants = {"b": _random(*b), "bias": _random(b[1])}
    residual = _random(*a[:-1], b[1])
    nodes = [
        node("MatMul", ["a", "b"], "p"),
        node("Add", ["bias", "p"], "s"),
        node("Add", ["s", "r"], "t"),
        node("Gelu", ["t"], "y"),
    ]
    run_group(nodes, {"a": _random(*a), "r": residual}, constants)
    run_group(nodes[:1], {"a": _random(*a)}, {"b": constants["b"]})
    run_group(nodes[:1], {"a": _random(*a), "b": constants["b"]})


@pytest.mark.parametrize(
    ("a", "b"),
    [((3, 5, 7), (3, 7, 4)), ((2, 3, 5, 7), (2, 3, 7, 4)), ((1, 5, 7), (3, 7, 4)), ((2, 3, 5, 7), (1, 7, 4))],
)
def test_batches(run_group: RunGroup, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    nodes = [node("MatMul", ["a", "b"], "p"), node("Div", ["p", "root"], "y")]
    run_group(nodes, {"a": _random(*a), "b": _random(*b)}, {"root": np.array(8, np.float32)})
    run_group(nodes[:1], {"a": _random(*a)}, {"b": _random(*b)})
    run_group(nodes[:1], {"b": _random(*b)}, {"a": _random(*a)})


@pytest.mark.parametrize("is_transposed", [0, 1])
@pytest.mark.parametrize("is_constant", [False, True])
def test_gemm(run_group: RunGroup, is_transposed: int, is_constant: bool) -> None:
    b = _random(*((4, 7) if is_transposed else (7, 4)))
    nodes = [node("Gemm", ["a", "b", "c"], "p", transB=is_transposed), node("Tanh", ["p"], "y")]
    given = {"b": b} if is_constant else {}
    read = {} if is_constant else {"b": b}
    run_group(nodes, {"a": _random(5, 7), **read}, {**given, "c": _random(4)})
    run_group(nodes, {"a": _random(5, 7), **read, "c": _random(5, 4)}, given)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("Abs", {}),
        ("Ceil", {}),
        ("Cos", {}),
        ("Elu", {}),
        ("Erf", {}),
        ("Exp", {}),
        ("Floor", {}),
        ("Gelu", {}),
        ("Gelu", {"approximate": "tanh"}),
        ("HardSigmoid", {"alpha": 0.3}),
        ("HardSwish", {}),
        ("LeakyRelu", {"alpha": 0.1}),
        ("Mish", {}),
        ("Neg", {}),
        ("Reciprocal", {}),
        ("Relu", {}),
        ("Sigmoid", {}),
        ("Sin", {}),
        ("Softplus", {}),
        ("Softsign", {}),
        ("Tan", {}),
        ("Tanh", {}),
    ],
)
def test_unary(run_group: RunGroup, op: str, attributes: dict[str, Any]) -> None:
    x = _random(2, 3, 4, 5)
    x[np.abs(x) < 0.2] = 0.5
    x[np.abs(np.abs(x) - np.pi / 2) < 0.2] = 0.5
    run_group([node(op, ["x"], "y", **attributes)], {"x": x})


@pytest.mark.parametrize("op", ["Log", "Sqrt"])
def test_of_positive_numbers(run_group: RunGroup, op: str) -> None:
    run_group([node(op, ["x"], "y")], {"x": np.abs(_random(2, 3)) + 0.1})


@pytest.mark.parametrize("op", ["Add", "Div", "Max", "Min", "Mul", "Sub"])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((2, 3, 4, 5), (2, 3, 4, 5)),
        ((2, 3, 4, 5), (3, 1, 1)),
        ((2, 3, 4, 5), (2, 1, 4, 1)),
        ((2, 3, 4, 5), (1,)),
        ((4, 5), (5,)),
        ((5,), (4, 5)),
        ((3, 1, 5), (3, 4, 5)),
        ((2, 3, 4, 5, 6), (3, 1, 5, 6)),
        ((7,), (7,)),
        ((), ()),
    ],
)
def test_binary(run_group: RunGroup, op: str, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    other = np.asarray(np.abs(_random(*b)) + 0.5, np.float32)
    x = np.asarray(_random(*a), np.float32)
    run_group([node(op, ["a", "b"], "y")], {"a": x, "b": other})
    if np.broadcast_shapes(a, b) == a:
        run_group([node(op, ["a", "b"], "y")], {"a": x}, {"b": other})
    if np.broadcast_shapes(a, b) == b:
        run_group([node(op, ["a", "b"], "y")], {"b": other}, {"a": x})


@pytest.mark.parametrize("op", ["Max", "Mean", "Min", "Sum"])
def test_of_three(run_group: RunGroup, op: str) -> None:
    inputs = {"a": _random(2, 3, 4), "b": _random(3, 1), "c": _random(2, 3, 4)}
    run_group([node(op, ["a", "b", "c"], "y")], inputs)


@pytest.mark.parametrize("op", ["Max", "Mean", "Min", "Sum"])
def test_of_one(run_group: RunGroup, op: str) -> None:
    for asked in each(run_group([node(op, ["a"], "y")], {"a": _random(2, 3)})):
        assert isinstance(asked, Description)
        assert len(asked.steps) == (2 if op == "Mean" else 1)


@pytest.mark.parametrize(("low", "high"), [(None, None), (0, None), (-0.5, None), (None, 0.5), (-0.5, 0.5)])
def test_clip(run_group: RunGroup, low: float | None, high: float | None) -> None:
    given = {n: np.array(v, np.float32) for n, v in (("low", low), ("high", high)) if v is not None}
    names = [n if n in given else "" for n in ("low", "high")]
    x = _random(2, 3)
    x[0] = np.inf, -np.inf, np.nan
    run_group([node("Clip", ["x", *names], "y")], {"x": x}, given)


@pytest.mark.parametrize("exponent", [2, 3])
def test_power(run_group: RunGroup, exponent: int) -> None:
    run_group([node("Pow", ["x", "e"], "y")], {"x": _random(2, 3)}, {"e": np.array(exponent, np.float32)})


def test_decomposed_gelu(run_group: RunGroup) -> None:
    constants = {n: np.array(v, np.float32) for n, v in (("root", np.sqrt(2)), ("one", 1), ("half", 0.5))}
    nodes = [
        node("Div", ["x", "root"], "d"),
        node("Erf", ["d"], "e"),
        node("Add", ["e", "one"], "a"),
        node("Mul", ["x", "a"], "m"),
        node("Mul", ["m", "half"], "y"),
    ]
    for asked in each(run_group(nodes, {"x": _random(1, 8, 12)}, constants)):
        assert isinstance(asked, Description)
        assert asked.tensors[asked.output].dims == (1, 1, 96)


@pytest.mark.parametrize("shape", [(5, 6), (2, 6, 3, 4), (2, 6, 3)])
def test_batch_normalisation(run_group: RunGroup, shape: tuple[int, ...]) -> None:
    constants = {n: np.abs(_random(6)) for n in ("scale", "bias", "mean", "var")}
    run_group([node("BatchNormalization", ["x", *constants], "y")], {"x": _random(*shape)}, constants)


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("has_bias", [False, True])
def test_layer_normalisation(run_group: RunGroup, axis: int, has_bias: bool) -> None:
    shape = (2, 3, 8)
    named = ("scale", "bias") if has_bias else ("scale",)
    constants = {n: _random(*shape[axis:]) for n in named}
    nodes = [node("LayerNormalization", ["x", *constants], "y", axis=axis, epsilon=1e-3)]
    run_group(nodes, {"x": _random(*shape)}, constants)
    run_group(nodes, {"x": _random(*shape), **constants})


@pytest.mark.parametrize("scaling", ["Div", "Mul", None])
def test_attention(run_group: RunGroup, scaling: str | None) -> None:
    inputs = {"q": _random(2, 3, 5, 8), "k": _random(2, 3, 8, 7), "v": _random(2, 3, 7, 16)}
    scaled = [] if scaling is None else [node(scaling, ["p", "root"], "s")]
    nodes = [
        node("MatMul", ["q", "k"], "p"),
        *scaled,
        node("Softmax", ["s" if scaled else "p"], "w", axis=-1),
        node("MatMul", ["w", "v"], "y"),
    ]
    constants = {"root": np.array(np.sqrt(8), np.float32)} if scaled else {}
    found = run_group(nodes, inputs, constants)
    assert {f.dtype for v in found for f in v.inputs} == {"bfloat16", "float16"}
    assert [s.kind for a in each(found) if isinstance(a, Description) for s in a.steps] == ["sdpa"] * 4


@pytest.mark.parametrize("op", ["LogSoftmax", "Softmax"])
@pytest.mark.parametrize("axis", [-1, 0, 1, 2])
def test_softmax(run_group: RunGroup, op: str, axis: int) -> None:
    run_group([node(op, ["x"], "y", axis=axis)], {"x": _random(2, 3, 4, 5)})


@pytest.mark.parametrize("op", ["L1", "L2", "Max", "Mean", "Min", "Prod", "Sum"])
@pytest.mark.parametrize("axes", [[1], [-1], [0, 2], [2, 3], [0, 1, 2, 3]])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_reduction(run_group: RunGroup, op: str, axes: list[int], keepdims: int) -> None:
    constants = {"axes": np.array(axes, np.int64)}
    run_group(
        [node(f"Reduce{op}", ["x", "axes"], "y", keepdims=keepdims)], {"x": _random(2, 3, 4, 5)}, constants
    )


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool"])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 3, 4), (1, 2, 3, 4, 5)])
def test_global_pool(run_group: RunGroup, op: str, shape: tuple[int, ...]) -> None:
    run_group([node(op, ["x"], "y")], {"x": _random(*shape)})


@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((2, 3, 9, 8), {"kernel_shape": [3, 2]}),
        ((2, 3, 9, 9), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ((2, 3, 8, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 0, 0]}),
        ((2, 3, 9, 9), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
        ((2, 3, 8, 8), {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER"}),
        ((2, 3, 9), {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}),
        ((1, 2, 5, 6, 7), {"kernel_shape": [2, 3, 2], "strides": [1, 2, 2]}),
    ],
)
@pytest.mark.parametrize("op", ["AveragePool", "MaxPool"])
def test_pool(run_group: RunGroup, op: str, shape: tuple[int, ...], attributes: dict[str, Any]) -> None:
    run_group([node(op, ["x"], "y", **attributes)], {"x": _random(*shape)})


def test_padding_that_is_counted(run_group: RunGroup) -> None:
    nodes = [node("AveragePool", ["x"], "y", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1)]
    for asked in each(run_group(nodes, {"x": _random(2, 3, 6, 6)})):
        assert isinstance(asked, Call)
        assert asked.settings["mode"] == "average_include_padding"


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4), (2, 3, 4, 5), (2, 3, 4, 5, 6)])
def test_conversion(backend: CudnnBackend, shape: tuple[int, ...]) -> None:
    x, order = _random(*shape), tuple(reversed(range(len(shape))))
    ways = [Format.of("float32", shape, o, "cuda") for o in (sorted(order), order)]
    ways += [Format.of("float16", shape, o, "cuda") for o in (sorted(order), order)]
    type = TensorType("float32", shape)
    for source in ways:
        for destination in ways:
            is_one = source.dtype == destination.dtype or source.layout == destination.layout
            if is_one and backend.converts(type, source, destination, TARGET):
                found = emulate(plan_conversion(type, source, destination), [in_memory(x, source)])
                np.testing.assert_array_equal(found, in_memory(x, destination))


def test_conversions_offered(backend: CudnnBackend) -> None:
    shape = (2, 3, 4, 5)
    type = TensorType("float32", shape)
    plain, last = (Format.of("float32", shape, o, "cuda") for o in ((0, 1, 2, 3), (0, 2, 3, 1)))
    half = Format("float16", plain.layout, "cuda")
    assert backend.converts(type, plain, last, TARGET)
    assert backend.converts(type, plain, half, TARGET)
    assert backend.converts(type, half, last, TARGET)
    assert not backend.converts(type, plain, plain, TARGET)
    assert not backend.converts(type, plain, last.on("cpu"), TARGET)
