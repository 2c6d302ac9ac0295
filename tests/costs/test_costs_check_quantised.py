"""Comparing whole results of what is quantised: how many steps it may be off."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping

import numpy as np
import onnx.parser
import pytest

from collage_core.costs.check import (
    Quantised,
    compare,
    compare_all,
    rounded_answers,
    standards,
)
from collage_core.formats import Array
from collage_core.ir import Graph, Subgraph, from_model
from collage_core.measuring.workspace import Workspace
from collage_core.reference import evaluate
from collage_core.reference.evaluator import A_STEP_OFF

_QUANTISED = """<ir_version: 9, opset_import: ["" : 20]> g (float[64,64] x)
    => (uint8[64,64] q, float[64,64] y) <float s = {0.02}, uint8 z = {128}> {
    q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) m = MatMul (d, w) r = Relu (m)
    p = QuantizeLinear (r, s, z) t = Transpose (p) e = DequantizeLinear (t, s, z) k = ArgMax (e)
    y = Neg (e) }"""


def _quantised() -> tuple[Graph, dict[str, Array], dict[str, Array]]:
    """With its inputs, and all that it computes."""
    model = onnx.parser.parse_model(_QUANTISED)
    rng = np.random.default_rng(0)
    weights = (rng.standard_normal((64, 64)) / 8).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    graph = from_model(model)
    inputs: dict[str, Array] = {"x": rng.standard_normal((64, 64)).astype(np.float32)}
    return graph, inputs, evaluate(graph, inputs, keep=list(graph.intermediates()))


def _answers(graph: Graph, inputs: Mapping[str, Array]) -> Callable[[str], dict[str, Array]]:
    return lambda way: evaluate(graph, inputs, keep=list(graph.intermediates()), rounded_to=way)


def test_how_often_it_was_quantised_is_counted_along_the_way() -> None:
    """Through what is moved and computed; of indices nothing is said, they are exact."""
    graph, _, _ = _quantised()
    found = standards(graph)
    depths = {v: s.depth for v, s in found.items() if isinstance(s, Quantised)}
    assert depths == {"q": 1, "d": 1, "m": 1, "r": 1, "p": 2, "t": 2, "e": 2, "y": 2}
    assert "k" not in found
    assert standards(graph, graph.nodes[1:4]) == dict.fromkeys("dmr", "float32"), "given, q is exact"
    assert {s.dtype for s in found.values() if isinstance(s, Quantised)} == {"float32"}
    assert pickle.loads(pickle.dumps(found)).keys() == found.keys()


def test_what_is_quantised_once_is_a_step_off_at_most() -> None:
    graph, inputs, right = _quantised()
    held_to = standards(graph, answers=_answers(graph, inputs))
    for steps, why in (
        (1, None),
        (-1, None),
        (2, "2 steps from the reference's, where it is quantised once"),
    ):
        found = right["q"].copy()
        found[3, :] = np.clip(found[3, :].astype(np.int16) + steps, 0, 255)
        error, wrong = compare("q", found, right["q"], held_to["q"])
        assert str(wrong).endswith(why) if why else wrong is None, wrong
        assert error == pytest.approx(abs(steps) / right["q"].max())
    _, wrong = compare("q", right["q"].astype(np.int16), right["q"], held_to["q"])
    assert "is int16, the reference's uint8" in str(wrong)


def test_what_is_computed_of_it_may_be_off_by_what_some_steps_make() -> None:
    """Of every eight numbers one is one more and one is one less; ends of the range stay."""
    graph, inputs, right = _quantised()
    answers = _answers(graph, inputs)
    off = answers(A_STEP_OFF)
    moved = off["q"].astype(np.int16) - right["q"]
    assert set(np.unique(moved)) == {-1, 0, 1}
    assert 0.2 < np.mean(moved != 0) < 0.3
    held_to = standards(graph, answers=answers)
    for name in ("m", "p", "t", "y"):
        difference = compare_all({name: off[name]}, {name: right[name]}, held_to)
        assert difference.reason is None, name
        assert difference.relative, name
        assert "differs from" in str(compare(name, off[name], right[name], None)[1]) or name in "my"
    twice = right["m"] + 2 * (off["m"] - right["m"])
    assert "a step here and there makes" in str(compare("m", twice, right["m"], held_to["m"])[1])
    far = right["p"].astype(np.int16) + 3 * (off["p"].astype(np.int16) - right["p"])
    wrong = compare("p", far.clip(0, 255).astype(np.uint8), right["p"], held_to["p"])[1]
    assert "steps from the reference's, more than a step here and there makes" in str(wrong)
    unknown = standards(graph)
    assert "for float32" in str(compare("m", off["m"], right["m"], unknown["m"])[1])
    assert "nobody knows what quantising alone does" in str(
        compare("p", far.clip(0, 255).astype(np.uint8), right["p"], unknown["p"])[1]
    )


def test_ends_of_the_range_stay_where_steps_are_drawn() -> None:
    graph, _, _ = _quantised()
    x: dict[str, Array] = {"x": np.where(np.arange(4096).reshape(64, 64) % 2, 100, -100).astype(np.float32)}
    assert (_answers(graph, x)(A_STEP_OFF)["q"] == evaluate(graph, x)["q"]).all()


def test_a_group_that_quantises_is_held_to_it_beside_rounding() -> None:
    graph, inputs, right = _quantised()
    group = Subgraph(graph, graph.all_nodes)
    found = standards(graph, graph.nodes, ["bfloat16"], lambda way: rounded_answers(group, inputs, (), way))
    standard = found["y"]
    assert isinstance(standard, Quantised)
    assert standard.dtype == "bfloat16"
    np.testing.assert_array_equal(standard.answers(A_STEP_OFF)["y"], _answers(graph, inputs)(A_STEP_OFF)["y"])
    with Workspace(graph, inputs) as workspace:
        again = workspace.rounded_outputs(A_STEP_OFF)
        np.testing.assert_array_equal(again["y"], _answers(graph, inputs)(A_STEP_OFF)["y"])
        assert not np.array_equal(again["y"], right["y"])
