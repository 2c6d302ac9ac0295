"""Shapes at which a schedule changes its ways: squares of transpositions, first steps of reductions, parts
that run beside each other."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from collage_tvm.backend import TvmBackend
from collage_tvm.host import vector_lanes
from collage_tvm.library import Function, function_of
from onnx import TensorProto

from collage_core.errors import Refusal
from collage_core.ir import Subgraph
from collage_core.target import Target
from collage_core.testing import make_group, node

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
    check([node("Transpose", ["x"], ["o"], perm=perm)], {"x": _random(shape)})


@pytest.mark.parametrize("dtype", ["float64", "int64", "float16", "int8", "bool"])
def test_transposes_of_other_dtypes(check: Callable[..., Any], dtype: str) -> None:
    check([node("Transpose", ["x"], ["o"], perm=[1, 0])], {"x": _random((100, 200), dtype)})


def test_transposed_values_that_are_read_twice(check: Callable[..., Any]) -> None:
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[1, 0]),
        node("Add", ["t", "y"], ["a"]),
        node("Relu", ["a"], ["r"]),
        node("Mul", ["r", "t"], ["o"]),
    ]
    check(nodes, {"x": _random((100, 200)), "y": _random((200, 100))})


def test_two_transposed_inputs(check: Callable[..., Any]) -> None:
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[1, 0]),
        node("Transpose", ["y"], ["u"], perm=[1, 0]),
        node("Add", ["t", "u"], ["o"]),
    ]
    check(nodes, {"x": _random((70, 200)), "y": _random((70, 200))})


def test_a_transposed_input_behind_a_condition(check: Callable[..., Any]) -> None:
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[1, 0]),
        node("Pad", ["t", "pads"], ["p"], mode="reflect"),
        node("Add", ["p", "y"], ["o"]),
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
        node("Abs", ["x"], ["a"]),
        node(op, ["a"], ["m"], keepdims=keepdims),
        node("Sqrt", ["m"], ["o"]),
    ]
    check(nodes, {"x": _random(shape)})


@pytest.mark.parametrize("batch", [2, 3, 16, 17])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_borders_beside_the_inside(check: Callable[..., Any], batch: int, threads: int) -> None:
    pool = node("AveragePool", ["x"], ["o"], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    check([pool], {"x": _random((batch, 3, 9, 35))}, threads=threads)


@pytest.mark.parametrize("parts", [(8, 8, 8), (8, 3, 8), (16, 16, 1)])
def test_parts_of_a_concat(check: Callable[..., Any], parts: tuple[int, ...]) -> None:
    inputs = {f"x{k}": _random((n, 6, 40)) for k, n in enumerate(parts)}
    nodes = [
        node("Concat", list(inputs), ["c"], axis=0),
        node("Relu", ["c"], ["o"]),
    ]
    check(nodes, inputs)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("width", [9, 33, 67, *(pytest.param(n, marks=pytest.mark.ci) for n in (16, 150))])
@pytest.mark.parametrize("strides", [(2, 2), (1, 2), pytest.param((2, 3), marks=pytest.mark.ci)])
def test_windows_that_lie_apart(
    check: Callable[..., Any], dtype: str, width: int, strides: tuple[int, int]
) -> None:
    """Rows of odd lengths, so that the last vectors overlap and nothing behind the image is read."""
    x = _random((2, 3, 13, width), dtype)
    for pads in ([0] * 4, [1, 1, 1, 1], [0, 1, 1, 0]):
        window: dict[str, Any] = {"kernel_shape": [3, 3], "strides": strides, "pads": pads}
        check([node("MaxPool", ["x"], ["o"], **window)], {"x": x})
        check([node("AveragePool", ["x"], ["o"], **window)], {"x": x})


@pytest.fixture
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every output were too large for the caches."""
    monkeypatch.setattr("collage_tvm.output.last_cache_bytes", lambda: 0)


@pytest.mark.usefixtures("no_cache")
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32", "float16", "bool"])
@pytest.mark.parametrize(
    ("perm", "shape"),
    [((1, 0), (80, 112)), ((1, 0), (83, 131)), ((0, 2, 3, 1), (2, 32, 16, 24)), ((0, 1), (64, 64))],
)
def test_what_is_stored_past_the_caches(
    check: Callable[..., Any], dtype: str, perm: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    check([node("Transpose", ["x"], ["o"], perm=perm)], {"x": _random(shape, dtype)})


@pytest.mark.usefixtures("no_cache")
@pytest.mark.parametrize("shape", [(40, 64), (7, 33), (12, 5, 48)])
def test_rows_and_several_outputs_past_the_caches(check: Callable[..., Any], shape: tuple[int, ...]) -> None:
    x = {"x": _random(shape)}
    for axis in (-1, 0):
        check([node("Softmax", ["x"], ["o"], axis=axis)], x)
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Cast", ["a"], ["b"], to=TensorProto.DOUBLE),
        node("Concat", ["x", "a"], ["c"], axis=0),
    ]
    check(nodes, x, outputs=("a", "b", "c"))


@pytest.mark.usefixtures("no_cache")
def test_what_a_kernel_reads_again_is_not_stored_past_the_caches(check: Callable[..., Any]) -> None:
    for shape in ((1, 64, 16, 16), (4096,)):
        check([node("ReduceSum", ["x"], ["o"], keepdims=1)], {"x": _random(shape)})


@pytest.mark.usefixtures("no_cache")
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(
    "width", [5, pytest.param(33, marks=pytest.mark.ci), pytest.param(80, marks=pytest.mark.ci)]
)
def test_windows_of_what_no_cache_holds(check: Callable[..., Any], op: str, width: int) -> None:
    """Asking for what lies behind the input must not touch it."""
    for strides in ([1, 1], [2, 2]):
        made = node(op, ["x"], ["o"], kernel_shape=[3, 3], strides=strides, pads=[1] * 4)
        check([made], {"x": _random((2, 64, 9, width))})


@pytest.mark.parametrize(("cache_bytes", "past"), [(0, True), (1 << 30, False)])
def test_only_outputs_larger_than_the_cache_go_past_it(
    monkeypatch: pytest.MonkeyPatch, cache_bytes: int, past: bool
) -> None:
    bodies: list[str] = []

    def seen(parameters: Any, body: Any, target: Target, **how: Any) -> Function:
        bodies.append(str(body))
        return function_of(parameters, body, target, **how)

    monkeypatch.setattr("collage_tvm.output.last_cache_bytes", lambda: cache_bytes)
    monkeypatch.setattr("collage_tvm.build.function_of", seen)
    subgraph = make_group([node("Relu", ["x"], ["o"])], {"x": _random((64, 64))})
    variants = TvmBackend().variants(subgraph, Target("cpu", 2))
    assert not isinstance(variants, Refusal)
    variant = variants[0]
    TvmBackend().build(subgraph, variant, Target("cpu", 2))
    [body] = bodies
    assert ("collage_stream_float32" in body) is past
    assert ("collage_fence" in body) is past


@pytest.fixture
def llvm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., str]:
    """What LLVM makes of the kernel of a group's first variant."""
    texts: list[str] = []
    compile_module = tvm.compile

    def compiled(*arguments: Any, **options: Any) -> Any:
        executable = compile_module(*arguments, **options)
        texts.append(executable.mod.inspect_source("ll"))
        return executable

    def of(subgraph: Subgraph) -> str:
        variants = TvmBackend().variants(subgraph, Target("cpu", 2))
        assert not isinstance(variants, Refusal)
        TvmBackend().build(subgraph, variants[0], Target("cpu", 2))
        return texts[-1]

    monkeypatch.setenv("COLLAGE_HOME", str(tmp_path))
    monkeypatch.setattr("collage_tvm.library.tvm.compile", compiled)
    return of


@pytest.mark.usefixtures("no_cache")
def test_a_product_is_stored_plainly(llvm: Callable[..., str]) -> None:
    made = node("MatMul", ["x", "w"], ["o"])
    text = llvm(make_group([made], {"x": _random((32, 64))}, {"w": _random((64, 64))}))
    assert "collage_stream" not in text
    assert "fence" not in text


_ACCESS = re.compile(r"= load (<\d+ x float>|float),|store (<\d+ x float>|float) ")
"""A load or a store of float32 in LLVM's assembly, and how many elements go together."""


def test_squares_are_turned_in_whole_vectors(llvm: Callable[..., str]) -> None:
    made = node("Transpose", ["x"], ["o"], perm=[1, 0])
    text = llvm(make_group([made], {"x": _random((64, 128))}))
    assert {a or b for a, b in _ACCESS.findall(text)} == {f"<{vector_lanes()} x float>"}
    assert "insertelement" not in text


@pytest.mark.usefixtures("no_cache")
def test_where_a_row_lies_is_read_once_a_row(llvm: Callable[..., str]) -> None:
    columns = 4 * vector_lanes()
    made = node("Gather", ["table", "ids"], ["o"])
    inputs = {"table": _random((50, columns)), "ids": RNG.integers(-50, 50, 99)}
    text = llvm(make_group([made], inputs))
    places = len(re.findall("= load i64,", text))
    assert places > 0
    assert text.count("!nontemporal !") == 4 * places, "four vectors to a row"


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("rows", [1, 2, 7, 24])
def test_gathers_past_the_caches(
    check: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, rows: int, threads: int
) -> None:
    """Also with fewer rows than threads, with places that differ along the innermost loop, and with a gather
    of what tells the places."""
    monkeypatch.setattr("collage_tvm.output.last_cache_bytes", lambda: 0)
    table, ids = _random((50, 6, 160)), RNG.integers(-50, 50, (2, rows))
    for axis, more in ((0, 50), (1, 6), (2, 160)):
        gather = node("Gather", ["table", "ids"], ["o"], axis=axis)
        check([gather], {"table": table, "ids": ids % more}, threads=threads)
    nodes = [
        node("Gather", ["names", "ids"], ["n"]),
        node("Gather", ["table", "n"], ["t"]),
        node("Add", ["t", "y"], ["o"]),
    ]
    inputs = {"table": table, "names": RNG.integers(0, 50, 50), "ids": ids, "y": _random((2, rows, 1, 160))}
    check(nodes, inputs, threads=threads)
