"""Comparing whole results."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from collage_core.costs.check import (
    Difference,
    Rounded,
    compare,
    compare_all,
    rounded_answers,
    standards,
)
from collage_core.formats import Array
from collage_core.ir import Graph, Subgraph, from_model
from collage_core.measuring.workspace import Workspace
from collage_core.reference import evaluate
from collage_core.reference.evaluator import A_BIT_OFF

_INF, _NAN = float("inf"), float("nan")


def _float(*values: float) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float32]]]:
    return {"y": np.array(values, np.float32)}


def test_the_worst_output_counts() -> None:
    expected = {"a": np.array([2.0, -4.0], np.float32), "b": np.array([1, 2])}
    result = {"a": np.array([2.0, -4.0002], np.float32), "b": np.array([1, 2])}
    difference = compare_all(result, expected)
    assert difference.reason is None
    assert difference.relative == pytest.approx(5e-5, rel=1e-2)
    assert difference.absolute == pytest.approx(2e-4, rel=1e-2)


def test_infinity_and_nan_are_right_where_they_are_expected() -> None:
    difference = compare_all(_float(1, -_INF, _NAN), _float(1, -_INF, _NAN))
    assert (difference.absolute, difference.relative, difference.reason) == (0.0, 0.0, None)
    for wrong in (_float(1, _INF, _NAN), _float(_NAN, -_INF, _NAN), _float(1, -_INF, 0)):
        difference = compare_all(wrong, _float(1, -_INF, _NAN))
        assert difference.relative is None
        assert difference.reason is not None


def test_wrong_numbers_are_told_with_their_error() -> None:
    difference = compare_all(_float(1, 2), _float(1, 4))
    assert (difference.absolute, difference.relative) == (2.0, 0.5)
    assert difference.reason is not None
    assert "error 0.5" in difference.reason
    assert compare_all({"y": np.array([1, 3])}, {"y": np.array([1, 2])}).reason is not None
    assert compare_all({"y": np.zeros((2, 0))}, {"y": np.zeros((2, 0))}).reason is None


def test_floats_are_held_to_the_least_precise_type_that_they_were_computed_in() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 20]> g (float[2] x, double[2] d) =>
        (double[2] y, double[2] z) {
            a = Exp (x) b = Cast <to = 11> (a) y = Add (b, d) z = Neg (d) n = Cast <to = 7> (b)
            h = Cast <to = 10> (x) f = Cast <to = 1> (h) }"""
    )
    graph = from_model(model)
    found = standards(graph)
    assert {v: found[v] for v in "abyz"} == {"a": "float32", "b": "float32", "y": "float32", "z": "float64"}
    assert "n" not in found, "whole numbers are exact"
    assert found["f"] == "float16"
    assert standards(graph, graph.nodes[1:3]) == {"b": "float64", "y": "float64"}, "given, a is exact"
    right, off = np.ones(2), np.ones(2) * (1 + 1e-6)
    assert compare("y", off, right, found["y"])[1] is None
    assert compare("z", off, right, found["z"])[1] is not None


def test_whole_numbers_make_nothing_less_precise() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 20]> g (float[2,3] x, float[6] z) => (float[2,3] y) {
            q = Cast <to = 10> (x) s = Shape (q) w = Reshape (z, s) y = Exp (w) }"""
    )
    found = standards(from_model(model))
    assert found == {"q": "float16", "w": "float32", "y": "float32"}


def test_what_was_rounded_is_held_to_what_rounding_makes_of_it() -> None:
    """Where that is more than the type's tolerance; else nobody is asked for it."""
    asked: list[str] = []
    expected = {"y": np.array([1.0, -4.0], np.float32), "n": np.array([3])}

    def answers(dtype: str) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float32]]]:
        asked.append(dtype)
        return _float(1.0, -4.4)

    def of(value: float, held_to: Rounded) -> Difference:
        return compare_all(expected | _float(1.0, value), expected, {"y": held_to})

    standard = Rounded("bfloat16", answers, "bfloat16")
    assert of(-4.04, standard).reason is None
    assert not asked
    assert of(-4.78, standard).reason is None
    assert of(-4.78, standard).relative == pytest.approx(0.195)
    assert set(asked) == {"bfloat16"}
    assert of(-4.84, standard).reason == (
        "output 'y' has error 0.21, more than 0.02 for bfloat16, and more than twice the 0.1 that rounding "
        "alone makes"
    )
    cannot_tell = Rounded("bfloat16", lambda way: {}, "bfloat16")
    assert of(-4.4, cannot_tell).reason == "output 'y' has error 0.1, more than 0.02 for bfloat16"
    assert compare_all({**expected, "n": np.array([4])}, expected, {"y": standard}).reason is not None


def test_rounding_is_that_of_each_value_that_is_stored() -> None:
    """Constants, inputs and what is computed; not whole numbers, nor what is narrow already."""
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 20]> g (float[2] x, float16[2] h, int64[2] k)
        => (float[2] y, float16[2] z, int64[2] n) <float[1] c = {0.1}>
        { s = Add (x, c) y = Mul (s, s) z = Add (h, h) n = Add (k, k) }"""
    )
    graph = from_model(model)
    x, h, k = np.array([0.3, 1.7], np.float32), np.array([0.1, 3], np.float16), np.array([257, 3])
    inputs: dict[str, Array] = {"x": x, "h": h, "k": k}

    def through(array: Array) -> Array:
        return array.astype("bfloat16").astype(np.float32)

    s = through(through(x) + through(np.array([0.1], np.float32)))
    found = rounded_answers(Subgraph(graph, graph.all_nodes), inputs, (), "bfloat16")
    np.testing.assert_array_equal(found["y"], through(s * s))
    assert (found["z"] == h + h).all()
    assert found["n"].tolist() == [514, 6]
    assert found.keys() == {"y", "z", "n"}
    with Workspace(graph, inputs) as workspace:
        again = workspace.rounded_outputs("bfloat16")
        assert all((again[v] == found[v]).all() for v in graph.outputs)


def test_where_rounding_makes_another_shape_nothing_is_told_of_it() -> None:
    """257 elements by 2.007, which is 2 in bfloat16."""
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 20]> g (float[1,1,2,257] x) => (float[1,1,2,515] y)
        <float[4] s = {1.0, 1.0, 1.0, 2.007}> { y = Resize <mode = "nearest"> (x, , s) }"""
    )
    graph = from_model(model)
    inputs = {"x": np.zeros((1, 1, 2, 257), np.float32)}
    assert evaluate(graph, inputs)["y"].shape == (1, 1, 2, 515)
    assert rounded_answers(Subgraph(graph, graph.all_nodes), inputs, (), "bfloat16") == {}
    with Workspace(graph, inputs) as workspace:
        assert workspace.rounded_outputs("bfloat16") == {}


_MANY = np.random.default_rng(0).standard_normal(4096).astype(np.float32)


def _held_to(rounded: Array, result: Array, expected: Array) -> str | None:
    standard = Rounded("bfloat16", lambda way: {"y": rounded}, "bfloat16")
    return compare_all({"y": result}, {"y": expected}, {"y": standard}).reason


def test_a_bit_off_is_so_much_for_each_sum() -> None:
    """Not what is chosen or computed element by element, nor whole numbers, nor what would overflow."""
    lowest = float(np.finfo(np.float32).min)
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 20]> g (float[512,2] x, double[512,2] d, float[512,2] w) =>
        (float[512] s, float[512] n, float[512] m, double[512] z, float[512] k) <int64[1] last = {1}>
        { s = ReduceSum <keepdims = 0> (x, last) n = Neg (s) m = ReduceMax <keepdims = 0> (x, last)
          z = ReduceSum <keepdims = 0> (d, last) k = ReduceSum <keepdims = 0> (w, last) }"""
    )
    graph, many = from_model(model), _MANY[:1024].reshape(512, 2).copy()
    many[0], many[1] = (_INF, 1.0), (lowest, 0.0)
    whole = np.arange(1024, dtype=np.float32).reshape(512, 2)
    inputs: dict[str, Array] = {"x": many, "d": many.astype(np.float64), "w": whole}
    found = rounded_answers(Subgraph(graph, graph.all_nodes), inputs, (), A_BIT_OFF)
    right = evaluate(graph, inputs)
    for name in "mk":
        np.testing.assert_array_equal(found[name], right[name])
    np.testing.assert_array_equal(found["n"], -found["s"])
    assert found["s"][0] == _INF
    assert np.isfinite(found["s"][1:]).all()
    for name, bit in (("s", 1e-6), ("z", 1e-10)):
        off = np.abs(found[name][2:] / right[name][2:] - 1)
        assert bit / 2 < off.max() < 1.2 * bit
    with Workspace(graph, inputs) as workspace:
        again = workspace.rounded_outputs(A_BIT_OFF)
    for v, array in found.items():
        np.testing.assert_array_equal(array, again[v])


def _gate(off: float = 0.0, sums: int = 8) -> tuple[Graph, dict[str, Array], dict[str, Array]]:
    """A small difference of sums of sums, of which a gate makes much: no two libraries answer alike. With its
    inputs, and an answer whose sums are off by so much.
    """
    means = " ".join(f"m{i + 1} = ReduceMean (m{i}, none)" for i in range(sums - 1))
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 20]> g (float[4096,4,1] m0) => (float[4096] y)
        <int64[2] last = {{1, 2}}, int64[1] none = {{2}},
         float[1] much = {{1000.0}}, float[1] more = {{20.0}}>
        {{ {means} a = ReduceSum <keepdims = 0> (m{sums - 1}, last) b = Sub (a, much) c = Mul (b, more)
          y = Sigmoid (c) }}"""
    )
    graph = from_model(model)
    x = 250 + 0.25 * np.stack([_MANY] * 4, 1)
    over = np.float32(1 + off) * x.sum(1) - np.float32(1000)
    return graph, {"m0": x[:, :, None]}, {"y": (1 / (1 + np.exp(-20 * over))).astype(np.float32)}


@pytest.mark.parametrize(("off", "is_right"), [(0.0, True), (1e-6, True), (1e-4, False)])
def test_what_amplifies_rounding_is_held_to_what_it_makes_of_it(off: float, is_right: bool) -> None:
    graph, inputs, answer = _gate(off)
    group = Subgraph(graph, graph.all_nodes)
    held_to = standards(graph, answers=lambda way: rounded_answers(group, inputs, (), way))
    found = compare_all(answer, evaluate(graph, inputs), held_to)
    assert found.amplifies == (is_right and off > 0)
    assert is_right == (found.reason is None)
    assert is_right or "more than twice the" in str(found.reason)


def test_a_formula_of_few_sums_is_held_to_its_type() -> None:
    """A fault would hide in what it cancels."""
    graph, inputs, answer = _gate(1e-6, sums=7)
    group = Subgraph(graph, graph.all_nodes)
    held_to = standards(graph, answers=lambda way: rounded_answers(group, inputs, (), way))
    assert held_to["y"] == "float32"
    assert compare_all(answer, evaluate(graph, inputs), held_to).reason is not None


def test_what_is_off_on_the_whole_is_told_so() -> None:
    """Its worst element is as near as rounding alone would have it."""
    rounded = _MANY.copy()
    rounded[0] += 0.4
    assert "0.1 on the whole, more than twice the 0.0" in str(_held_to(rounded, _MANY * 1.1, _MANY))


def test_a_part_of_a_graph_is_held_to_its_type() -> None:
    """Whatever it amplifies: it is right or wrong by itself, and others sum on."""
    graph, inputs, answer = _gate(1e-6)
    part = Subgraph(graph, [n.id for n in graph.nodes[1:]])
    sums = {"m1": inputs["m0"]}
    held_to = standards(graph, part.nodes, (), lambda way: rounded_answers(part, sums, (), way))
    assert held_to["y"] == "float32"
    assert compare_all(answer, evaluate(graph, inputs), held_to).reason is not None


def test_a_mask_and_a_step_amplify_nothing() -> None:
    """A padding row of the lowest number, and what is rounded down."""
    lowest = float(np.finfo(np.float32).min)
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 20]> g (float[64,64] q, float[64,64] mask) =>
        (float[64,64] y, float[64,64] f) <float[1] half = {0.5}>
        { s = MatMul (q, q) a = Add (s, mask) y = Softmax (a)
          h = Mul (mask, half) d = Add (h, h) f = Floor (d) }"""
    )
    graph, q = from_model(model), _MANY.reshape(64, 64)
    for mask in (np.full((64, 64), lowest, np.float32), np.arange(4096, dtype=np.float32).reshape(64, 64)):
        inputs: dict[str, Array] = {"q": q, "mask": mask}
        found = rounded_answers(Subgraph(graph, graph.all_nodes), inputs, (), A_BIT_OFF)
        right = evaluate(graph, inputs)
        np.testing.assert_array_equal(found["f"], right["f"])
        np.testing.assert_allclose(found["y"], right["y"], atol=3e-3)


def test_a_few_elements_that_rounding_turns_over_explain_a_few() -> None:
    """A threshold, say: some are 1 that should be 0. So the worst element says nothing."""
    expected = (_MANY > 0).astype(np.float32)
    turned = np.abs(_MANY) < 2e-3
    rounded = np.where(turned, 1 - expected, expected)
    assert 3 < turned.sum() < 40
    assert _held_to(rounded, rounded, expected) is None
    elsewhere = np.roll(turned, 1)
    assert _held_to(rounded, np.where(elsewhere, 1 - expected, expected), expected) is None
    for wrong in (np.zeros_like(expected), 1 - expected, expected * 0.5):
        said = str(_held_to(rounded, wrong, expected))
        assert " on the whole, more than twice the 0.067 that rounding alone makes" in said


def test_where_rounding_leaves_nothing_nothing_is_right() -> None:
    """A difference of large numbers."""
    x = 100 + 0.1 * _MANY
    rounded = x.astype("bfloat16").astype(np.float32) - 100
    for answer in (rounded, np.zeros_like(x)):
        assert "rounding alone leaves too little of it" in str(_held_to(rounded, answer, x - 100))


@pytest.mark.parametrize("number", [_INF, -_INF, _NAN])
def test_where_rounding_makes_no_number_nothing_is_allowed_for_it(number: float) -> None:
    rounded = np.where(np.arange(_MANY.size) == 5, np.float32(number), _MANY)
    assert _held_to(rounded, _MANY * np.float32(1.1), _MANY) is not None


def test_the_lowest_number_of_a_mask_is_no_infinity() -> None:
    lowest = float(np.finfo(np.float32).min)
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 20]> g (float[2,4] x, float[2,4] m, float[1] one, float[1] low)
        => (float[2,4] y) { n = Sub (one, m) a = Mul (n, low) b = Add (x, a) y = Softmax (b) }"""
    )
    graph = from_model(model)
    inputs = {
        "x": _MANY[:8].reshape(2, 4),
        "m": np.ones((2, 4), np.float32),
        "one": np.ones(1, np.float32),
        "low": np.full(1, lowest, np.float32),
    }
    group = Subgraph(graph, graph.all_nodes)
    for dtype in ("bfloat16", "float16"):
        answer = rounded_answers(group, inputs, (), dtype)["y"]
        np.testing.assert_allclose(answer, evaluate(graph, inputs)["y"], rtol=2e-2)


def test_what_is_read_as_it_is_is_not_rounded() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 20]> g (float[4096] x) => (float[4096] y)
        <float[1] c = {100.0}> { y = Sub (x, c) }"""
    )
    graph = from_model(model)
    group, x = Subgraph(graph, graph.all_nodes), 100 + 0.1 * _MANY
    rounded = rounded_answers(group, {"x": x}, ("x",), "bfloat16")["y"]
    np.testing.assert_array_equal(rounded, (x - 100).astype("bfloat16").astype(np.float32))
