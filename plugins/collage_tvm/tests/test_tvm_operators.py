"""Every operator, alone, in every variant, against the reference evaluator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from collage_tvm.backend import TvmBackend
from collage_tvm.support import SUPPORTED

from collage_core.target import Target
from collage_core.testing import check_group, make_group, make_model, node

Check = Callable[..., list[Any]]
_random = np.random.default_rng(7)


def _f(*shape: int) -> Any:
    return _random.standard_normal(shape).astype(np.float32)


def _i(*shape: int, low: int = -9, high: int = 9, dtype: str = "int64") -> Any:
    return _random.integers(low, high, shape).astype(dtype)


def _b(*shape: int) -> Any:
    return _random.integers(0, 2, shape).astype(bool)


def _case(
    op: str,
    *inputs: Any,
    constants: dict[int, Any] | None = None,
    opset: int = 20,
    outputs: int = 1,
    **attributes: Any,
) -> Any:
    """A node whose inputs are the arrays given; those whose positions are in `constants` are constants, a
    None is absent."""
    name = f"{op}-{'x'.join(str(np.shape(i)) for i in inputs if i is not None)}-{attributes}-{opset}"
    return pytest.param(op, inputs, constants or {}, opset, outputs, attributes, id=name.replace(" ", ""))


_UNARY = [
    "Abs",
    "Ceil",
    "Celu",
    "Cos",
    "Elu",
    "Erf",
    "Exp",
    "Floor",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "LeakyRelu",
    "Mish",
    "Neg",
    "Reciprocal",
    "Relu",
    "Round",
    "Selu",
    "Shrink",
    "Sigmoid",
    "Sign",
    "Sin",
    "Softplus",
    "Softsign",
    "Tanh",
    "ThresholdedRelu",
]
_REDUCTIONS = [
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSumExp",
]


def _equal_and_strange(x: Any) -> Any:
    """Some of the values repeated; NaNs of both signs, zeros of both signs and infinities among them."""
    x = np.where(_random.integers(0, 2, x.shape) == 1, np.round(x), x).astype(x.dtype)
    strange = np.array([np.nan, -np.nan, 0.0, -0.0, np.inf, -np.inf], x.dtype)
    return np.where(_random.integers(0, 9, x.shape) == 1, _random.choice(strange, x.shape), x)


_ARGS = [
    *[
        _case(op, x, axis=a, keepdims=k, select_last_index=last)
        for op in ("ArgMax", "ArgMin")
        for x in (_f(5, 19, 40), _i(3, 40, 3), _equal_and_strange(_f(70, 3, 70)))
        for a, k, last in ((0, 1, 0), (1, 0, 1), (2, 1, 1), (-1, 0, 0))
    ],
    *[_case(op, _equal_and_strange(_f(9, 40).astype(np.float64)), axis=1) for op in ("ArgMax", "ArgMin")],
    _case("ArgMin", np.array([[-0.0, 0.0], [0.0, -0.0]], np.float32), axis=1),
    _case("ArgMax", np.array([3, 1, 3], np.int32), opset=11, axis=0),
]


def _resize(
    shape: tuple[int, ...], *, scales: Any = None, sizes: Any = None, opset: int = 19, **attributes: Any
) -> Any:
    given = [np.zeros(0, np.float32)]
    given += [np.array(scales, np.float32)] if sizes is None else [given[0], np.array(sizes)]
    fixed = dict.fromkeys(range(1, len(given) + 1), 1)
    return _case("Resize", _f(*shape), *given, constants=fixed, opset=opset, **attributes)


_RESIZES = [
    *[
        _resize(
            (2, 3, 7, 18),
            scales=[1, 1, *scales],
            mode=mode,
            coordinate_transformation_mode=positions,
            nearest_mode=rounding,
        )
        for positions in (
            "align_corners",
            "asymmetric",
            "half_pixel",
            "half_pixel_symmetric",
            "pytorch_half_pixel",
        )
        for mode, rounding in (
            ("linear", "floor"),
            *(("nearest", r) for r in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")),
        )
        for scales in ((2, 2), (0.6, 2.3), (1 / 7, 0.5))
    ],
    _resize((1, 2, 5, 6), sizes=[1, 2, 11, 9], mode="linear", opset=11),
    _resize((1, 2, 5, 6), sizes=[1, 2, 5, 18], mode="nearest", opset=13),
    _resize((5, 6, 3), sizes=[10, 9], mode="linear", axes=[0, 1]),
    _resize((5, 6, 3), scales=[2, 4], mode="nearest", axes=[2, 0], nearest_mode="floor"),
    _resize((2, 4, 5, 6), scales=[1, 2, 2, 2], mode="linear"),
    _resize((4, 5), sizes=[9, 20], mode="linear", axes=[0, 1], keep_aspect_ratio_policy="not_larger"),
    _resize((4, 5), sizes=[9, 20], mode="nearest", keep_aspect_ratio_policy="not_smaller"),
    _resize((2, 3, 1, 1), scales=[1, 1, 4, 5], mode="linear"),
    _resize((40,), scales=[0.5], mode="nearest", coordinate_transformation_mode="asymmetric"),
]
_CASES = [
    *[_case(op, 3 * _f(1, 5, 7, 9)) for op in _UNARY],
    _case("Log", np.abs(_f(3, 37)) + 1e-3),
    _case("Sqrt", np.abs(_f(3, 37))),
    _case("Gelu", 3 * _f(5, 67)),
    _case("Gelu", 3 * _f(5, 67), approximate="tanh"),
    _case("Swish", _f(5, 67), opset=24, alpha=1.5),
    _case("Round", np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], np.float32)),
    _case("Exp", np.array([np.nan, -np.inf, -200, -88, -87, 0, 88, 88.7, 89, np.inf, 1], np.float32)),
    _case(
        "ReduceLogSumExp",
        np.array(
            [[x, *[y] * 7] for x, y in ((-np.inf, -np.inf), (np.inf, 0), (np.nan, 1), (-np.inf, 1))],
            np.float32,
        ),
        axes=[1],
        opset=13,
    ),
    _case("Log", np.array([np.nan, -1, 0, 1e-42, 1e-30, 1, np.inf, 3], np.float32)),
    _case("Exp", _f(5, 7).astype(np.float64)),
    _case("Tanh", _f(5, 7).astype(np.float64)),
    _case("IsNaN", np.array([np.nan, 1, np.inf], np.float32)),
    _case("Tanh", np.array([np.nan, -np.inf, 1e-20, 50, np.inf], np.float32)),
    _case("Dropout", _f(5, 7)),
    _case("Abs", _i(33)),
    _case("Neg", _i(33, dtype="int32")),
    _case("Sign", _i(33)),
    _case("Not", _b(3, 33)),
    *[_case("Cast", 9 * _f(3, 33), to=t) for t in (1, 6, 7, 9, 10, 11)],
    *[_case("Cast", 9 * _f(3, 33).astype(np.float64), to=t) for t in (1, 10)],
    *[_case("Cast", _i(3, 33), to=t) for t in (1, 6, 9)],
    _case("Cast", _b(3, 33), to=1),
    _case("Cast", _b(3, 33), to=7),
    *[
        _case(op, _f(2, 3, 5, 7), _f(3, 1, 7))
        for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean")
    ],
    *[_case(op, _f(6, 1), _f(1, 35)) for op in ("Add", "Greater", "Less", "GreaterOrEqual", "LessOrEqual")],
    *[_case(op, _i(40), _i(40, low=1)) for op in ("Add", "Div", "Mod", "Equal", "Greater", "Max")],
    _case("Mod", _i(40), _i(40, low=1), fmod=1),
    *[_case(op, _b(4, 9), _b(9)) for op in ("And", "Or", "Xor", "Equal")],
    *[_case(op, _f(3, 50).astype(np.float64)) for op in _UNARY if op != "Erf"],
    _case("Add", _f(), _f(3, 5)),
    _case("Add", _f(), _f()),
    _case("Max", _f(3, 5), _f(5), _f(3, 1)),
    _case("PRelu", _f(1, 4, 5, 6), _f(4, 1, 1)),
    *[
        _case("Pow", np.abs(_f(3, 35)) + 0.1, np.float32(e), constants={1: 1})
        for e in (2, 3, 0.5, -0.5, -1, 1.7)
    ],
    _case("Pow", _f(3, 35), np.int64(3), constants={1: 1}),
    _case("Pow", np.abs(_f(3, 35)), _f(35)),
    _case("Where", _b(4, 1, 5), _f(3, 5), _f(4, 3, 1)),
    _case("Where", _b(4, 5), _i(4, 5), _i(1)),
    _case("Where", _b(4, 5), _b(4, 5), _b(5)),
    _case("Clip", _f(3, 50), np.float32(-0.5), np.float32(0.5), constants={1: 1, 2: 1}),
    _case("Clip", _f(3, 50), None, np.float32(0.5)),
    _case("Clip", _f(3, 50), opset=6, min=0.0, max=6.0),
    _case(
        "BatchNormalization",
        _f(2, 17, 5, 6),
        _f(17),
        _f(17),
        _f(17),
        np.abs(_f(17)),
        constants={1: 1, 2: 1, 3: 1, 4: 1},
    ),
    _case("BatchNormalization", _f(2, 17, 5), _f(17), _f(17), _f(17), np.abs(_f(17))),
    _case("Transpose", _f(3, 5, 7), perm=[2, 0, 1]),
    _case("Transpose", _f(37, 53)),
    _case("Transpose", _f(1, 64, 33, 47), perm=[0, 2, 3, 1]),
    _case("Transpose", _f(1, 33, 47, 64), perm=[0, 3, 1, 2]),
    _case("Transpose", _i(2, 19, 3, 8), perm=[0, 2, 1, 3]),
    _case("Reshape", _f(6, 35), np.array([5, 42]), constants={1: 1}),
    _case("Flatten", _f(2, 3, 5), axis=1),
    _case("Squeeze", _f(2, 1, 5), np.array([1]), constants={1: 1}),
    _case("Unsqueeze", _b(2, 5), np.array([0, 3]), constants={1: 1}),
    _case("Expand", _f(3, 1), np.array([2, 1, 6]), constants={1: 1}),
    _case("Concat", _f(2, 3, 5, 6), _f(2, 17, 5, 6), _f(2, 1, 5, 6), axis=1),
    _case("Concat", _i(4, 3), _i(4, 20), axis=-1),
    _case("Concat", _f(5), axis=0),
    _case("Slice", _f(9, 40), np.array([1, -30]), np.array([100, -2]), constants={1: 1, 2: 1}),
    _case(
        "Slice",
        _f(9, 40),
        np.array([-1]),
        np.array([-100]),
        np.array([1]),
        np.array([-3]),
        constants={1: 1, 2: 1, 3: 1, 4: 1},
    ),
    _case("Slice", _f(2, 4, 6, 8), np.array([1]), np.array([3]), np.array([1]), constants={1: 1, 2: 1, 3: 1}),
    *[
        _case("Pad", _f(2, 3, 9, 11), np.array([0, 0, 1, 2, 0, 0, 3, 4]), constants={1: 1}, mode=m)
        for m in ("constant", "reflect", "edge", "wrap")
    ],
    _case("Pad", _f(9, 11), np.array([1, 0, 2, 3]), np.float32(7), constants={1: 1, 2: 1}),
    _case("Pad", _i(9, 11), np.array([2, 2]), np.int64(7), np.array([-1]), constants={1: 1, 2: 1, 3: 1}),
    _case("Gather", _f(30, 24), _i(5, 7, low=-30, high=30)),
    _case("Gather", _f(30, 24), _i(5, 7, low=-30, high=30, dtype="int32"), constants={0: 1}),
    _case("Gather", _f(4, 30, 6), _i(7, low=-30, high=30), axis=1),
    _case("Gather", _f(4, 30, 6), np.int64(-1), constants={1: 1}, axis=2),
    _case("Split", _f(4, 30, 6), np.array([7, 20, 3]), constants={1: 1}, outputs=3, axis=1),
    _case("Tile", _f(3, 5), np.array([2, 3]), constants={1: 1}),
    _case("DepthToSpace", _f(1, 12, 5, 6), blocksize=2),
    _case("DepthToSpace", _f(1, 12, 5, 6), blocksize=2, mode="CRD"),
    _case("SpaceToDepth", _f(1, 3, 4, 6), blocksize=2),
    _case("SpaceToDepth", _f(1, 3, 4, 6), opset=28, blocksize=2, mode="CRD"),
    *[
        _case(op, _f(3, 4, 35), np.array(axes), constants={1: 1}, keepdims=k)
        for op in _REDUCTIONS
        for axes, k in (([2], 1), ([-1, 1], 0), ([0], 1), ([0, 2], 0), ([1], 0))
    ],
    _case("ReduceLogSum", np.abs(_f(5, 37)), np.array([1]), constants={1: 1}),
    _case("ReduceSum", _i(5, 37), np.array([1]), constants={1: 1}),
    _case("ReduceMax", _f(2, 3, 5, 17)),
    _case("ReduceSum", _f(3, 5), np.zeros(0, np.int64), constants={1: 1}),
    _case("ReduceMean", _f(2, 1, 5, 17), opset=13, axes=[1], keepdims=1),
    *[_case(op, 5 * _f(3, 35, 18), axis=a) for op in ("Softmax", "LogSoftmax") for a in (-1, 1, 0)],
    _case("Softmax", _f(2, 150)),
    *[_case(op, _f(2, 3, 7), opset=11, axis=a) for op in ("Softmax", "LogSoftmax") for a in (0, 1, 2, -2)],
    _case("Softmax", _f(3, 40, 2), opset=9),
    _case("LayerNormalization", _f(2, 5, 77), _f(77), _f(77), constants={1: 1, 2: 1}),
    _case("LayerNormalization", _f(2, 5, 7), _f(5, 7), axis=1),
    _case("LayerNormalization", _f(2, 3, 5, 70), _f(3, 5, 70), _f(3, 5, 70), axis=-3),
    _case("LayerNormalization", _f(5, 7), _f(5, 7), axis=0),
    _case("InstanceNormalization", _f(2, 5, 7, 9), _f(5), _f(5)),
    _case("GlobalAveragePool", _f(2, 19, 7, 7)),
    _case("GlobalMaxPool", _f(2, 19, 5, 3)),
    *[
        _case(op, _f(2, 19, *size), **attributes)
        for op in ("MaxPool", "AveragePool")
        for size, attributes in (
            ((13, 15), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
            ((13, 15), {"kernel_shape": [2, 3], "pads": [0, 1, 1, 2]}),
            ((12, 14), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
            ((12, 14), {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
            ((30,), {"kernel_shape": [4], "strides": [3]}),
            ((6, 7, 8), {"kernel_shape": [2, 2, 2], "strides": [2, 2, 2]}),
        )
    ],
    _case("MaxPool", _f(1, 4, 16, 16), kernel_shape=[3, 3], dilations=[2, 2], pads=[2, 2, 2, 2]),
    _case("AveragePool", _f(1, 4, 9, 9), kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
    *[
        _case("LpPool", _f(2, 5, 9, 20), kernel_shape=[3, 2], strides=[2, 1], pads=[1, 1, 1, 1], p=p)
        for p in (1, 2, 3)
    ],
    *[
        _case("LRN", _f(2, c, 5, 18), size=n, alpha=0.5, beta=b, bias=2.0)
        for c, n, b in ((9, 5, 0.75), (3, 5, 0.75), (20, 4, 0.5), (7, 1, 1.0), (17, 3, 0.6))
    ],
    _case("LRN", _f(2, 6, 35), size=3),
    *_ARGS,
    *[
        _case("CumSum", x, np.array(axis), constants={1: 1}, exclusive=e, reverse=r)
        for x in (_f(3, 37, 70), _i(5, 70, 6), _f(67))
        for axis in (0, -1, *((1,) if x.ndim == 3 else ()))
        for e, r in ((0, 0), (1, 0), (0, 1), (1, 1))
    ],
    _case("CumSum", _f(2, 5, 6, 19).astype(np.float64), np.array(1), constants={1: 1}),
    _case("GatherElements", _f(5, 9), _i(5, 4, low=-9, high=9), axis=1),
    _case("GatherElements", _f(9, 5), _i(4, 5, low=-9, high=9, dtype="int32"), axis=0),
    _case("GatherND", _f(4, 9, 6), _i(5, 7, 2, low=-4, high=4)),
    _case("GatherND", _f(4, 9, 6), _i(4, 7, 1, low=-9, high=9), batch_dims=1),
    _case("GatherND", _i(4, 9), np.array([[0, 8], [3, 1]]), constants={1: 1}),
    *[
        _case("OneHot", _i(3, 18, low=-12, high=12), np.array(9), _f(2), constants={1: 1}, axis=a)
        for a in (-1, 0, 1)
    ],
    _case("OneHot", _i(7, low=0, high=9), np.array(9), _i(2), constants={1: 1, 2: 1}),
    *[
        _case("Trilu", _f(3, 11, 17), np.array(k), constants={1: 1}, upper=u)
        for k in (-3, 0, 2)
        for u in (0, 1)
    ],
    _case("Trilu", _b(5, 5)),
    *_RESIZES,
    _case("Upsample", _f(1, 3, 5, 18), np.array([1, 1, 2, 3], np.float32), constants={1: 1}, opset=9),
    _case("Conv", _f(1, 4, 9, 9), _f(6, 4, 3, 3), _f(6), constants={1: 1, 2: 2}, pads=[1, 1, 1, 1]),
    _case("MatMul", _f(2, 7, 9), _f(9, 20)),
    _case("Gemm", _f(7, 9), _f(9, 20), _f(20), constants={1: 1}),
]


@pytest.mark.parametrize(("op", "arrays", "fixed", "opset", "outputs", "attributes"), _CASES)
def test_operator(
    check: Check, op: str, arrays: Any, fixed: Any, opset: int, outputs: int, attributes: dict[str, Any]
) -> None:
    names = ["" if a is None else f"x{k}" for k, a in enumerate(arrays)]
    constants = {names[k]: np.asarray(arrays[k]) for k in fixed}
    inputs = {
        n: np.asarray(a) for k, (n, a) in enumerate(zip(names, arrays, strict=True)) if n and k not in fixed
    }
    results = [f"o{k}" for k in range(outputs)]
    made = node(op, names, results, **attributes)
    check([made], inputs, results, constants, opset=opset)


def test_every_supported_operator_has_a_case_and_a_lowering() -> None:
    from collage_tvm.lower import LOWERINGS

    tested = {case.values[0] for case in _CASES}
    assert tested == set(SUPPORTED) == set(LOWERINGS)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [(1, 1, 2, 2), (1, 1, 0.6, 2.5)])
@pytest.mark.parametrize(("op", "opset"), [("Upsample", 7), ("Upsample", 9), ("Resize", 10)])
def test_old_resizing_takes_the_pixel_below(
    check: Check, op: str, opset: int, scales: tuple[float, ...], mode: str
) -> None:
    if op == "Upsample" and min(scales) < 1:
        scales = (1, 1, 1.4, 2.5)
    x, factors = _f(2, 3, 7, 18), np.array(scales, np.float32)
    made = node(
        "Resize",
        ["x", "", "s"],
        ["o"],
        mode=mode,
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    today = make_model([made], {"x": x}, {"s": factors})
    if opset == 7:
        old = node(op, ["x"], ["o"], mode=mode, scales=[float(s) for s in scales])
        check([old], {"x": x}, opset=opset, measure=today)
    else:
        old = node(op, ["x", "s"], ["o"], mode=mode)
        check([old], {"x": x}, constants={"s": factors}, opset=opset, measure=today)


@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize(("size", "places"), [(5, [1, 3]), (7, [1, 3, 5]), (11, [1, 3, 5, 7, 9])])
def test_symmetric_pixels_that_lie_on_elements(size: int, places: list[int], rounding: str) -> None:
    """All lie there, so rounding changes none. ONNX: `adjustment` is 0.8 of 5 elements, the offset 0.5."""
    how = {"coordinate_transformation_mode": "half_pixel_symmetric", "nearest_mode": rounding}
    x = _f(2, size)
    group = make_group(
        [node("Resize", ["x", "", "s"], "o", **how)],
        {"x": x},
        {"s": np.array([1, 0.5], np.float32)},
    )
    check_group(TvmBackend(), group, {"x": x}, Target("cpu", 2), expected={"o": x[:, places]})


def test_of_nans_the_first_is_the_largest_and_the_smallest(check: Check) -> None:
    x = np.array([[1, np.nan, np.inf, -np.nan], [-np.inf, 3, 3, -np.inf]], np.float32)
    for op in ("ArgMax", "ArgMin"):
        check([node(op, ["x"], ["o"], axis=1)], {"x": x})
