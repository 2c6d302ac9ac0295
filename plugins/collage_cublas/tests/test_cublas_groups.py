"""What follows a product is computed in the same call."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from collage_cublas.backend import CublasBackend
from collage_cublas.patterns import patterns
from cublas_emulation import ROUNDING, TARGET, Emulation

from collage_core.ir import Subgraph
from collage_core.patterns import find_matches
from collage_core.testing import make_graph, make_group, node


def _values(*shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def _chain(*nodes: tuple[Any, ...]) -> list[onnx.NodeProto]:
    """(operator, what it reads besides the value before, attributes) each; the first reads `a` and `b`."""
    made, running = [], "a"
    for i, (op, *rest) in enumerate(nodes):
        names = [name for name in rest if isinstance(name, str)]
        attributes = next((r for r in rest if isinstance(r, dict)), {})
        made.append(node(op, [running, *names], [f"v{i}"], **attributes))
        running = f"v{i}"
    return made


_TANH = {"approximate": "tanh"}


@pytest.mark.parametrize("product", ["MatMul", "Gemm"])
@pytest.mark.parametrize(
    ("epilogue", "nodes"),
    [
        ("BIAS", [("Add", "bias")]),
        ("RELU", [("Relu",)]),
        ("RELU_BIAS", [("Add", "bias"), ("Relu",)]),
        ("GELU", [("Gelu", _TANH)]),
        ("GELU_BIAS", [("Add", "bias"), ("Gelu", _TANH)]),
        ("RELU_BIAS", [("Add", "bias"), ("Add", "matrix"), ("Relu",)]),
        ("BIAS", [("Add", "matrix"), ("Add", "bias")]),
        ("DEFAULT", [("Add", "matrix")]),
    ],
)
@pytest.mark.parametrize("constant", [("b", "bias"), ("bias",), ("b", "matrix"), ()])
def test_fused(
    emulation: Emulation, product: str, epilogue: str, nodes: list[Any], constant: tuple[str, ...]
) -> None:
    read = {"a", "b"}.union(*({x for x in n if isinstance(x, str)} for n in nodes))
    values = {
        "a": _values(5, 7),
        "b": _values(7, 6, seed=1),
        "bias": _values(6, seed=2),
        "matrix": _values(5, 6, seed=3),
    }
    values = {name: v for name, v in values.items() if name in read}
    constants = {name: values.pop(name) for name in constant if name in values}
    emulation.check(_chain((product, "b"), *nodes), values, constants)
    assert {p["epilogue"] for p in emulation.bindings.products} == {epilogue}


@pytest.mark.parametrize(("op", "number", "alpha"), [("Mul", 0.125, 0.125), ("Div", 8.0, 0.125)])
def test_a_scaled_product_and_a_mask(emulation: Emulation, op: str, number: float, alpha: float) -> None:
    """As attention has it: the scale is alpha, the mask a matrix that all of the batch share."""
    values = {"a": _values(2, 3, 4, 5), "b": _values(2, 3, 5, 6, seed=1), "mask": _values(1, 1, 4, 6, seed=2)}
    constants = {"s": np.array(number, np.float32)}
    (kernel,) = emulation.check(
        _chain(("MatMul", "b"), (op, "s"), ("Add", "mask")), values, constants
    ).values()
    product = kernel.operation.product
    assert (product.alpha, product.beta, product.batch) == (alpha, 1.0, 6)
    assert product.c is not None
    assert product.c.stride == 0
    assert kernel.may_alias == {}


def test_a_bias_runs_along_the_last_axis(emulation: Emulation) -> None:
    """The bias is as long as the library's D has rows: n of them, for D is the transposed result."""
    nodes = _chain(("MatMul", "b"), ("Add", "bias"))
    values = {"a": np.zeros((2, 7), np.float32), "b": np.zeros((7, 3), np.float32)}
    bias = np.array([1, 2, 3], np.float32)
    (kernel,) = emulation.check(nodes, {**values, "bias": bias}).values()
    product = kernel.operation.product
    assert (product.m, product.n, product.d.rows, product.d.leading) == (3, 2, 3, 3)


def test_a_bias_of_a_result_that_lies_by_columns(emulation: Emulation) -> None:
    """Beside a Transpose: a constant bias becomes a matrix there, one that varies over rows a bias."""
    nodes = [*_chain(("MatMul", "b"), ("Add", "bias")), node("Transpose", ["v1"], ["y"])]
    a, b = _values(5, 7), _values(7, 6, seed=1)
    for shape, has_bias in (((6,), (True, False)), ((5, 1), (False, True))):
        bias = _values(*shape, seed=2)
        graph = make_graph(nodes, {"a": a, "b": b}, {"bias": bias})
        group = Subgraph(graph, [n.id for n in graph.nodes[:2]])
        kernels = emulation.check_group(group, {"a": a, "b": b}, expected={"v1": a @ b + bias})
        found = {v.outputs[0].layout: k.operation.product.has_bias for v, k in kernels.items()}
        assert found == {(0, 1): has_bias[0], (1, 0): has_bias[1]}
        graph = make_graph(nodes, {"a": a, "b": b, "bias": bias})
        group = Subgraph(graph, [n.id for n in graph.nodes[:2]])
        values = {"a": a, "b": b, "bias": bias}
        kernels = emulation.check_group(group, values, expected={"v1": a @ b + bias})
        assert [v.outputs[0].layout for v in kernels] == [(0, 1) if has_bias[0] else (1, 0)]


def test_patterns_find_all_groups_of_a_chain() -> None:
    nodes = _chain(("MatMul", "b"), ("Mul", "s"), ("Add", "bias"), ("Add", "matrix"), ("Relu",), ("Sigmoid",))
    graph = make_graph(
        nodes,
        {"a": _values(5, 7), "b": _values(7, 6), "matrix": _values(5, 6)},
        {"s": np.float32(0.5), "bias": _values(6)},
    )
    found = {
        str(m.subgraph)
        for p in patterns()
        for m in find_matches(graph, p.pattern)
        if p.check is None or p.check(m) is None
    }
    ends = ["", "+Mul", "+Mul+Add", "+Mul+Add+Add", "+Mul+Add+Add+Relu"]
    assert found == {f"MatMul{end}" for end in ends}


def test_patterns_find_the_tanh_form_alone() -> None:
    for attributes, groups in ((_TANH, ["Gemm", "Gemm+Gelu"]), ({}, ["Gemm"])):
        nodes = _chain(("Gemm", "b"), ("Gelu", attributes))
        graph = make_graph(nodes, {"a": _values(5, 7), "b": _values(7, 6)})
        found = {str(m.subgraph) for p in patterns() for m in find_matches(graph, p.pattern)}
        assert sorted(found) == groups


@pytest.mark.parametrize("op", ["MatMul", "Gemm"])
def test_a_float16_model(emulation: Emulation, op: str) -> None:
    values = {"a": _values(5, 7, dtype="float16")}
    constants = {"b": _values(7, 6, seed=1, dtype="float16"), "bias": _values(6, seed=2, dtype="float16")}
    (kernel,) = emulation.check(_chain((op, "b"), ("Add", "bias")), values, constants, TARGET).values()
    assert (kernel.operation.product.dtype, kernel.operation.product.out_dtype) == ("float16", "float16")
    assert all(p["REDUCTION_SCHEME_MASK"] == 2 for p in emulation.bindings.preferences)


def test_a_scale_behind_a_scale(emulation: Emulation) -> None:
    """A Gemm's own and that of what follows it."""
    nodes = [node("Gemm", ["a", "b"], ["p"], alpha=0.5), node("Mul", ["s", "p"], ["y"])]
    values = {"a": _values(5, 7), "b": _values(7, 6, seed=1)}
    (kernel,) = emulation.check(nodes, values, {"s": np.array([[0.25]], np.float32)}).values()
    assert kernel.operation.product.alpha == 0.125


def test_a_constant_mask_is_stored_once_for_the_batch(emulation: Emulation) -> None:
    values = {"a": _values(2, 3, 4, 5), "b": _values(2, 3, 5, 6, seed=1)}
    mask = _values(1, 1, 4, 6, seed=2)
    (kernel,) = emulation.check(_chain(("MatMul", "b"), ("Add", "mask")), values, {"mask": mask}).values()
    (memory,) = (m for m in kernel._memory if m is not None)
    assert memory.size_bytes == mask.nbytes


@pytest.mark.parametrize(("shapes", "m"), [(((9, 7), (7,)), 9), (((7,), (7, 9)), 9), (((9, 7), (7, 1)), 9)])
def test_a_vector_is_a_column(emulation: Emulation, shapes: Any, m: int) -> None:
    """Whichever of the factors it is: the library reads and writes long columns."""
    values = {name: _values(*shape, seed=i) for i, (name, shape) in enumerate(zip("ab", shapes, strict=True))}
    (kernel,) = emulation.check(_chain(("MatMul", "b")), values).values()
    product = kernel.operation.product
    assert (product.m, product.n) == (m, 1)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_only_float32_is_rounded(backend: CublasBackend, dtype: str) -> None:
    values = {"a": _values(5, 7, dtype=dtype), "b": _values(7, 6, dtype=dtype)}
    group = make_group(_chain(("MatMul", "b")), values)
    assert backend.variants(group, ROUNDING) == backend.variants(group, TARGET)
