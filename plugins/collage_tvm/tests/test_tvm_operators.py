"""Every operator, alone, in every variant, against the reference evaluator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from collage_tvm.support import SUPPORTED
from onnx import helper

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

_CASES = [
    *[_case(op, 3 * _f(1, 5, 7, 9)) for op in _UNARY],
    _case("Log", np.abs(_f(3, 37)) + 1e-3),
    _case("Sqrt", np.abs(_f(3, 37))),
    _case("Gelu", 3 * _f(5, 67)),
    _case("Gelu", 3 * _f(5, 67), approximate="tanh"),
    _case("Swish", _f(5, 67), opset=24, alpha=1.5),
    _case("Round", np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], np.float32)),
    _case("Exp", np.array([np.nan, -np.inf, -200, -88, -87, 0, 88, 88.7, 89, np.inf, 1], np.float32)),
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
    _case("Pow", _i(3, 35), np.int64(2), constants={1: 1}),
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
    *[
        _case(op, _f(3, 4, 35), np.array(axes), constants={1: 1}, keepdims=k)
        for op in _REDUCTIONS
        for axes, k in (([2], 1), ([-1, 1], 0), ([0], 1), ([0, 2], 0), ([1], 0))
    ],
    _case("ReduceLogSum", np.abs(_f(5, 37)), np.array([1]), constants={1: 1}),
    _case("ReduceSum", _i(5, 37), np.array([1]), constants={1: 1}),
    _case("ReduceMean", _i(5, 37), opset=13, axes=[1]),
    _case("ReduceMax", _f(2, 3, 5, 17)),
    _case("ReduceMean", _f(2, 1, 5, 17), opset=13, axes=[1], keepdims=1),
    *[_case(op, 5 * _f(3, 35, 18), axis=a) for op in ("Softmax", "LogSoftmax") for a in (-1, 1, 0)],
    _case("Softmax", _f(2, 150)),
    _case("Softmax", _f(2, 3, 7), opset=11, axis=2),
    _case("LayerNormalization", _f(2, 5, 77), _f(77), _f(77), constants={1: 1, 2: 1}),
    _case("LayerNormalization", _f(2, 5, 7), _f(5, 7), axis=1),
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
    node: onnx.NodeProto = helper.make_node(op, names, results, **attributes)
    check([node], inputs, results, constants, opset=opset)


def test_every_supported_operator_has_a_case_and_a_lowering() -> None:
    from collage_tvm.lower import LOWERINGS

    tested = {case.values[0] for case in _CASES}
    assert tested == set(SUPPORTED) == set(LOWERINGS)
