"""MatMul and Gemm over drawn shapes, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from collage_core.devices import IMMEDIATE
from collage_core.formats import empty
from collage_core.ir import Subgraph
from collage_core.testing import check_group, make_graph, node

_SETTINGS = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
_TOLERANCES = {"float32": 1e-6}
_DTYPES = st.sampled_from(["float32", "float64"])
_MATMUL = hnp.mutually_broadcastable_shapes(signature="(m?,k),(k,n?)->(m?,n?)", max_dims=3, max_side=5)


def _values(shape: tuple[int, ...] | list[int], seed: int, dtype: str = "float32") -> Any:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


@given(_MATMUL, st.sampled_from(["", "a", "b"]), _DTYPES)
@_SETTINGS
def test_matmul(run_product: Any, shapes: hnp.BroadcastableShapes, constant: str, dtype: str) -> None:
    a, b = (_values(s, i, dtype) for i, s in enumerate(shapes.input_shapes))
    values = {"a": a, "b": b}
    constants = {constant: values.pop(constant)} if constant else {}
    run_product(node("MatMul", ["a", "b"], ["y"]), values, constants)


@given(
    st.tuples(*[st.integers(1, 6)] * 3),
    st.tuples(*[st.booleans()] * 2),
    st.sampled_from([1.0, 0.5]),
    st.sampled_from([1.0, -2.0, 0.0]),
    st.sampled_from([None, "", "n", "1n", "mn", "m1", "1"]),
    st.sampled_from([(), ("a",), ("b",), ("c",), ("a", "c"), ("b", "c")]),
    _DTYPES,
)
@_SETTINGS
def test_gemm(
    run_product: Any,
    sizes: tuple[int, int, int],
    flags: tuple[bool, bool],
    alpha: float,
    beta: float,
    addend: str | None,
    constant: tuple[str, ...],
    dtype: str,
) -> None:
    """`addend`: the dimensions of C, None where there is none, "" for a scalar."""
    m, k, n = sizes
    trans_a, trans_b = flags
    values = {
        "a": _values((k, m) if trans_a else (m, k), 0, dtype),
        "b": _values((n, k) if trans_b else (k, n), 1, dtype),
    }
    if addend is not None:
        values["c"] = _values([{"m": m, "n": n, "1": 1}[d] for d in addend], 2, dtype)
    made = node("Gemm", list(values), ["y"], transA=int(trans_a), transB=int(trans_b), alpha=alpha, beta=beta)
    constants = {name: values.pop(name) for name in constant if name in values}
    run_product(made, values, constants)


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (2, 3, 1), (17, 33, 29), (64, 1, 65), (129, 257, 63), (3, 5, 511)]
)
@pytest.mark.parametrize("trans", [0, 1])
@pytest.mark.parametrize("constant", ["a", "b"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_packed_operands(
    run_product: Any, shape: tuple[int, int, int], trans: int, constant: str, dtype: str
) -> None:
    """Sizes that fill no tile; alpha is packed with the constant."""
    m, k, n = shape
    values = {
        "a": _values((k, m) if trans else (m, k), 0, dtype),
        "b": _values((n, k) if trans else (k, n), 1, dtype),
    }
    constants = {constant: values.pop(constant)}
    made = node("Gemm", ["a", "b"], ["y"], transA=trans, transB=trans, alpha=-1.5)
    run_product(made, values, constants)


_PERMS = [(0, 2, 1, 3), (0, 1, 3, 2), (0, 2, 3, 1)]


@pytest.mark.parametrize("perm_a", _PERMS)
@pytest.mark.parametrize("perm_b", _PERMS)
def test_products_beside_transposes_are_offered_as_views(
    backend: Any, target: Any, perm_a: Any, perm_b: Any
) -> None:
    """The product between Transposes: plain and permuted in every combination, each right."""
    a, b = _values((2, 3, 4, 5), 0), _values((2, 3, 5, 6), 1)
    u, v = (np.ascontiguousarray(x.transpose(np.argsort(p))) for x, p in ((a, perm_a), (b, perm_b)))
    nodes = [
        node("Transpose", ["u"], ["a"], perm=perm_a),
        node("Transpose", ["v"], ["b"], perm=perm_b),
        node("MatMul", ["a", "b"], ["p"]),
        node("Transpose", ["p"], ["y"], perm=[0, 2, 1, 3]),
    ]
    graph = make_graph(nodes, {"u": u, "v": v})
    subgraph = Subgraph(graph, [graph.nodes[2].id])
    variants = check_group(
        backend, subgraph, {"u": u, "v": v}, target, expected={"p": a @ b}, tolerances=_TOLERANCES
    )
    assert len(variants) == 8
    assert {v.inputs[0].layout for v in variants} == {(0, 1, 2, 3), tuple(np.argsort(perm_a))}
    assert {v.inputs[1].layout for v in variants} == {(0, 1, 2, 3), tuple(np.argsort(perm_b))}
    assert {v.outputs[0].layout for v in variants} == {(0, 1, 2, 3), (0, 2, 1, 3)}


def test_matrices_of_transposes_are_offered_in_either_order(backend: Any, target: Any) -> None:
    """Two dimensions, weights packed: the input by its columns, the output by its columns."""
    x, w = _values((7, 5), 0), _values((5, 6), 1)
    nodes = [
        node("Transpose", ["u"], ["x"]),
        node("Gemm", ["x", "w", "c"], ["p"], alpha=0.5, beta=2.0),
        node("Transpose", ["p"], ["y"]),
    ]
    inputs = {"u": np.ascontiguousarray(x.T), "c": _values((7, 6), 2)}
    graph = make_graph(nodes, inputs, {"w": w})
    subgraph = Subgraph(graph, [graph.nodes[1].id])
    expected = {"p": 0.5 * (x @ w) + 2 * inputs["c"]}
    kernels = check_group(backend, subgraph, inputs, target, expected=expected, tolerances=_TOLERANCES)
    layouts = {(v.inputs[0].layout, v.outputs[0].layout) for v in kernels}
    assert layouts == {(i, o) for i in ((0, 1), (1, 0)) for o in ((0, 1), (1, 0))}
    for variant, kernel in kernels.items():
        assert kernel.may_alias == {0: 1}
        assert variant.inputs[1] == variant.outputs[0], "it was not tried in place"


def test_what_gemm_cannot_read_or_write_is_not_offered(backend: Any, target: Any) -> None:
    """Transpositions that leave neither rows nor columns in one piece."""
    nodes = [
        node("Transpose", ["u"], ["a"], perm=[2, 0, 1]),
        node("Transpose", ["v"], ["b"], perm=[1, 2, 0]),
        node("MatMul", ["a", "b"], ["p"]),
        node("Transpose", ["p"], ["y"], perm=[1, 2, 0]),
    ]
    graph = make_graph(nodes, {"u": _values((4, 5, 3), 0), "v": _values((6, 3, 5), 1)})
    subgraph = Subgraph(graph, [graph.nodes[2].id])
    offered = backend.variants(subgraph, target)
    assert {v.inputs[0].layout for v in offered} == {(0, 1, 2)}
    assert {v.inputs[1].layout for v in offered} == {(0, 1, 2), (2, 0, 1)}  # columns of `b` are in one piece
    assert {v.outputs[0].layout for v in offered} == {(0, 1, 2)}


def test_rows_of_a_batch_are_one_product(run_product: Any) -> None:
    """[2, 3, 4, 5] @ [5, 6] is one packed product of 24 rows."""
    made = node("MatMul", ["a", "b"], ["y"])
    a, b = _values((2, 3, 4, 5), 0), _values((5, 6), 1)
    (kernel,) = run_product(made, {"a": a}, {"b": b})
    assert (kernel._product.m, kernel._product.batch, kernel._product.packs) == (24, 1, True)


def test_a_value_with_itself(run_product: Any) -> None:
    run_product(node("MatMul", ["x", "x"], ["y"]), {"x": _values((5, 5), 0)})
    run_product(node("Gemm", ["x", "x", "x"], ["y"], transA=1), {"x": _values((5, 5), 0)})
    run_product(node("Gemm", ["x", "w", "w"], ["y"]), {"x": _values((5, 5), 0)}, {"w": _values((5, 5), 1)})


def test_gemm_without_its_addend(run_product: Any) -> None:
    """An input that may be left out is left out by an empty name, too."""
    made = node("Gemm", ["x", "w", ""], ["y"])
    assert run_product(made, {"x": _values((5, 7), 0)}, {"w": _values((7, 6), 1)})


def test_only_an_addend_of_its_own_shares_the_output(run_product: Any) -> None:
    square = {n: _values((5, 5), i) for i, n in enumerate("abc")}
    for names, shares in (("abc", {0: 2}), ("aba", {}), ("abb", {})):
        values = {n: square[n] for n in dict.fromkeys(names)}
        (kernel,) = run_product(node("Gemm", list(names), ["y"]), values)
        assert kernel.may_alias == shares
    (kernel,) = run_product(node("Gemm", ["a", "b", "c"], ["y"], beta=0.0), square)
    assert kernel.may_alias == {}
    (kernel,) = run_product(node("Gemm", ["a", "b", "c"], ["y"]), {**square, "c": _values((5,), 2)})
    assert kernel.may_alias == {}


@pytest.mark.parametrize("shapes", [((6, 40), (40, 30)), ((3, 6, 40), (3, 40, 30))])
@pytest.mark.parametrize("constant", [False, True])
def test_interleaved_calls_of_one_kernel(backend: Any, target: Any, shapes: Any, constant: bool) -> None:
    a, b = (_values(s, i) for i, s in enumerate(shapes))
    made = node("MatMul", ["a", "b"], ["y"])
    graph = make_graph([made], {"a": a} if constant else {"a": a, "b": b}, {"b": b} if constant else {})
    subgraph = Subgraph(graph, graph.all_nodes)
    (variant,) = backend.variants(subgraph, target)
    kernel = backend.build(subgraph, variant, target)
    calls, inputs, outputs = [], [], []
    for _ in range(3):
        arrays = [empty(graph.shape_of(v), f) for v, f in zip(subgraph.inputs, variant.inputs, strict=True)]
        output = empty(graph.shape_of("y"), variant.outputs[0])
        calls.append(kernel.bind(arrays, [output], np.empty(0, np.uint8), IMMEDIATE))
        inputs.append(arrays)
        outputs.append(output)
    del kernel
    for seed in range(2):
        for i in (2, 0, 1):  # what they hold when they are called counts, not when they were bound
            inputs[i][0][...] = _values(shapes[0], 10 * seed + i)
            if not constant:
                inputs[i][1][...] = _values(shapes[1], 20 * seed + i + 3)
            assert not calls[i]()
        for i in range(3):
            expected = inputs[i][0] @ (b if constant else inputs[i][1])
            np.testing.assert_allclose(outputs[i], expected, rtol=0, atol=1e-4)
