"""Groups of several operators: what is fused, in which shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from collage_tvm.rules import tvm_rule
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_arrays import RANDOM, f

from collage_core.ir import NodeSet
from collage_core.rules import generate
from collage_core.testing import make_graph, node

Check = Callable[..., list[Any]]


def test_residual_and_layer_normalization(check: Check) -> None:
    nodes = [
        node("Add", ["x", "b"], ["s"]),
        node("Add", ["s", "y"], ["r"]),
        node("LayerNormalization", ["r", "g", "c"], ["o"]),
    ]
    check(nodes, {"x": f(2, 9, 77), "y": f(2, 9, 77)}, constants={"b": f(77), "g": f(77), "c": f(77)})


def test_scaled_masked_softmax(check: Check) -> None:
    mask = np.where(RANDOM.integers(0, 2, (2, 1, 1, 50)), 0, -np.inf).astype(np.float32)
    mask[..., 0] = 0
    nodes = [
        node("Mul", ["x", "k"], ["s"]),
        node("Add", ["s", "mask"], ["m"]),
        node("Softmax", ["m"], ["o"]),
    ]
    check(nodes, {"x": 9 * f(2, 3, 50, 50), "mask": mask}, constants={"k": np.float32(0.125)})


def test_layer_normalization_written_out(check: Check) -> None:
    nodes = [
        node("ReduceMean", ["x", "axes"], ["mean"]),
        node("Sub", ["x", "mean"], ["d"]),
        node("Pow", ["d", "two"], ["q"]),
        node("ReduceMean", ["q", "axes"], ["var"]),
        node("Add", ["var", "eps"], ["ve"]),
        node("Sqrt", ["ve"], ["sd"]),
        node("Div", ["d", "sd"], ["n"]),
        node("Mul", ["n", "g"], ["ng"]),
        node("Add", ["ng", "b"], ["o"]),
    ]
    constants = {
        "axes": np.array([-1]),
        "two": np.float32(2),
        "eps": np.float32(1e-5),
        "g": f(70),
        "b": f(70),
    }
    check(nodes, {"x": f(5, 6, 70)}, constants=constants)


def test_gelu_written_out_is_a_diamond(check: Check) -> None:
    nodes = [
        node("Add", ["x", "b"], ["s"]),
        node("Div", ["s", "r"], ["d"]),
        node("Erf", ["d"], ["e"]),
        node("Add", ["e", "one"], ["p"]),
        node("Mul", ["s", "p"], ["m"]),
        node("Mul", ["m", "h"], ["o"]),
    ]
    scalars = {"r": np.float32(2**0.5), "one": np.float32(1), "h": np.float32(0.5)}
    check(nodes, {"x": f(7, 131)}, constants={"b": f(131), **scalars})


def test_deep_chain_of_selections_compiles_in_linear_time(check: Check) -> None:
    ops = ["LeakyRelu", "Sigmoid", "Softplus", "Tanh"] * 6
    nodes = [node(op, [f"v{k}"], [f"v{k + 1}"]) for k, op in enumerate(ops)]
    check(nodes, {"v0": f(3, 40)}, [f"v{len(ops)}"])


@pytest.mark.parametrize(
    ("op", "data", "depth"),
    [
        ("Abs", RANDOM.integers(-9, 9, (9, 33)), 16),
        ("Mod", RANDOM.integers(-9, 9, (9, 33)), 8),
        ("Sigmoid", f(9, 33), 8),
        ("Tanh", f(9, 33).astype(np.float64), 8),
        ("Xor", RANDOM.integers(0, 2, (9, 33)).astype(bool), 12),
    ],
    ids=["Abs", "Mod", "Sigmoid", "Tanh", "Xor"],
)
@pytest.mark.parametrize("guarded", [False, True])
def test_deep_chain_of_one_operator_compiles_in_linear_time(
    check: Check, op: str, data: Any, depth: int, guarded: bool
) -> None:
    more = ["y"] if op in ("Mod", "Xor") else []
    nodes = [node(op, [f"v{k}", *more], [f"v{k + 1}"]) for k in range(depth)]
    inputs = {"v0": data} | {m: np.array([[-5]], data.dtype) for m in more}
    if not guarded:
        check(nodes, inputs, [f"v{depth}"])
        return
    # the border of the padding is no border of the reshaped value: a condition that no loop decides
    nodes += [
        node("Pad", [f"v{depth}", "w"], ["p"]),
        node("Reshape", ["p", "s"], ["r"]),
        node("Transpose", ["r"], ["o"]),
    ]
    check(nodes, inputs, constants={"w": np.array([1, 2, 2, 1]), "s": np.array([36, 12])})


@pytest.mark.parametrize("fmod", [0, 1])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_remainder_of_a_remainder(check: Check, dtype: str, fmod: int) -> None:
    largest = np.iinfo(dtype).max
    x = RANDOM.integers(-99, 99, (3, 37)).astype(dtype)
    x[0, :4] = largest, -largest, largest - 1, 0
    y = RANDOM.choice(np.array([-largest, -7, -3, -1, 1, 2, 5, largest], dtype), x.shape)
    z = np.array([[-4]], dtype)

    def mod(a: str, b: str, to: str) -> Any:
        return node("Mod", [a, b], [to], fmod=fmod)

    check([mod("x", "y", "m"), mod("m", "z", "o")], {"x": x, "y": y, "z": z})
    check([mod("x", "z", "m"), mod("y", "m", "o")], {"x": x | 1, "y": y, "z": z})
    # of which TVM knows what it is
    zero = [node("Sub", ["x", "x"], ["d"]), mod("d", "z", "m"), mod("m", "y", "o")]
    check(zero, {"x": x, "y": z + 1, "z": z})
    padded = [
        mod("x", "y", "m"),
        mod("m", "z", "r"),
        node("Pad", ["r", "w"], ["p"]),
        node("Reshape", ["p", "s"], ["o"]),
    ]
    check(padded, {"x": x, "y": y, "z": z}, constants={"w": np.array([1, 2, 2, 1]), "s": np.array([20, 12])})


def test_heads_are_split_and_joined(check: Check) -> None:
    split = [node("Reshape", ["x", "s"], ["r"]), node("Transpose", ["r"], ["o"], perm=[0, 2, 1, 3])]
    check(split, {"x": f(1, 33, 96)}, constants={"s": np.array([1, 33, 4, 24])})
    joined = [node("Transpose", ["x"], ["t"], perm=[0, 2, 1, 3]), node("Reshape", ["t", "s"], ["o"])]
    check(joined, {"x": f(1, 4, 33, 24)}, constants={"s": np.array([1, 33, 96])})


def test_reshape_whose_digits_do_not_nest(check: Check) -> None:
    nodes = [node("Relu", ["x"], ["r"]), node("Reshape", ["r", "s"], ["q"]), node("Transpose", ["q"], ["o"])]
    check(nodes, {"x": f(6, 10)}, constants={"s": np.array([15, 4])})


def test_embeddings_are_gathered_and_normalized(check: Check) -> None:
    nodes = [
        node("Gather", ["table", "ids"], ["w"]),
        node("Add", ["w", "positions"], ["s"]),
        node("LayerNormalization", ["s", "g", "b"], ["o"]),
    ]
    ids = RANDOM.integers(0, 500, (1, 19))
    constants = {"table": f(500, 48), "positions": f(1, 19, 48), "g": f(48), "b": f(48)}
    check(nodes, {"ids": ids}, constants=constants)


def test_what_is_gathered_may_lie_in_either_part_of_a_concat(check: Check) -> None:
    nodes = [node("Concat", ["x", "y"], ["c"], axis=0), node("Gather", ["c", "i"], ["o"])]
    check(nodes, {"x": f(5), "y": f(4), "i": RANDOM.integers(-9, 9, 40)})
    nodes = [node("Gather", ["p", "i"], ["o"]), node("Pad", ["x", "w"], ["p"], mode="reflect")][::-1]
    check(nodes, {"x": f(5, 7), "i": RANDOM.integers(-9, 9, 40)}, constants={"w": np.array([1, 2, 3, 0])})


def test_a_kept_row_is_read_backwards_as_well(check: Check) -> None:
    nodes = [
        node("Sigmoid", ["x"], ["s"]),
        node("Slice", ["s", "b", "e", "a", "t"], ["r"]),
        node("ReduceMax", ["s", "a"], ["m"]),
        node("Mul", ["s", "m"], ["q"]),
        node("Sub", ["q", "r"], ["o"]),
    ]
    constants = {"b": np.array([-1]), "e": np.array([-50]), "a": np.array([1]), "t": np.array([-1])}
    check(nodes, {"x": f(7, 41)}, constants=constants)


def test_concat_between_arithmetic_runs_in_both_layouts(check: Check) -> None:
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Concat", ["a", "y"], ["c"], axis=1),
        node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"]),
        node("Relu", ["n"], ["o"]),
    ]
    constants = {"s": f(24), "b": f(24), "m": f(24), "v": np.abs(f(24)) + 0.1}
    variants = check(nodes, {"x": f(2, 17, 5, 6), "y": f(2, 7, 5, 6)}, constants=constants)
    assert len(variants) == 2


def test_pooled_then_scaled(check: Check) -> None:
    nodes = [
        node("AveragePool", ["x"], ["p"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Mul", ["p", "k"], ["o"]),
    ]
    check(nodes, {"x": f(1, 20, 9, 8)}, constants={"k": f(20, 1, 1)})


def test_reduction_after_softmax_of_the_same_rows(check: Check) -> None:
    nodes = [
        node("Softmax", ["x"], ["s"]),
        node("Log", ["s"], ["l"]),
        node("Mul", ["s", "l"], ["m"]),
        node("ReduceSum", ["m", "a"], ["r"], keepdims=0),
        node("Neg", ["r"], ["o"]),
    ]
    check(nodes, {"x": f(4, 6, 33)}, constants={"a": np.array([2])})


_SIZES = st.sampled_from([1, 1, 2, 3, 7, 16, 17, 31])
_UNARY = st.sampled_from(["Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Gelu", "Identity"])
_BINARY = st.sampled_from(["Add", "Sub", "Mul", "Max", "Min"])


@st.composite
def _chains(draw: st.DrawFn) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    """A chain over operands of any rank that broadcast both ways, with movers between; perhaps with a
    reduction at the end."""
    shape = tuple(draw(st.lists(_SIZES, max_size=4)))
    inputs: dict[str, Any] = {"v0": f(*[d if draw(st.booleans()) else 1 for d in shape])}
    constants: dict[str, Any] = {}
    nodes: list[Any] = []
    current: list[int] = list(inputs["v0"].shape)
    for k in range(draw(st.integers(1, 5))):
        x, y = f"v{k}", f"v{k + 1}"
        kind = draw(st.sampled_from(["unary", "binary", "transpose", "reshape", "concat"]))
        if kind == "binary":
            other = [d if draw(st.booleans()) else 1 for d in current]
            wide = [n if d == 1 and draw(st.booleans()) else d for d, n in zip(other, shape, strict=False)]
            other = wide if len(wide) == len(other) else other
            other = [o if d in (1, o) else 1 for o, d in zip(other, current, strict=True)][
                draw(st.integers(0, len(other))) :
            ]
            target = constants if draw(st.booleans()) else inputs
            target[f"w{k}"] = f(*other)
            pair = [x, f"w{k}"] if draw(st.booleans()) else [f"w{k}", x]
            nodes.append(node(draw(_BINARY), pair, [y]))
            current = list(np.broadcast_shapes(tuple(current), tuple(other)))
        elif kind == "transpose" and current:
            order = list(draw(st.permutations(range(len(current)))))
            nodes.append(node("Transpose", [x], [y], perm=order))
            current = [current[d] for d in order]
        elif kind == "reshape" and current:
            at = draw(st.integers(0, len(current) - 1))
            current = [*current[:at], int(np.prod(current[at : at + 2])), *current[at + 2 :]]
            constants[f"s{k}"] = np.array(current)
            nodes.append(node("Reshape", [x, f"s{k}"], [y]))
        elif kind == "concat" and current:
            at = draw(st.integers(0, len(current) - 1))
            nodes.append(node("Concat", [x, x], [y], axis=at))
            current[at] *= 2
        else:
            nodes.append(node(draw(_UNARY), [x], [y]))
    ending = draw(st.sampled_from(["none", "softmax", "sum", "max"]))
    last = f"v{len(nodes)}"
    if ending == "softmax" and current:
        nodes.append(node("Softmax", [last], ["o"], axis=draw(st.integers(0, len(current) - 1))))
    elif ending in ("sum", "max") and current:
        axes = draw(st.lists(st.integers(0, len(current) - 1), min_size=1, unique=True))
        constants["axes"] = np.array(sorted(axes))
        op = "ReduceSum" if ending == "sum" else "ReduceMax"
        nodes.append(node(op, [last, "axes"], ["o"], keepdims=draw(st.integers(0, 1))))
    else:
        nodes.append(node("Identity", [last], ["o"]))
    return nodes, inputs, constants


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(_chains())
def test_chains(check: Check, chain: tuple[list[Any], dict[str, Any], dict[str, Any]]) -> None:
    nodes, inputs, constants = chain
    check(nodes, inputs, constants=constants)


def _large(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_large_values_are_shared_out_to_threads(check: Check, threads: int) -> None:
    nodes = [
        node("Add", ["x", "y"], ["a"]),
        node("Concat", ["a", "x"], ["c"], axis=1),
        node("Relu", ["c"], ["o"]),
    ]
    check(nodes, {"x": _large(1, 5, 101, 103), "y": _large(103)}, threads=threads)
    check([node("Softmax", ["x"], ["o"], axis=1)], {"x": _large(3, 37, 411)}, threads=threads)
    check([node("Relu", ["x"], ["o"])], {"x": _large(100_003)}, threads=threads)


def test_rule_generates_what_the_backend_then_offers() -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["m"]),
        node("Add", ["m", "b"], ["a"]),
        node("Add", ["a", "x"], ["r"]),
        node("LayerNormalization", ["r", "g", "b"], ["n"]),
        node("Transpose", ["n"], ["o"]),
    ]
    graph = make_graph(nodes, {"x": f(8, 8)}, {"w": f(8, 8), "b": f(8), "g": f(8)})
    groups = set(generate(graph, tvm_rule()).groups)
    ids = {n.op_type + n.outputs[0]: n.id for n in graph.nodes}
    assert NodeSet([ids["Adda"], ids["Addr"], ids["LayerNormalizationn"]]) in groups
    assert NodeSet([ids["MatMulm"], ids["Adda"], ids["Addr"]]) in groups
    assert not any(ids["MatMulm"] in g and ids["LayerNormalizationn"] in g for g in groups)
    assert not any(ids["Transposeo"] in g and len(g) > 1 for g in groups)


@pytest.mark.parametrize("read", ["a", "b", "c"])
def test_outputs_of_a_split_that_nobody_reads(check: Check, read: str) -> None:
    check([node("Split", ["x"], ["a", "b", "c"], axis=1, num_outputs=3)], {"x": f(3, 21)}, outputs=[read])
