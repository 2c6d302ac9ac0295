"""What is written for the GPU, run on the CPU: one thread after the other, between barriers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda_groups import CASES, Case, group_of
from cuda_on_cpu import COMPILER, CudaOnCpu

from collage_core.formats import channels_last, plain
from collage_core.ir import TensorType
from collage_core.target import Target
from collage_core.testing import check_group, make_group, node

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(COMPILER is None, reason="g++ is not installed"),
]

_EXACT = Target("cpu", 1)
_ROUNDED = Target("cpu", 1, precisions=("bfloat16", "float16"))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_group(case: Case) -> None:
    check_group(CudaOnCpu(), group_of(case), case[1], _EXACT)


@pytest.mark.parametrize("name", ["chain", "odd chain", "softmax", "transpose", "max pool", "concat"])
def test_a_group_of_rounded_values(name: str) -> None:
    case = CASES[name]
    kernels = check_group(CudaOnCpu(), group_of(case), case[1], _ROUNDED)
    assert {v.outputs[0].dtype for v in kernels} == {"float32", "bfloat16", "float16"}


_ODD = np.array([np.nan, -np.inf, np.inf, -0.0, 0.0, 1.5, -1.5, np.nan] * 4, np.float32)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("Relu", {}),
        ("Clip", {}),
        ("Sigmoid", {}),
        ("Tanh", {}),
        ("Erf", {}),
        ("Exp", {}),
        ("Log", {}),
        ("Sqrt", {}),
        ("Softplus", {}),
        ("HardSwish", {}),
        ("LeakyRelu", {"alpha": 0.1}),
        ("Softmax", {}),
    ],
)
def test_numbers_that_are_none(op: str, attributes: dict[str, Any]) -> None:
    x = _ODD.reshape(4, 8)
    check_group(CudaOnCpu(), make_group([node(op, ["x"], "o", **attributes)], {"x": x}), {"x": x}, _EXACT)


@pytest.mark.parametrize("op", ["Max", "Min"])
@pytest.mark.parametrize("odd", [0, 1])
def test_the_larger_of_none(op: str, odd: int) -> None:
    inputs = {"x": _ODD, "y": np.ones_like(_ODD)}
    names = ["x", "y"] if odd else ["y", "x"]
    check_group(CudaOnCpu(), make_group([node(op, names, "o")], inputs), inputs, _EXACT)


@pytest.mark.parametrize("columns", [3, 40, 5000])
@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin", "ReduceSum"])
def test_every_place_of_a_row_is_heard(op: str, columns: int) -> None:
    """A NaN, wherever it is, is the result."""
    x = np.ones((7, columns), np.float32)
    for row, column in enumerate([0, 1, columns // 2, columns - 2, columns - 1]):
        x[row, column] = np.nan
    group = make_group([node(op, ["x", "a"], "o")], {"x": x}, {"a": np.array([1])})
    check_group(CudaOnCpu(), group, {"x": x}, _EXACT)


def test_a_window_with_none() -> None:
    x = np.zeros((1, 2, 6, 6), np.float32)
    x[0, 0, 2, 3] = np.nan
    x[0, 1] = -np.inf
    group = make_group([node("MaxPool", ["x"], "o", kernel_shape=[2, 2])], {"x": x})
    check_group(CudaOnCpu(), group, {"x": x}, _EXACT)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_conversions(dtype: str) -> None:
    backend, shape = CudaOnCpu(), (2, 5, 3, 4)
    type = TensorType("float32", shape)
    there = channels_last(dtype, shape)
    assert backend.converts(type, plain("float32", shape), there, _ROUNDED)
    assert backend.converts(type, there, plain("float32", shape), _ROUNDED)
    assert not super(CudaOnCpu, backend).converts(type, plain("float32", shape), there, _ROUNDED)
