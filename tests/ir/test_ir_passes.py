"""Every pass, on random graphs to which it applies: before and after, two evaluators answer the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from old_forms import old_operators
from pass_cases import (
    SHAPE,
    Case,
    branches,
    chosen,
    computed_shapes,
    dequantised,
    draws,
    gelus,
    identities,
    moved,
    qlinear,
    scales,
    several_outputs,
)

from collage_core.costs.check import compare, standards
from collage_core.errors import CollageError
from collage_core.formats import Array
from collage_core.ir import Graph, Subgraph, from_model, to_model
from collage_core.ir.passes import PASSES, Pass, normalise
from collage_core.reference.evaluator import evaluate

_PASSES = {p.name: p for p in PASSES}


def _runtime(graph: Graph, inputs: dict[str, Array]) -> dict[str, Array]:
    """What a runtime answers that shares nothing with the reference, without optimisations of its own."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = to_model(graph).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return dict(zip(graph.outputs, session.run(list(graph.outputs), inputs), strict=True))


def _wrong(before: Graph, after: Graph) -> str | None:
    """Where the two differ, on either evaluator."""
    inputs = {"x": np.random.default_rng(1).standard_normal(SHAPE, dtype=np.float32)}
    if (before.inputs, before.outputs) != (after.inputs, after.outputs):
        return f"{before.inputs} -> {before.outputs} became {after.inputs} -> {after.outputs}"
    held_to = standards(before)
    for run in (evaluate, _runtime):
        expected, found = run(before, inputs), run(after, inputs)
        for name in before.outputs:
            _, refusal = compare(name, found[name], expected[name], held_to.get(name))
            if refusal is not None:
                return f"{run.__name__}: {refusal.reason}"
    return None


_APPLIES: dict[str, Callable[[], st.SearchStrategy[Case]]] = {
    "dead-code": several_outputs,
    "upgrade-opset": old_operators,
    "inline-constant-if": branches,
    "seed-random": draws,
    "fold-constants": computed_shapes,
    "drop-identities": identities,
    "fold-scale-shift": scales,
    "recompose-gelu": gelus,
    "state-qlinear": qlinear,
    "move-quantised": moved,
    "dequantise-for-each": dequantised,
    "gather-regions": chosen,
}


def test_every_pass_has_graphs_on_which_it_applies() -> None:
    assert set(_APPLIES) == set(_PASSES)


@pytest.mark.parametrize("name", _APPLIES)
def test_a_pass_keeps_the_answer(name: str) -> None:
    changed = 0

    @settings(max_examples=60)
    @given(_APPLIES[name]())
    def run(case: Case) -> None:
        nonlocal changed
        before = case.graph()
        after = _PASSES[name].apply(before)
        changed += Subgraph(before, before.all_nodes).key != Subgraph(after, after.all_nodes).key
        assert _wrong(before, after) is None, f"{_wrong(before, after)}\n{before}\n{after}"

    run()
    assert changed >= 5, "a property of graphs that it does not change says nothing"


@settings(max_examples=40)
@given(st.one_of([strategy() for strategy in _APPLIES.values()]))
def test_all_passes_together_keep_the_answer(case: Case) -> None:
    before = graph = case.graph()
    for p in PASSES:
        graph = p.apply(graph)
    assert _wrong(before, graph) is None, f"{_wrong(before, graph)}\n{before}\n{graph}"


@pytest.mark.parametrize("opset", [15, 22])
def test_what_is_folded_keeps_its_type(opset: int) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]> g () => (int32 y) <int32 c = {{-2}}>
        {{ s = ReduceSumSquare <keepdims: int = 0> (c) y = Neg (s) }}"""
    before = from_model(onnx.parser.parse_model(text))
    after = _PASSES["fold-constants"].apply(before)
    assert not after.nodes
    assert after.constants["y"].dtype == np.int32 == evaluate(before, {})["y"].dtype
    assert after.constants["y"] == -4


def test_a_wrong_pass_would_be_found() -> None:
    def drop(graph: Graph) -> Graph:
        (split,) = graph.nodes[:1]
        first = Graph(
            graph.name,
            [split.__class__(split.id, split.name, split.op_type, split.inputs, ("a",), split.attributes)],
            graph.values,
            graph.inputs,
            ["a"],
            graph.constants,
            graph.opsets,
        )
        return first

    before = Case(13, ("a, b, c = Split <axis: int = 1> (x)",), ("a",)).graph()
    try:
        reason = _wrong(before, Pass("drop", "forgets outputs", drop).apply(before))
    except CollageError as error:
        reason = str(error)
    assert reason is not None
    assert "shape" in reason


def test_a_training_normalisation_of_an_old_opset_keeps_its_outputs() -> None:
    text = """<ir_version: 4, opset_import: ["" : 9]> 
        g (float[2,3] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float[2,3] y)
        { y, om, ov, sm, sv = BatchNormalization (x, s, b, m, v) }"""
    before = from_model(onnx.parser.parse_model(text))
    random = np.random.default_rng(0)
    inputs = {v: random.uniform(0.5, 2, before.shape_of(v)).astype(np.float32) for v in before.inputs}
    after = normalise(before)
    assert len(after.nodes[0].outputs) == 5
    np.testing.assert_array_equal(evaluate(after, inputs)["y"], evaluate(before, inputs)["y"])
    np.testing.assert_allclose(
        evaluate(before, {**inputs, "m": inputs["m"] + 9})["y"], evaluate(before, inputs)["y"]
    )


@pytest.mark.parametrize("returned", ["y", "y, mean", "variance"])
def test_a_training_normalisation_keeps_its_outputs(returned: str) -> None:
    """ONNX allows no fewer, and the stored graph is checked."""
    shapes = {"y": "2,3", "mean": "3", "variance": "3"}
    outputs = ", ".join(f"float[{shapes[v]}] {v}" for v in returned.split(", "))
    text = f"""<ir_version: 8, opset_import: ["" : 15]>
        g (float[2,3] x, float[3] s, float[3] b, float[3] m, float[3] v) => ({outputs})
        {{ y, mean, variance = BatchNormalization <training_mode: int = 1> (x, s, b, m, v) }}"""
    before = from_model(onnx.parser.parse_model(text))
    random = np.random.default_rng(0)
    inputs = {v: random.uniform(0.5, 2, before.shape_of(v)).astype(np.float32) for v in before.inputs}
    after = normalise(before)
    assert len(after.nodes[0].outputs) == 3
    onnx.checker.check_model(to_model(after), full_check=True)
    for name, array in evaluate(before, inputs).items():
        np.testing.assert_array_equal(evaluate(after, inputs)[name], array)
