"""Shapes at which a schedule changes its ways: squares of transpositions, first steps of reductions, parts
that run beside each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import helper

RNG = np.random.default_rng(0)


def _random(shape: tuple[int, ...], dtype: str = "float32") -> Any:
    return (10 * RNG.standard_normal(shape)).astype(dtype)


@pytest.mark.parametrize(
    ("perm", "shape"),
    [
        ((1, 0), (16, 16)),
        ((1, 0), (64, 64)),
        ((1, 0), (80, 112)),
        ((1, 0), (83, 131)),
        ((1, 0), (300, 17)),
        ((0, 2, 3, 1), (2, 64, 28, 28)),
        ((0, 2, 3, 1), (1, 3, 64, 64)),
        ((0, 3, 1, 2), (2, 17, 19, 70)),
        ((2, 1, 0), (33, 5, 65)),
    ],
)
def test_transposes(check: Callable[..., Any], perm: tuple[int, ...], shape: tuple[int, ...]) -> None:
    check([helper.make_node("Transpose", ["x"], ["o"], perm=perm)], {"x": _random(shape)})


@pytest.mark.parametrize("dtype", ["float64", "int64", "float16", "int8", "bool"])
def test_transposes_of_other_dtypes(check: Callable[..., Any], dtype: str) -> None:
    check([helper.make_node("Transpose", ["x"], ["o"], perm=[1, 0])], {"x": _random((100, 200), dtype)})


def test_transposed_values_that_are_read_twice(check: Callable[..., Any]) -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
        helper.make_node("Add", ["t", "y"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Mul", ["r", "t"], ["o"]),
    ]
    check(nodes, {"x": _random((100, 200)), "y": _random((200, 100))})


def test_two_transposed_inputs(check: Callable[..., Any]) -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
        helper.make_node("Transpose", ["y"], ["u"], perm=[1, 0]),
        helper.make_node("Add", ["t", "u"], ["o"]),
    ]
    check(nodes, {"x": _random((70, 200)), "y": _random((70, 200))})


def test_a_transposed_input_behind_a_condition(check: Callable[..., Any]) -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
        helper.make_node("Pad", ["t", "pads"], ["p"], mode="reflect"),
        helper.make_node("Add", ["p", "y"], ["o"]),
    ]
    constants = {"pads": np.array([3, 2, 3, 2])}
    check(nodes, {"x": _random((60, 90)), "y": _random((96, 64))}, constants=constants)


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "ReduceL2"])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("shape", [(1024, 68), (1, 33, 1, 700), (300, 7, 99), (20000, 3)])
def test_reductions_of_everything(
    check: Callable[..., Any], op: str, keepdims: int, shape: tuple[int, ...]
) -> None:
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node(op, ["a"], ["m"], keepdims=keepdims),
        helper.make_node("Sqrt", ["m"], ["o"]),
    ]
    check(nodes, {"x": _random(shape)})


@pytest.mark.parametrize("batch", [2, 3, 16, 17])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_borders_beside_the_inside(check: Callable[..., Any], batch: int, threads: int) -> None:
    pool = helper.make_node("AveragePool", ["x"], ["o"], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    check([pool], {"x": _random((batch, 3, 9, 35))}, threads=threads)


@pytest.mark.parametrize("parts", [(8, 8, 8), (8, 3, 8), (16, 16, 1)])
def test_parts_of_a_concat(check: Callable[..., Any], parts: tuple[int, ...]) -> None:
    inputs = {f"x{k}": _random((n, 6, 40)) for k, n in enumerate(parts)}
    nodes = [
        helper.make_node("Concat", list(inputs), ["c"], axis=0),
        helper.make_node("Relu", ["c"], ["o"]),
    ]
    check(nodes, inputs)
