"""Convolutions and matrix products: shapes, borders, epilogues, layouts, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from collage_tvm.backend import TvmBackend
from collage_tvm.rules import tvm_rule
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collage_core.errors import Refusal
from collage_core.ir import NodeSet, Subgraph
from collage_core.rules import generate
from collage_core.target import Target
from collage_core.testing import check_group, make_graph, node

_random = np.random.default_rng(19)
Check = Callable[..., list[Any]]
Refusing = Callable[..., Refusal]


def _f(*shape: int) -> Any:
    return _random.standard_normal(shape).astype(np.float32)


_CONVOLUTIONS = [
    # input, weights, attributes
    ((1, 32, 9, 11), (32, 1, 3, 3), {"group": 32, "pads": [1, 1, 1, 1]}),
    ((2, 37, 9, 11), (37, 1, 3, 5), {"group": 37, "pads": [1, 2, 0, 1], "strides": [2, 1]}),
    ((1, 17, 8, 8), (34, 1, 3, 3), {"group": 17, "pads": [1, 1, 1, 1]}),
    ((1, 5, 40, 3), (5, 1, 7, 1), {"group": 5, "pads": [3, 0, 3, 0]}),
    ((1, 16, 30, 30), (16, 1, 3, 3), {"group": 16, "pads": [6] * 4, "dilations": [6, 6]}),
    ((1, 19, 17, 16), (35, 19, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((2, 19, 7, 7), (35, 19, 1, 1), {}),
    ((2, 19, 7, 8), (35, 19, 1, 1), {"strides": [2, 2]}),
    ((1, 12, 9, 30), (8, 3, 3, 3), {"group": 4, "dilations": [2, 3], "pads": [2, 3, 2, 3]}),
    ((1, 64, 9, 17), (64, 4, 3, 3), {"group": 16, "pads": [1, 1, 1, 1]}),
    ((2, 80, 7, 9), (80, 8, 3, 3), {"group": 10, "pads": [1, 1, 1, 1], "strides": [2, 2]}),
    ((1, 34, 6, 9), (17, 2, 3, 3), {"group": 17, "pads": [0, 1, 1, 0]}),
    ((1, 24, 8, 8), (96, 2, 2, 1), {"group": 12}),
    ((1, 9, 20), (18, 1, 3), {"group": 9, "pads": [1, 1]}),
    ((1, 16, 6, 6), (96, 4, 3, 3), {"group": 4, "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((1, 16, 6, 7), (8, 16, 4, 2), {"auto_pad": "SAME_LOWER"}),
    ((1, 3, 30, 31), (16, 3, 7, 7), {"strides": [2, 2], "pads": [3, 3, 3, 3]}),
    ((1, 2, 1, 1), (3, 2, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((1, 2, 3, 3), (3, 2, 1, 1), {"pads": [2, 2, 2, 2]}),
    ((2, 3, 30), (16, 3, 7), {"strides": [2], "pads": [3, 3]}),
    ((1, 6, 50), (6, 1, 31), {"group": 6, "pads": [15, 15]}),
    ((1, 3, 200), (5, 3, 64), {"pads": [40, 32]}),
    ((1, 3, 40), (5, 3, 64), {"pads": [32, 32], "dilations": [1]}),
    ((1, 4, 6, 7, 8), (5, 4, 3, 3, 3), {"pads": [1] * 6}),
    ((2, 24, 5, 6, 7), (24, 1, 3, 3, 3), {"group": 24, "pads": [1] * 6, "strides": [1, 2, 1]}),
]


@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize(("x", "w", "attributes"), _CONVOLUTIONS, ids=str)
def test_convolutions(check: Check, x: Any, w: Any, attributes: Any, bias: bool) -> None:
    made = node("Conv", ["x", "w", "b"] if bias else ["x", "w"], ["o"], **attributes)
    check([made], {"x": _f(*x)}, constants={"w": _f(*w)} | ({"b": _f(w[0])} if bias else {}))


@pytest.mark.parametrize(("groups", "inputs"), [(1, 12), (3, 4), (12, 1)])
def test_convolution_in_double_precision(check: Check, groups: int, inputs: int) -> None:
    x, w = (_f(*s).astype(np.float64) for s in ((1, 12, 8, 8), (12, inputs, 3, 3)))
    check([node("Conv", ["x", "w"], ["o"], pads=[1] * 4, group=groups)], {"x": x}, constants={"w": w})


def test_convolutions_are_offered_channels_last_only(check: Check) -> None:
    [variant] = check(
        [node("Conv", ["x", "w"], ["o"])], {"x": _f(1, 4, 5, 6)}, constants={"w": _f(3, 4, 2, 2)}
    )
    assert str(variant.inputs[0]) == str(variant.outputs[0]) == "float32:0231"


_SIDES = st.sampled_from([1, 2, 3, 5, 8, 13, 19])
_CHANNELS = st.sampled_from([1, 2, 3, 4, 8, 15, 16, 17, 33])


@st.composite
def _convolutions(draw: st.DrawFn) -> tuple[Any, Any, dict[str, Any]]:
    groups = draw(st.sampled_from([1, 1, 2, 4, 16, 19]))
    inputs = 1 if groups > 4 else draw(_CHANNELS)
    outputs = draw(st.sampled_from([1, 1, 2, 3])) if groups > 4 else draw(_CHANNELS)
    kernel = [draw(st.integers(1, 4)) for _ in range(2)]
    dilations = [draw(st.integers(1, 3)) for _ in range(2)]
    pads = [draw(st.integers(0, 3)) for _ in range(4)]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    space = [max(draw(_SIDES), r - pads[i] - pads[2 + i]) for i, r in enumerate(reach)]
    attributes = {
        "group": groups,
        "dilations": dilations,
        "pads": pads,
        "strides": [draw(st.integers(1, 3)) for _ in range(2)],
    }
    shape = (draw(st.integers(1, 2)), groups * inputs, *(max(1, s) for s in space))
    return shape, (groups * outputs, inputs, *kernel), attributes


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(_convolutions(), st.booleans())
def test_any_convolution(check: Check, drawn: tuple[Any, Any, dict[str, Any]], activated: bool) -> None:
    x, w, attributes = drawn
    nodes = [node("Conv", ["x", "w", "b"], ["c" if activated else "o"], **attributes)]
    if activated:
        nodes.append(node("HardSwish", ["c"], ["o"]))
    check(nodes, {"x": _f(*x)}, constants={"w": _f(*w), "b": _f(w[0])})


@st.composite
def _products(draw: st.DrawFn) -> tuple[Any, Any]:
    sizes = st.sampled_from([1, 2, 3, 7, 15, 16, 17, 31, 33, 70])
    m, k, n = draw(sizes), draw(sizes), draw(sizes)
    batch = draw(st.lists(st.sampled_from([1, 2, 3]), max_size=2))
    a, b = (
        [d if draw(st.booleans()) else 1 for d in batch][draw(st.integers(0, len(batch))) :] for _ in "ab"
    )
    left = [k] if not a and draw(st.booleans()) else [*a, m, k]
    right = [k] if not b and draw(st.booleans()) else [*b, k, n]
    return tuple(left), tuple(right)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(_products(), st.sampled_from(["none", "left", "right"]))
def test_any_product(check: Check, drawn: tuple[Any, Any], constant: str) -> None:
    given = {"a": _f(*drawn[0]), "b": _f(*drawn[1])}
    held = {"left": "a", "right": "b"}.get(constant, "")
    constants = {held: given.pop(held)} if held else {}
    check([node("MatMul", ["a", "b"], ["o"])], given, constants=constants)


@pytest.mark.parametrize("a_turned", [0, 1])
@pytest.mark.parametrize("b_turned", [0, 1])
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("c", [(), (35,), (1, 35), (20, 1), (20, 35)], ids=str)
def test_gemm(check: Check, a_turned: int, b_turned: int, constant: bool, c: Any) -> None:
    a, b = _f(*(9, 20) if a_turned else (20, 9)), _f(*(35, 9) if b_turned else (9, 35))
    beta = 2.0 if len(c) == 2 else 1.0
    inputs, constants = {"a": a, "b": b}, {"c": _f(*c)}
    if constant:
        constants["b"] = inputs.pop("b")
    check(
        [node("Gemm", ["a", "b", "c"], ["o"], transA=a_turned, transB=b_turned, alpha=0.5, beta=beta)],
        inputs,
        constants=constants,
    )


def test_gemm_without_addend(check: Check) -> None:
    check([node("Gemm", ["a", "b"], ["o"])], {"a": _f(5, 6)}, constants={"b": _f(6, 7)})
    check(
        [node("Gemm", ["a", "b", "c"], ["o"], beta=0.0)],
        {"a": _f(5, 6), "c": _f(7)},
        constants={"b": _f(6, 7)},
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [(3, 35, 50), (40, 64, 4), (7, 16, 16)], ids=str)
def test_columns_that_lie_apart(check: Check, size: tuple[int, int, int], dtype: Any) -> None:
    m, k, n = size
    made = node("Gemm", ["a", "b"], ["o"], transB=1)
    check([made], {"a": _f(m, k).astype(dtype), "b": _f(n, k).astype(dtype)})


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_large_contractions_are_shared_out_to_threads(check: Check, threads: int) -> None:
    made = [node("Conv", ["x", "w", "b"], ["o"], pads=[1] * 4)]
    check(made, {"x": _f(1, 64, 23, 37)}, constants={"w": _f(70, 64, 3, 3), "b": _f(70)}, threads=threads)
    many = {"w": _f(300, 200, 1, 1), "b": _f(300)}  # more than stays in a cache: columns outermost
    check([node("Conv", ["x", "w", "b"], ["o"])], {"x": _f(1, 200, 9, 9)}, constants=many, threads=threads)
    check([node("MatMul", ["a", "b"], ["o"])], {"a": _f(5, 61, 40), "b": _f(5, 40, 50)}, threads=threads)


def test_convolution_with_normalization_residual_and_activation(check: Check) -> None:
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"]),
        node("Add", ["n", "y"], ["a"]),
        node("Relu", ["a"], ["o"]),
    ]
    constants = {"w": _f(24, 12, 3, 3), "s": _f(24), "b": _f(24), "m": _f(24), "v": np.abs(_f(24)) + 0.1}
    check(nodes, {"x": _f(2, 12, 11, 9), "y": _f(2, 24, 11, 9)}, constants=constants)


def test_scaled_convolution_swish_is_a_diamond(check: Check) -> None:
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], pads=[1] * 4, group=40),
        node("Sigmoid", ["c"], ["s"]),
        node("Mul", ["c", "s"], ["m"]),
        node("Mul", ["m", "e"], ["o"]),
    ]
    constants = {"w": _f(40, 1, 3, 3), "b": _f(40)}
    check(nodes, {"x": _f(2, 40, 14, 15), "e": _f(2, 40, 1, 1)}, constants=constants)


def test_product_with_bias_gelu_and_residual(check: Check) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["p"]),
        node("Add", ["p", "b"], ["a"]),
        node("Gelu", ["a"], ["g"]),
        node("Add", ["y", "g"], ["o"]),
    ]
    constants = {"w": _f(48, 100), "b": _f(100)}
    check(nodes, {"x": _f(2, 37, 48), "y": _f(2, 37, 100)}, constants=constants)


def test_scaled_and_masked_scores(check: Check) -> None:
    nodes = [
        node("MatMul", ["q", "k"], ["p"]),
        node("Mul", ["p", "scale"], ["s"]),
        node("Add", ["s", "mask"], ["o"]),
    ]
    inputs = {"q": _f(2, 3, 33, 24), "k": _f(2, 3, 24, 50), "mask": _f(2, 1, 1, 50)}
    check(nodes, inputs, constants={"scale": np.float32(0.2)})


def test_the_result_may_be_of_another_type(check: Check) -> None:
    nodes = [node("MatMul", ["x", "w"], ["p"]), node("Greater", ["p", "zero"], ["o"])]
    check(nodes, {"x": _f(9, 20)}, constants={"w": _f(20, 40), "zero": np.float32(0)})


_RELU = [node("Relu", ["x"], ["r"])]
_WEIGHTS = {"w": _f(3, 2, 3, 3), "m": _f(4, 4)}


@pytest.mark.parametrize(
    ("nodes", "inputs", "constants", "reason"),
    [
        (
            [node("Conv", ["x", "w"], ["o"])],
            {"x": _f(1, 2, 4, 4), "w": _f(3, 2, 3, 3)},
            {},
            "tensor of weights is not a constant",
        ),
        (
            [node("Conv", ["x", "w"], ["o"])],
            {"x": _f(1, 2, 4, 4).astype(np.float16)},
            {"w": _f(3, 2, 3, 3).astype(np.float16)},
            "not for float16",
        ),
        (
            [*_RELU, node("Conv", ["r", "w"], ["o"])],
            {"x": _f(1, 2, 4, 4)},
            _WEIGHTS,
            "nothing is fused into its input",
        ),
        (
            [*_RELU, node("MatMul", ["m", "r"], ["o"])],
            {"x": _f(4, 4)},
            _WEIGHTS,
            "nothing is fused into its input",
        ),
        (
            [node("MatMul", ["x", "m"], ["p"]), node("Softmax", ["p"], ["o"])],
            {"x": _f(4, 4)},
            _WEIGHTS,
            "only arithmetic is done in the kernel of a MatMul",
        ),
        (
            [node("MatMul", ["x", "m"], ["p"]), node("Transpose", ["p"], ["o"])],
            {"x": _f(4, 4)},
            _WEIGHTS,
            "only arithmetic",
        ),
        (
            [
                node("MatMul", ["x", "m"], ["p"]),
                node("MatMul", ["x", "m"], ["q"]),
                node("Add", ["p", "q"], ["o"]),
            ],
            {"x": _f(4, 4)},
            _WEIGHTS,
            "second contraction",
        ),
        (
            [node("MatMul", ["x", "m"], ["p"]), node("Add", ["p", "y"], ["o"])],
            {"x": _f(1, 4), "y": _f(4, 4)},
            _WEIGHTS,
            "broadcast to another shape",
        ),
        (
            [node("ConvTranspose", ["x", "w"], ["o"])],
            {"x": _f(1, 3, 4, 4)},
            _WEIGHTS,
            "no schedule for ConvTranspose",
        ),
        ([node("Einsum", ["x"], ["o"], equation="ij->ji")], {"x": _f(4, 4)}, {}, "no schedule for Einsum"),
        (
            [node("MatMul", ["x", "y"], ["o"])],
            {"x": np.ones((2, 2), np.int32), "y": np.ones((2, 2), np.int32)},
            {},
            "not for int32",
        ),
    ],
)
def test_refusals(refusal: Refusing, nodes: Any, inputs: Any, constants: Any, reason: str) -> None:
    answer = refusal(nodes, inputs, list(nodes[-1].output), constants)
    assert re.search(reason, answer.reason), answer
    assert answer.node is not None


def test_two_results_of_one_contraction_are_declined(refusal: Refusing) -> None:
    nodes = [node("MatMul", ["x", "m"], ["p"]), node("Relu", ["p"], ["o"])]
    answer = refusal(nodes, {"x": _f(4, 4)}, ["p", "o"], _WEIGHTS)
    assert "has one output" in answer.reason


@pytest.mark.parametrize("turned", ["a", "b", "o", "ab", "abo"])
def test_transposes_beside_a_product_are_taken_as_layouts(turned: str) -> None:
    """As attention has them: heads are the third dimension of what the projections compute."""
    q, k = (("b", 33, 3, 24) if n in turned else ("b", 3, 33, 24) for n in "ab")
    a, b = _f(2, *q[1:]), _f(2, *k[1:])
    nodes = [node("Relu", ["a"], ["ra"]), node("Relu", ["b"], ["rb"])]
    left = "ra"
    if "a" in turned:
        nodes.append(node("Transpose", ["ra"], ["ta"], perm=[0, 2, 1, 3]))
        left = "ta"
    nodes.append(node("Transpose", ["rb"], ["tb"], perm=[0, 2, 3, 1] if "b" in turned else [0, 1, 3, 2]))
    nodes.append(node("MatMul", [left, "tb"], ["p" if "o" in turned else "o"]))
    if "o" in turned:
        nodes.append(node("Transpose", ["p"], ["o"], perm=[0, 2, 1, 3]))
    graph = make_graph(nodes, {"a": a, "b": b})
    [product] = [n for n in graph.nodes if n.op_type == "MatMul"]
    group = Subgraph(graph, [product.id])
    x = np.maximum(a, 0).transpose([0, 2, 1, 3] if "a" in turned else [0, 1, 2, 3])
    y = np.maximum(b, 0).transpose([0, 2, 3, 1] if "b" in turned else [0, 1, 3, 2])
    kernels = check_group(
        TvmBackend(),
        group,
        {"a": a, "b": b},
        Target("cpu", 2),
        expected={group.outputs[0]: x @ y},
        tolerances={"float32": 1e-5},
    )
    assert len(kernels) == 2 ** (1 + ("a" in turned) + ("o" in turned))


def test_rule_generates_chains_after_contractions() -> None:
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("Conv", ["r", "w"], ["c"], pads=[1] * 4),
        node("Add", ["c", "r"], ["a"]),
        node("Sigmoid", ["a"], ["s"]),
        node("Mul", ["a", "s"], ["m"]),
        node("MaxPool", ["m"], ["o"], kernel_shape=[2, 2]),
    ]
    graph = make_graph(nodes, {"x": _f(1, 4, 8, 8)}, {"w": _f(4, 4, 3, 3)})
    target = Target("cpu", 2)
    offered = {
        g: TvmBackend().variants(Subgraph(graph, g), target) for g in generate(graph, tvm_rule()).groups
    }
    groups = [g for g, said in offered.items() if not isinstance(said, Refusal)]
    ids = {n.outputs[0]: n.id for n in graph.nodes}
    assert NodeSet([ids["c"]]) in groups
    assert NodeSet([ids[v] for v in "casm"]) in groups
    assert not any(ids["c"] in g and (ids["r"] in g or ids["o"] in g) for g in groups)
