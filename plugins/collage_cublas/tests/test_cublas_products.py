"""MatMul and Gemm over drawn shapes, against the reference: what the library would compute from the
descriptors that it is given.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cublas_emulation import ROUNDING, Emulation
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from collage_core.ir import Subgraph
from collage_core.testing import make_graph, node

_SETTINGS = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
_DTYPES = st.sampled_from(["float32", "float64", "float16"])
_MATMUL = hnp.mutually_broadcastable_shapes(signature="(m?,k),(k,n?)->(m?,n?)", max_dims=3, max_side=4)


def _values(shape: tuple[int, ...] | list[int], seed: int, dtype: str = "float32") -> Any:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


@given(_MATMUL, st.sampled_from(["", "a", "b"]), _DTYPES)
@_SETTINGS
def test_matmul(emulation: Emulation, shapes: hnp.BroadcastableShapes, constant: str, dtype: str) -> None:
    a, b = (_values(s, i, dtype) for i, s in enumerate(shapes.input_shapes))
    values = {"a": a, "b": b}
    constants = {constant: values.pop(constant)} if constant else {}
    emulation.check([node("MatMul", ["a", "b"], ["y"])], values, constants)


@given(
    st.tuples(*[st.integers(1, 6)] * 3),
    st.tuples(*[st.booleans()] * 2),
    st.sampled_from([1.0, 0.5]),
    st.sampled_from([1.0, 0.0]),
    st.sampled_from([None, "", "n", "1n", "mn"]),
    st.sampled_from([(), ("a",), ("b",), ("c",), ("a", "c"), ("b", "c")]),
    _DTYPES,
)
@_SETTINGS
def test_gemm(
    emulation: Emulation,
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
    if addend == "" and "c" in values and beta and n > 1:  # a scalar that is no constant is no vector
        return
    emulation.check([made], values, constants)


@pytest.mark.parametrize("addend", ["m1", "1", "", "n", "mn"])
def test_a_constant_addend_of_any_shape_and_factor(emulation: Emulation, addend: str) -> None:
    c = _values([{"m": 5, "n": 6, "1": 1}[d] for d in addend], 2)
    made = node("Gemm", ["a", "b", "c"], ["y"], beta=-2.5)
    emulation.check([made], {"a": _values((5, 7), 0), "b": _values((7, 6), 1)}, {"c": c})


_PERMS = [(0, 2, 1, 3), (0, 1, 3, 2), (0, 2, 3, 1)]


@pytest.mark.parametrize("perm_a", _PERMS)
@pytest.mark.parametrize("perm_b", _PERMS)
def test_products_beside_transposes_are_offered_as_views(
    emulation: Emulation, perm_a: tuple[int, ...], perm_b: tuple[int, ...]
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
    variants = emulation.check_group(subgraph, {"u": u, "v": v}, expected={"p": a @ b})
    assert len(variants) == 8
    assert {v.inputs[0].layout for v in variants} == {(0, 1, 2, 3), tuple(np.argsort(perm_a))}
    assert {v.inputs[1].layout for v in variants} == {(0, 1, 2, 3), tuple(np.argsort(perm_b))}
    assert {v.outputs[0].layout for v in variants} == {(0, 1, 2, 3), (0, 2, 1, 3)}


def test_matrices_of_transposes_are_offered_in_either_order(emulation: Emulation) -> None:
    """Two dimensions: the input by its columns, the output by its columns. What is added follows it."""
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
    kernels = emulation.check_group(subgraph, inputs, expected=expected)
    layouts = {(v.inputs[0].layout, v.outputs[0].layout) for v in kernels}
    assert layouts == {(i, o) for i in ((0, 1), (1, 0)) for o in ((0, 1), (1, 0))}
    for variant, kernel in kernels.items():
        assert kernel.may_alias == {0: 1}
        assert variant.inputs[1] == variant.outputs[0], "it was not tried in place"


def test_a_value_with_itself(emulation: Emulation) -> None:
    square = {"x": _values((5, 5), 0)}
    emulation.check([node("MatMul", ["x", "x"], ["y"])], square)
    for names in (["x", "x", "x"], ["x", "x"]):
        (kernel,) = emulation.check([node("Gemm", names, ["y"], transA=1)], square).values()
        assert kernel.may_alias == {}


def test_a_batch_times_one_matrix_is_one_product(emulation: Emulation) -> None:
    """[2, 3, 4, 5] @ [5, 6] has 24 rows, with a bias or a matrix added."""
    a, b, bias, c = (_values(s, i) for i, s in enumerate([(2, 3, 4, 5), (5, 6), (6,), (2, 3, 4, 6)]))
    nodes = [
        node("MatMul", ["a", "b"], ["p"]),
        node("Add", ["p", "bias"], ["q"]),
        node("Add", ["c", "q"], ["y"]),
    ]
    (kernel,) = emulation.check(nodes, {"a": a, "c": c}, {"b": b, "bias": bias}).values()
    product = kernel.operation.product
    assert (product.m, product.n, product.k, product.batch) == (6, 24, 5, 1)
    assert product.has_bias
    assert kernel.may_alias == {0: 1}


def test_batches_that_are_not_one_are_several_calls(emulation: Emulation) -> None:
    """Heads between rows, as attention has them: the batch is not one strided batch."""
    a, b = _values((2, 7, 3, 5), 0), _values((2, 3, 5, 6), 1)
    nodes = [
        node("Transpose", ["a"], ["t"], perm=[0, 2, 1, 3]),
        node("MatMul", ["t", "b"], ["y"]),
    ]
    graph = make_graph(nodes, {"a": a, "b": b})
    subgraph = Subgraph(graph, [graph.nodes[1].id])
    kernels = emulation.check_group(subgraph, {"a": a, "b": b})
    calls = {v.inputs[0].layout: k.operation.product for v, k in kernels.items()}
    assert (calls[0, 1, 2, 3].batch, len(calls[0, 1, 2, 3].starts)) == (6, 1)
    assert (calls[0, 2, 1, 3].batch, len(calls[0, 2, 1, 3].starts)) == (3, 2)


@pytest.mark.parametrize("constant", ["a", "b"])
def test_rounded(emulation: Emulation, constant: str) -> None:
    """All in the narrow type, or the sums as they are. Constants are rounded when they are packed."""
    values = {"a": _values((17, 33), 0), "b": _values((33, 9), 1), "c": _values((9,), 2)}
    fixed = {name: values.pop(name) for name in (constant, "c")}
    nodes = [node("MatMul", ["a", "b"], ["p"]), node("Add", ["p", "c"], ["y"])]
    kernels = emulation.check(nodes, values, fixed, ROUNDING)
    found = {(k.operation.product.dtype, k.operation.product.out_dtype) for k in kernels.values()}
    narrow = {(t, out) for t in ("bfloat16", "float16") for out in (t, "float32")}
    assert found == {("float32", "float32"), *narrow}
    assert {p["compute"] for p in emulation.bindings.products} == {"COMPUTE_32F"}


def test_double_precision_is_computed_in_it(emulation: Emulation) -> None:
    values = {"a": _values((5, 7), 0, "float64"), "b": _values((7, 3), 1, "float64")}
    emulation.check([node("Gemm", ["a", "b"], ["y"], alpha=0.1)], values)
    assert {(p["compute"], p["scale"]) for p in emulation.bindings.products} == {("COMPUTE_64F", "float64")}
