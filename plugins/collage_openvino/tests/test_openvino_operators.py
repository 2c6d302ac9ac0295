"""Operators one by one, against the reference evaluator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import pytest
from collage_benchmarks.written import written
from collage_openvino.backend import OpenvinoBackend

from collage_core.backend import Variant
from collage_core.formats import Array
from collage_core.ir import Subgraph
from collage_core.target import Target
from collage_core.testing import check_group, make_group, node

RANDOM = np.random.default_rng(5)


class Check(Protocol):
    def __call__(self, *arguments: Any, **settings: Any) -> list[Variant]: ...


def f(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> Array:
    return np.abs(f(*shape)) + np.float32(0.1)


def whole(*shape: int, low: int = 0, high: int = 9, dtype: str = "int64") -> Array:
    return RANDOM.integers(low, high, shape).astype(dtype)


UNARY = [
    "Abs",
    "Ceil",
    "Elu",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "LeakyRelu",
    "Mish",
    "Neg",
    "Relu",
]
UNARY += [
    "Round",
    "Selu",
    "Sigmoid",
    "Sign",
    "Sin",
    "Softplus",
    "Softsign",
    "Tanh",
    "Cos",
    "Atan",
]


@pytest.mark.parametrize("op", UNARY)
def test_unary(check: Check, op: str) -> None:
    check([node(op, ["x"], ["o"])], {"x": f(3, 5, 7)})


@pytest.mark.parametrize("op", ["Sqrt", "Log", "Reciprocal"])
def test_unary_of_positive_numbers(check: Check, op: str) -> None:
    check([node(op, ["x"], ["o"])], {"x": positive(3, 5, 7)})


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu"])
@pytest.mark.parametrize("shape", [(3, 5, 7), (5, 1), (1,), ()])
def test_binary_with_broadcasting(check: Check, op: str, shape: tuple[int, ...]) -> None:
    check([node(op, ["x", "y"], ["o"])], {"x": f(3, 5, 7), "y": positive(*shape)})


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul"])
def test_integer_arithmetic(check: Check, op: str) -> None:
    x, y = whole(3, 5, low=-40, high=40, dtype="int32"), whole(5, low=1, high=9, dtype="int32")
    check([node(op, ["x", "y"], ["o"])], {"x": x, "y": y})


@pytest.mark.parametrize("op", ["Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"])
def test_comparison(check: Check, op: str) -> None:
    check(
        [node(op, ["x", "y"], ["o"])],
        {"x": whole(4, 6, dtype="int8"), "y": whole(6, dtype="int8")},
    )


@pytest.mark.parametrize("op", ["And", "Or", "Xor"])
def test_logic(check: Check, op: str) -> None:
    inputs = {v: whole(4, 6, high=2, dtype="bool") for v in "xy"}
    check([node(op, ["x", "y"], ["n"]), node("Not", ["n"], ["o"])], inputs, ("n", "o"))


@pytest.mark.parametrize(
    ("kernel", "pads", "strides", "dilations", "group"),
    [
        ((3, 3), (1, 1, 1, 1), (1, 1), (1, 1), 1),
        ((3, 3), (0, 1, 2, 1), (2, 1), (1, 1), 1),
        ((1, 1), (0, 0, 0, 0), (1, 1), (1, 1), 1),
        ((3, 2), (1, 0, 1, 0), (1, 2), (2, 1), 4),
        ((3, 3), (1, 1, 1, 1), (1, 1), (1, 1), 8),
    ],
)
def test_convolution(check: Check, kernel: Any, pads: Any, strides: Any, dilations: Any, group: int) -> None:
    made = node("Conv", ["x", "w", "b"], ["o"], pads=pads, strides=strides, dilations=dilations, group=group)
    variants = check([made], {"x": f(2, 8, 11, 9)}, constants={"w": f(8, 8 // group, *kernel), "b": f(8)})
    assert len(variants) == 2


@pytest.mark.parametrize("rank", [1, 3])
def test_convolution_of_other_ranks(check: Check, rank: int) -> None:
    made = node("Conv", ["x", "w"], ["o"], pads=[1] * 2 * rank)
    check([made], {"x": f(1, 6, *[7] * rank)}, constants={"w": f(5, 6, *[3] * rank)})


def test_transposed_convolution(check: Check) -> None:
    made = node("ConvTranspose", ["x", "w"], ["o"], strides=[2, 2], pads=[1] * 4, output_padding=[1, 1])
    check([made], {"x": f(1, 6, 5, 5)}, constants={"w": f(6, 4, 3, 3)})


@pytest.mark.parametrize(
    "attributes",
    [
        {"pads": [1, 1, 1, 1], "count_include_pad": 1},
        {"pads": [1, 1, 1, 1], "count_include_pad": 0},
        {"pads": [0, 1, 1, 0], "strides": [2, 2], "ceil_mode": 1},
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    ],
)
def test_average_pooling(check: Check, attributes: Mapping[str, Any]) -> None:
    made = node("AveragePool", ["x"], ["o"], kernel_shape=[3, 3], **attributes)
    check([made], {"x": f(1, 4, 8, 10)})


@pytest.mark.parametrize(
    "attributes",
    [
        {"pads": [1, 1, 1, 1]},
        {"strides": [2, 2], "ceil_mode": 1},
        {"dilations": [2, 1]},
        {"auto_pad": "SAME_LOWER"},
    ],
)
def test_maximum_pooling(check: Check, attributes: Mapping[str, Any]) -> None:
    check([node("MaxPool", ["x"], ["o"], kernel_shape=[3, 3], **attributes)], {"x": f(1, 4, 8, 10)})


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool"])
def test_global_pooling(check: Check, op: str) -> None:
    check([node(op, ["x"], ["o"])], {"x": f(2, 4, 5, 7)})


@pytest.mark.parametrize("size", [3, 5])
def test_local_response_normalization(check: Check, size: int) -> None:
    check(
        [node("LRN", ["x"], ["o"], size=size, alpha=0.01, beta=0.5, bias=2.0)],
        {"x": f(1, 7, 5, 4)},
    )


def test_batch_normalization(check: Check) -> None:
    made = node("BatchNormalization", ["x", "s", "b", "m", "v"], ["o"])
    constants = {"s": f(6), "b": f(6), "m": f(6), "v": positive(6)}
    check([made], {"x": f(2, 6, 5, 4)}, constants=constants)


def test_layer_normalization(check: Check) -> None:
    made = node("LayerNormalization", ["x", "s", "b"], ["o"], axis=-1)
    check([made], {"x": f(2, 9, 16)}, constants={"s": f(16), "b": f(16)})


def test_instance_normalization(check: Check) -> None:
    made = node("InstanceNormalization", ["x", "s", "b"], ["o"])
    check([made], {"x": f(2, 6, 5, 4)}, constants={"s": f(6), "b": f(6)})


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax(check: Check, op: str, axis: int) -> None:
    check([node(op, ["x"], ["o"], axis=axis)], {"x": f(3, 5, 7)})


@pytest.mark.parametrize(
    "shapes", [((4, 6), (6, 5)), ((3, 4, 6), (6, 5)), ((2, 1, 4, 6), (3, 6, 5)), ((6,), (6, 5))]
)
@pytest.mark.parametrize("constant", [False, True])
def test_matrix_product(
    check: Check, shapes: tuple[tuple[int, ...], tuple[int, ...]], constant: bool
) -> None:
    a, b = (f(*s) for s in shapes)
    made = node("MatMul", ["a", "b"], ["o"])
    check([made], {"a": a} if constant else {"a": a, "b": b}, constants={"b": b} if constant else None)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
def test_products_with_quantized_constants_are_exact(per_channel: bool, symmetric: bool) -> None:
    """What the constant is multiplied with is not quantized, too."""
    nodes = [
        node("DequantizeLinear", ["q", "s", "z"][: 2 if symmetric else 3], ["w"], axis=1),
        node("MatMul", ["x", "w"], ["o"]),
    ]
    channels = (128,) if per_channel else ()
    constants = {
        "q": whole(256, 128, low=-128, high=128, dtype="int8"),
        "s": positive(*channels) / np.float32(64),
        "z": np.asarray(whole(*channels, low=-9, dtype="int8")),
    }
    if symmetric:
        del constants["z"]
    x = f(32, 256)
    part = make_group(nodes, {"x": x}, constants)
    backend, target = OpenvinoBackend(), Target("cpu", 2)
    check_group(backend, part, {"x": x}, target, tolerances={"float32": 1e-5}, repeatable=False)


@pytest.mark.parametrize("transposed", [(0, 0), (1, 0), (0, 1)])
def test_gemm(check: Check, transposed: tuple[int, int]) -> None:
    a = f(6, 4) if transposed[0] else f(4, 6)
    b = f(5, 6) if transposed[1] else f(6, 5)
    made = node(
        "Gemm", ["a", "b", "c"], ["o"], transA=transposed[0], transB=transposed[1], alpha=0.5, beta=2.0
    )
    check([made], {"a": a}, constants={"b": b, "c": f(5)})


@pytest.mark.parametrize(
    "op", ["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2"]
)
@pytest.mark.parametrize("axes", [[-1], [1], [0, 2]])
def test_reduction(check: Check, op: str, axes: list[int]) -> None:
    made = node(op, ["x", "axes"], ["o"], keepdims=0)
    check([made], {"x": f(3, 5, 7)}, constants={"axes": np.array(axes)})


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_arguments_of_extrema(check: Check, op: str) -> None:
    check([node(op, ["x"], ["o"], axis=1)], {"x": f(3, 5, 7)})


@pytest.mark.parametrize(
    ("mode", "transform", "nearest"),
    [
        ("nearest", "asymmetric", "floor"),
        ("nearest", "half_pixel", "round_prefer_floor"),
        ("linear", "half_pixel", "round_prefer_floor"),
        ("linear", "align_corners", "round_prefer_floor"),
        ("cubic", "half_pixel", "round_prefer_floor"),
    ],
)
def test_resize(check: Check, mode: str, transform: str, nearest: str) -> None:
    made = node(
        "Resize",
        ["x", "", "s"],
        ["o"],
        mode=mode,
        coordinate_transformation_mode=transform,
        nearest_mode=nearest,
    )
    check([made], {"x": f(1, 3, 5, 6)}, constants={"s": np.array([1, 1, 2, 2], np.float32)})


def test_moving(check: Check) -> None:
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[2, 0, 1]),
        node("Reshape", ["t", "shape"], ["r"]),
        node("Slice", ["r", "starts", "ends", "axes", "steps"], ["s"]),
        node("Split", ["s"], ["p", "q"], axis=0, num_outputs=2),
        node("Concat", ["p", "q", "p"], ["c"], axis=1),
        node("Unsqueeze", ["c", "axes"], ["o"]),
    ]
    constants = {
        "shape": np.array([8, -1]),
        "starts": np.array([-1]),
        "ends": np.array([-9]),
        "axes": np.array([1]),
        "steps": np.array([-2]),
    }
    check(nodes, {"x": f(4, 6, 8)}, ("t", "s", "o"), constants)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_pad(check: Check, mode: str) -> None:
    check(
        [node("Pad", ["x", "p"], ["o"], mode=mode)],
        {"x": f(1, 3, 5, 6)},
        constants={"p": np.array([0, 0, 1, 2, 0, 0, 2, 1])},
    )


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_with_negative_indices(check: Check, axis: int) -> None:
    check(
        [node("Gather", ["x", "i"], ["o"], axis=axis)],
        {"x": f(5, 6, 7), "i": whole(2, 3, low=-5, high=5)},
    )


def test_gather_elements_and_nd(check: Check) -> None:
    nodes = [
        node("GatherElements", ["x", "i"], ["o"], axis=1),
        node("GatherND", ["x", "j"], ["p"]),
    ]
    inputs = {"x": f(5, 6), "i": whole(5, 3, low=-6, high=6), "j": whole(4, 2, low=-5, high=5)}
    check(nodes, inputs, ("o", "p"))


def test_where_and_casts(check: Check) -> None:
    nodes = [
        node("Cast", ["i"], ["c"], to=1),
        node("Where", ["m", "x", "c"], ["o"]),
        node("Cast", ["k"], ["b"], to=9),
        node("Cast", ["x"], ["n"], to=6),
    ]
    inputs = {
        "i": whole(6, low=-9, dtype="int32"),
        "m": whole(4, 1, high=2, dtype="bool"),
        "x": np.where(whole(4, 6, high=2, dtype="bool"), f(4, 6) * 9, np.float32(0)),
        "k": whole(4, 6, low=-1, high=2, dtype="int8"),
    }
    check(nodes, inputs, ("o", "b", "n"))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "bool", "float32"])
def test_values_of_every_dtype_cross_the_border(check: Check, dtype: str) -> None:
    x = whole(4, 6, high=2 if dtype == "bool" else 99, dtype=dtype)
    check([node("Transpose", ["x"], ["o"])], {"x": x})


def test_scalars(check: Check) -> None:
    check(
        [node("Mul", ["x", "y"], ["m"]), node("Exp", ["m"], ["o"])],
        {"x": f(), "y": f()},
    )


@pytest.mark.parametrize("op", ["LSTM", "GRU"])
def test_recurrence(check: Check, op: str) -> None:
    gates, hidden = {"LSTM": 4, "GRU": 3}[op], 6
    made = node(op, ["x", "w", "r"], ["y", "h"], hidden_size=hidden)
    constants = {"w": f(1, gates * hidden, 5) / 4, "r": f(1, gates * hidden, hidden) / 4}
    check([made], {"x": f(7, 2, 5)}, ("y", "h"), constants)


@pytest.mark.parametrize("channels", [(1, 8), (16, 32)])
def test_quantised(channels: tuple[int, int]) -> None:
    """A layer between Quantize and Dequantize."""
    rows, columns = channels
    scales = RANDOM.uniform(0.002, 0.004, columns).astype(np.float32)
    constants = {
        "wq": whole(columns, rows, 3, 3, low=-127, high=128, dtype="int8"),
        "ws": scales,
        "bq": whole(columns, low=-2000, high=2000, dtype="int32"),
        "bs": scales * np.float32(0.03),
    }
    graph = written(
        f"""(float[1,{rows},12,12] x) => (float[1,{columns},12,12] y)
        <float s = {{0.03}}, uint8 z = {{128}}, float t = {{0.02}}> {{
        q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z)
        w = DequantizeLinear <axis: int = 0> (wq, ws) b = DequantizeLinear <axis: int = 0> (bq, bs)
        c = Conv <pads: ints = [1, 1, 1, 1]> (d, w, b) r = Relu (c)
        p = QuantizeLinear (r, t, z) y = DequantizeLinear (p, t, z) }}""",
        constants,
    )
    group = Subgraph(graph, graph.all_nodes)
    check_group(OpenvinoBackend(), group, {"x": f(1, rows, 12, 12)}, Target("cpu", 2), repeatable=False)
