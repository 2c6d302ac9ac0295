"""MatMul, Gemm and binary operators over drawn shapes, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from collage_core.errors import Refusal
from collage_core.ir import Subgraph
from collage_core.testing import check_group, make_graph, node

_SETTINGS = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
Floats = np.ndarray[Any, np.dtype[np.float32]]


def _values(shape: tuple[int, ...] | list[int], seed: int) -> Floats:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape), np.float32)


_MATMUL = hnp.mutually_broadcastable_shapes(signature="(m?,k),(k,n?)->(m?,n?)", max_dims=3, max_side=5)


@given(_MATMUL, st.sampled_from(["", "a", "b"]))
@_SETTINGS
def test_matmul(run_group: Any, shapes: hnp.BroadcastableShapes, constant: str) -> None:
    a, b = (_values(s, i) for i, s in enumerate(shapes.input_shapes))
    values = {"a": a, "b": b}
    constants = {constant: values.pop(constant)} if constant else {}
    run_group([node("MatMul", ["a", "b"], ["y"])], values, constants)


@given(_MATMUL, st.data())
@_SETTINGS
def test_matmul_with_an_operand(run_group: Any, shapes: hnp.BroadcastableShapes, data: st.DataObject) -> None:
    """A bias or residual of any shape that broadcasts to the product, constant or not."""
    result = shapes.result_shape
    kept = [d if data.draw(st.booleans()) else 1 for d in result]
    shape = tuple(kept[data.draw(st.integers(0, len(kept))) :])
    a, b, c = (_values(s, i) for i, s in enumerate([*shapes.input_shapes, shape]))
    nodes = [node("MatMul", ["a", "b"], ["p"]), node("Add", ["p", "c"], ["y"])]
    if data.draw(st.booleans()):
        nodes.append(node("Gelu", ["y"], ["z"]))
    values = {"a": a, "c": c, "b": b}
    constants = {n: values.pop(n) for n in data.draw(st.sampled_from([(), ("b",), ("c",), ("b", "c")]))}
    run_group(nodes, values, constants)


@given(
    st.tuples(*[st.integers(1, 6)] * 3),
    st.tuples(*[st.booleans()] * 4),
    st.sampled_from([1.0, 0.5]),
    st.sampled_from([1.0, -2.0, 0.0]),
    st.sampled_from([None, "n", "1n", "mn", "m1", "1"]),
)
@_SETTINGS
def test_gemm(
    run_group: Any,
    sizes: tuple[int, int, int],
    flags: tuple[bool, bool, bool, bool],
    alpha: float,
    beta: float,
    addend: str | None,
) -> None:
    m, k, n = sizes
    trans_a, trans_b, constant_b, constant_c = flags
    values = {"a": _values((k, m) if trans_a else (m, k), 0), "b": _values((n, k) if trans_b else (k, n), 1)}
    if addend is not None:
        values["c"] = _values([{"m": m, "n": n, "1": 1}[d] for d in addend], 2)
    made = node("Gemm", list(values), ["y"], transA=int(trans_a), transB=int(trans_b), alpha=alpha, beta=beta)
    names = [
        name for name, is_constant in (("b", constant_b), ("c", constant_c)) if is_constant and name in values
    ]
    constants = {name: values.pop(name) for name in names}
    run_group([made, node("Relu", ["y"], ["z"])], values, constants)


_BINARY = st.sampled_from(["Add", "Sub", "Mul", "Div", "Max", "Min"])


@given(
    hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=5, max_side=4),
    _BINARY,
    st.sampled_from([None, 0, 1]),
)
@_SETTINGS
def test_binary(
    run_group: Any,
    backend: Any,
    target: Any,
    shapes: hnp.BroadcastableShapes,
    op: str,
    constant: int | None,
) -> None:
    names = ["x", "y"]
    values = {n: _values(s, i) for i, (n, s) in enumerate(zip(names, shapes.input_shapes, strict=True))}
    if op == "Div":
        values = {
            n: np.asarray(np.sign(v) * (np.abs(v) + np.float32(0.2)), np.float32) for n, v in values.items()
        }
    constants = {} if constant is None else {names[constant]: values.pop(names[constant])}
    made = node(op, names, ["z"])
    graph = make_graph([made], values, constants)
    offered = backend.variants(Subgraph(graph, graph.all_nodes), target)
    full = any(v.shape == shapes.result_shape for v in values.values())
    assert isinstance(offered, Refusal) != full
    if isinstance(offered, Refusal):
        assert "shape of the output" in offered.reason
    else:
        run_group([made], values, constants)


@pytest.mark.parametrize("op", ["Add", "Mul", "Max", "Sum", "Mean", "Min"])
def test_several_operands(run_group: Any, op: str) -> None:
    shapes = {"a": (2, 3, 4), "b": (2, 3, 4), "c": (3, 1)}
    names = list(shapes)[: 2 if op in ("Add", "Mul") else 3]
    run_group([node(op, names, ["y"])], {n: _values(shapes[n], i) for i, n in enumerate(names)})


@pytest.mark.parametrize("op", ["Add", "Mul"])
def test_a_value_with_itself(run_group: Any, op: str) -> None:
    run_group([node(op, ["x", "x"], ["y"])], {"x": _values((3, 4), 0)})


@given(
    st.sampled_from([(0, 2, 1, 3), (0, 1, 3, 2), (0, 2, 3, 1)]),
    st.sampled_from([(0, 2, 1, 3), (0, 1, 3, 2), (0, 2, 3, 1)]),
)
@_SETTINGS
def test_products_beside_transposes_are_offered_as_views(
    run_group: Any,
    backend: Any,
    target: Any,
    perm_a: tuple[int, ...],
    perm_b: tuple[int, ...],
) -> None:
    """The product between Transposes: plain and permuted in every combination, each right."""
    assume(perm_a != perm_b or perm_a == (0, 2, 1, 3))
    a, b = _values((2, 3, 4, 5), 0), _values((2, 3, 5, 6), 1)
    stored_a, stored_b = (
        np.ascontiguousarray(v.transpose(np.argsort(p))) for v, p in ((a, perm_a), (b, perm_b))
    )
    nodes = [
        node("Transpose", ["u"], ["a"], perm=perm_a),
        node("Transpose", ["v"], ["b"], perm=perm_b),
        node("MatMul", ["a", "b"], ["p"]),
        node("Transpose", ["p"], ["y"], perm=[0, 2, 1, 3]),
    ]
    inputs = {"u": stored_a, "v": stored_b}
    graph = make_graph(nodes, inputs)
    subgraph = Subgraph(graph, [graph.nodes[2].id])
    variants = check_group(
        backend, subgraph, inputs, target, expected={"p": a @ b}, tolerances={"float32": 1e-5}
    )
    assert len(variants) == 8
    assert {v.inputs[0].layout for v in variants} == {(0, 1, 2, 3), tuple(np.argsort(perm_a))}
    assert {v.inputs[1].layout for v in variants} == {(0, 1, 2, 3), tuple(np.argsort(perm_b))}
    assert {v.outputs[0].layout for v in variants} == {(0, 1, 2, 3), (0, 2, 1, 3)}


def test_gemm_without_its_addend(run_group: Any) -> None:
    """An input that may be left out is left out by an empty name, too."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((5, 7), (7, 6)))
    assert run_group([node("Gemm", ["x", "w", ""], ["y"])], {"x": x}, {"w": w}).kernels
