"""Every elementwise operator behind operators whose value it shares a kernel with, over numbers of all
kinds: NaNs, infinities, zeros."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from collage_tvm.backend import TvmBackend
from hypothesis import given, settings
from hypothesis import strategies as st

from collage_core.errors import Refusal
from collage_core.target import Target
from collage_core.testing import bind, make_group, node

Check = Callable[..., list[Any]]
_random = np.random.default_rng(11)
_OPSET = 24

_PRODUCERS = {
    "computed": node("Exp", ["x"], "a"),
    "divided": node("Div", ["x", "low"], "a"),
    "clipped": node("Clip", ["x", "low", "high"], "a"),
    "rounded": node("Round", ["x"], "a"),
    "gathered": node("Gather", ["x", "columns"], "a", axis=1),
    "gathered one by one": node("GatherElements", ["x", "places"], "a", axis=1),
    "padded": node("Pad", ["x", "pads"], "a"),
    "joined": node("Concat", ["x", "x"], "a", axis=1),
    "transposed": node("Transpose", ["x"], "a"),
    "triangle": node("Trilu", ["x"], "a"),
    "normalised": node("Softmax", ["x"], "a"),
    "largest": node("ReduceMax", ["x", "axis"], "a"),
    "smallest": node("ReduceMin", ["x", "axis"], "a", keepdims=0),
}
_UNARY = [
    "Abs",
    "Ceil",
    "Celu",
    "Cos",
    "Elu",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "IsNaN",
    "LeakyRelu",
    "Log",
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
    "Sqrt",
    "Swish",
    "Tanh",
    "ThresholdedRelu",
]
_PERIODIC = ("Cos", "Sin")
_BINARY = [
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Max",
    "Min",
    "Mean",
    "Sum",
    "PRelu",
    "Greater",
    "GreaterOrEqual",
    "Less",
    "LessOrEqual",
    "Equal",
    "Pow",
]
_CONSUMERS = {
    **{op: [node(op, ["a"], "o")] for op in _UNARY},
    **{op: [node(op, ["a", "a"], "o")] for op in _BINARY},
    **{f"{op} of a number": [node(op, ["a", "low"], "o")] for op in ("Div", "Max", "Min", "Greater", "Pow")},
    "Clip": [node("Clip", ["a", "low", "high"], "o")],
    "Clip from below": [node("Clip", ["a", "low"], "o")],
    "Cast to bool": [node("Cast", ["a"], "o", to=onnx.TensorProto.BOOL)],
    "Where": [node("Less", ["a", "low"], "c"), node("Where", ["c", "a", "high"], "o")],
    "Where it is NaN": [node("IsNaN", ["a"], "c"), node("Where", ["c", "low", "a"], "o")],
    "not NaN": [node("IsNaN", ["a"], "c"), node("Not", ["c"], "o")],
}


def _inputs(dtype: str) -> dict[str, Any]:
    x = (3 * _random.standard_normal((5, 37))).astype(dtype)
    x[0, :6] = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0]
    x[1, 33:] = [np.nan, np.inf, 0.5, 2.5]
    # One row lies above 0: of the least of all others Gelu is a difference of equal numbers, and nothing else
    # would say how large errors may be.
    x[4] = np.abs(x[4]) + 0.5
    return {
        "x": x,
        "columns": _random.integers(0, 37, (9,)),
        "places": _random.integers(-37, 37, (5, 37)),
    }


@pytest.mark.parametrize("examples", [50, pytest.param(1_500, marks=pytest.mark.slow)])
def test_elementwise_behind_others(check: Check, examples: int) -> None:
    pairs = list(itertools.product(_PRODUCERS, _CONSUMERS, ("float32", "float64")))

    @settings(max_examples=examples, deadline=None, derandomize=examples == 50, database=None)
    @given(st.sampled_from(pairs))
    def run(pair: tuple[str, str, str]) -> None:
        producer, consumer, dtype = pair
        if dtype == "float64" and consumer in ("Erf", "Gelu"):
            return
        constants = {
            "low": np.array(-0.5, dtype),
            "high": np.array(0.5, dtype),
            "pads": np.array([0, 1, 0, 2]),
            "axis": np.array([1]),
        }
        nodes = [_PRODUCERS[producer], *_CONSUMERS[consumer]]
        read = {v for n in nodes for v in n.input}
        inputs = _inputs(dtype)
        if producer == "computed" and consumer in _PERIODIC:
            inputs["x"] /= 3  # of the exponential of 10, the last bit is 0.002
        check(
            nodes,
            {v: a for v, a in inputs.items() if v in read},
            constants={v: a for v, a in constants.items() if v in read},
            opset=_OPSET,
        )

    run()


@pytest.mark.parametrize("producer", ["computed", "gathered one by one", "largest"])
@pytest.mark.parametrize("op", ["IsNaN", "Round"])
def test_what_tvm_would_write_lane_by_lane(check: Check, producer: str, op: str) -> None:
    # "cannot find variable v1"
    inputs = _inputs("float32")
    nodes = [_PRODUCERS[producer], node(op, ["a"], "o")]
    read = {v for n in nodes for v in n.input}
    given = {v: a for v, a in inputs.items() if v in read}
    check(nodes, given, constants={"axis": np.array([1])} if "axis" in read else None)


@pytest.mark.parametrize("op", ["Max", "Min"])
def test_a_nan_on_either_side_comes_through(check: Check, op: str) -> None:
    x, y = np.full((3, 19), 2.0, np.float32), np.full((3, 19), 1.0, np.float32)
    x[0, 3], y[1, 5], x[2, 7], y[2, 7] = np.nan, np.nan, np.nan, np.nan
    check([node(op, ["x", "y"], "o")], {"x": x, "y": y})
    check([node(op, ["x", "y"], "o")], {"x": x}, constants={"y": np.array([np.nan], np.float32)})


@pytest.mark.parametrize("shape", [(4, 97), (97, 40), (3, 64), (70_000,)])
@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_a_nan_anywhere_in_a_row_is_found(check: Check, op: str, shape: tuple[int, ...]) -> None:
    for axis in range(len(shape)):
        x = _random.standard_normal(shape).astype(np.float32)
        x.reshape(-1)[[0, 33, x.size // 2]] = np.nan
        check([node(op, ["x", "axis"], "o")], {"x": x}, constants={"axis": np.array([axis])})


@pytest.mark.parametrize("divisor", [0.0, -0.0])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_a_division_by_a_constant_zero(check: Check, divisor: float, dtype: str) -> None:
    x = np.array([1, -1, 0, 7], dtype)
    check([node("Div", ["x", "zero"], "o")], {"x": x}, constants={"zero": np.array(divisor, dtype)})


@pytest.mark.parametrize("zero", [0.0, -0.0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", ["Mul", "Div", "PRelu"])
def test_zero_times_what_is_no_number(check: Check, op: str, dtype: str, zero: float) -> None:
    x, constants = _inputs(dtype)["x"], {"zero": np.array(zero, dtype)}
    for read in (["x", "zero"],) if op == "PRelu" else (["x", "zero"], ["zero", "x"]):
        check([node(op, read, "o")], {"x": x}, constants=constants)
    check([node(op, ["x", "zero"], "h"), node("Add", ["h", "x"], "o")], {"x": x}, constants=constants)


@pytest.mark.parametrize(
    ("op", "attribute"),
    [(op, "alpha") for op in ("Elu", "HardSigmoid", "LeakyRelu", "Selu")] + [("Selu", "gamma")],
)
def test_a_slope_of_zero(check: Check, op: str, attribute: str) -> None:
    check([node(op, ["x"], "o", **{attribute: 0.0})], {"x": _inputs("float32")["x"]})


def test_a_product_times_zero(check: Check) -> None:
    x = np.array([[1.0, np.nan], [np.inf, 2.0]], np.float32)
    check([node("Gemm", ["x", "x"], "o", alpha=0.0)], {"x": x})


def test_the_error_function_ends_at_one() -> None:
    # a little more than 1 would make a large number of what Gelu is of a very negative one
    x = np.array([-1e30, -1e6, -20.0, 1e6], np.float32)
    group, target = make_group([node("Gelu", ["x"], "o")], {"x": x}), Target("cpu", 1)
    offered = TvmBackend().variants(group, target)
    assert not isinstance(offered, Refusal)
    bound = bind(TvmBackend().build(group, offered[0], target), group, offered[0], {"x": x})
    assert not bound.call()
    assert bound.outputs[0].tolist() == [0.0, 0.0, 0.0, 1e6]
