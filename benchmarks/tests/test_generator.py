"""Generated models are legal and the same for the same number; the fuzz finds what is wrong, and names it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from collage_benchmarks.fuzz import opinions
from collage_benchmarks.fuzz.describing import as_code
from collage_benchmarks.fuzz.driver import Driver
from collage_benchmarks.fuzz.joining import join, parts_named, split
from collage_benchmarks.fuzz.opinions import all_values, ask, run_onnxruntime
from collage_benchmarks.fuzz.report import REFUSED, RIGHT, UNTOLD, WRONG, Outcome
from collage_benchmarks.fuzz.shrinking import shrink
from collage_benchmarks.fuzz.sources import Sample, generate
from collage_benchmarks.generator import NEWEST, OLDEST, Case, example, graphs, operators, opsets, single

from collage_core.ir import Graph, passes
from collage_core.ir.passes import PASSES, Pass
from collage_core.testing import make_model, node


@pytest.mark.parametrize("op", operators())
def test_every_operator_makes_legal_models(op: str) -> None:
    """`Builder.case` has ONNX check each in full."""
    for opset in opsets(op):
        cases = [example(single(op, opset), number) for number in range(2)]
        for case in cases:
            assert op in {n.op_type for n in case.model.graph.node}
            assert case.model.opset_import[0].version == opset
            assert {i.name for i in case.model.graph.input} == set(case.inputs)


def test_operators_of_one_version_only_are_generated_from_there_on() -> None:
    assert opsets("Gelu") == (20,)
    assert opsets("ReduceMax") == (13, 18, 20)
    assert opsets("Abs") == (13,)
    assert "Loop" not in operators()  # bodies have no place in a table of operators
    assert not {"NonZero", "Bernoulli"} & set(operators(dynamic=False, random=False))


def test_a_number_makes_one_model() -> None:
    first, again, other = (generate(n) for n in (5, 5, 6))
    assert first.model == again.model
    assert first.model != other.model
    for name, array in first.inputs.items():
        np.testing.assert_array_equal(array, again.inputs[name])


def test_graphs_are_of_all_kinds() -> None:
    cases = [example(graphs(OLDEST + n % (NEWEST - OLDEST + 1)), n) for n in range(66)]
    used = Counter(op for c in cases for op in {n.op_type for n in c.model.graph.node})
    assert len(used) > 90
    assert sum(_leaves_outputs_unused(c) for c in cases) > 5
    assert sum(len(c.model.graph.output) > 1 for c in cases) > 20
    ranks = {len(a.shape) for c in cases for a in c.inputs.values()}
    assert ranks == {0, 1, 2, 3, 4, 5}
    assert {"float32", "float64", "float16", "int64", "int32", "bool"} <= {
        a.dtype.name for c in cases for a in c.inputs.values()
    }


def _leaves_outputs_unused(case: Case) -> bool:
    graph = case.model.graph
    used = {v for n in graph.node for v in n.input} | {o.name for o in graph.output}
    return any(len(n.output) > 1 and not used.issuperset(n.output) for n in graph.node)


@pytest.mark.parametrize(
    ("first", "count"),
    [
        pytest.param(1_000_060, 3, marks=pytest.mark.ci),
        pytest.param(1_000_120, 17, marks=pytest.mark.slow),
        pytest.param(1_000_020, 17, marks=pytest.mark.slow),
        pytest.param(1_000_066, 10, marks=pytest.mark.ci),
    ],
)
def test_no_generated_model_is_answered_wrongly(first: int, count: int, tmp_path: Path) -> None:
    """With every backend that is installed: the mix, and each of them on its own. Of opsets 13, 19 and 21."""
    report = Driver(tmp_path / "costs.sqlite").run(map(generate, range(first, first + count)))
    assert len(report.outcomes) == count
    assert not report.failures, "\n".join(report.lines())
    assert not report.illegal, "\n".join(report.lines())
    assert sum(o.status == RIGHT for o in report.outcomes) >= count - 2, "\n".join(report.lines())
    assert not [k for k in report.kernels if k.status in ("wrong", "crashed")], "\n".join(report.lines())


def _double(graph: Graph) -> Graph:
    """A pass that is wrong: every Neg becomes an Identity."""
    nodes = [replace(n, op_type="Identity") if n.op_type == "Neg" else n for n in graph.nodes]
    return graph.replace(nodes=nodes)


def test_a_wrong_pass_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.arange(1, 4, dtype=np.float32)
    model = make_model([node("Abs", ["x"], "a"), node("Neg", ["a"], "y")], {"x": x})
    data = model.SerializeToString()
    assert ask(data, {"x": x}).blame is None
    monkeypatch.setattr(opinions, "PASSES", [*PASSES, Pass("doubling", "wrong", _double)])
    blame = ask(data, {"x": x}).blame
    assert blame is not None
    assert blame.startswith("doubling: output 'y'")


def test_a_wrong_answer_is_neither_opinion() -> None:
    x = np.arange(1, 4, dtype=np.float32)
    model = make_model([node("Exp", ["x"], "y")], {"x": x})
    found = ask(model.SerializeToString(), {"x": x})
    assert found.why_wrong({"y": np.exp(x)}) is None
    assert "error" in str(found.why_wrong({"y": np.exp(x) + np.float32(0.1)}))
    assert "float64" in str(found.why_wrong({"y": np.exp(x).astype(np.float64)}))
    assert "missing" in str(found.why_wrong({}))


def test_onnxruntime_leaves_what_others_read() -> None:
    """It writes a training BatchNormalization's running means into its input, which is the bias here, too."""
    rng = np.random.default_rng(0)
    shapes = {"x": (2, 3, 4), "s": (3,), "m": (3,), "v": (3,)}
    given = {name: rng.uniform(0.5, 2, shape).astype(np.float32) for name, shape in shapes.items()}
    norm = node("BatchNormalization", ["x", "s", "m", "m", "v"], ["y", "means", "variances"], training_mode=1)
    model = make_model([norm], given)
    before = {name: array.copy() for name, array in given.items()}
    said = ask(model.SerializeToString(), given)
    for name, array in before.items():
        np.testing.assert_array_equal(given[name], array)
    x = before["x"]
    center, spread = x.mean((0, 2), keepdims=True), x.var((0, 2), keepdims=True)
    channels = (1, 3, 1)
    y = (x - center) / np.sqrt(spread + 1e-5) * before["s"].reshape(channels) + before["m"].reshape(channels)
    assert said.why_wrong({"y": y}) is None
    assert said.why_wrong({"y": y + 1}) is not None


def test_a_half_is_no_more_precise_for_being_cast() -> None:
    x = np.linspace(0.1, 0.9, 7, dtype=np.float16)
    model = make_model(
        [node("Sigmoid", ["x"], "s"), node("Cast", ["s"], "y", to=onnx.TensorProto.DOUBLE)], {"x": x}
    )
    found = ask(model.SerializeToString(), {"x": x})
    assert found.reference is not None
    y = found.reference["y"]
    assert found.why_wrong({"y": y * (1 + 2e-3)}) is None
    assert "error" in str(found.why_wrong({"y": y * 1.5}))


@pytest.mark.parametrize("seed", range(5))
def test_the_least_of_nearly_equal_halves_hangs_on_rounding(seed: int) -> None:
    x = np.random.default_rng(seed).uniform(3.0, 6.5, (43, 40)).astype(np.float16)
    names = ["x", "a", "b", "c"]
    chain = [
        node(op, [v], w) for op, v, w in zip(["Sigmoid", "Sin", "Sigmoid"], names, names[1:], strict=False)
    ]
    model = make_model([*chain, node("ArgMin", ["c"], "y", axis=0)], {"x": x})
    unstable = ask(model.SerializeToString(), {"x": x}).unstable["y"]
    assert unstable.mean() > 0.95


def _run_by_onnxruntime(numbers: Iterable[int]) -> Iterator[Sample]:
    """It lacks some operators in some dtypes."""
    for sample in map(generate, numbers):
        try:
            run_onnxruntime(sample.model.SerializeToString(), sample.inputs)
        except Exception:  # what it raises has no common type
            continue
        yield sample


@pytest.mark.parametrize(
    ("between", "hangs"),
    [
        (["Exp", "Log"], True),
        (["Exp", "Floor", "Relu"], False),
        (["Neg", "Neg"], False),
        (["GlobalAveragePool"], True),
    ],
)
def test_rounding_decides_what_is_compared_with_itself(between: list[str], hangs: bool) -> None:
    """What is computed may be rounded otherwise; what is handed on, or is whole, may not."""
    names = ["x", *(f"v{i}" for i in range(len(between)))]
    chain = [node(op, [v], w) for op, v, w in zip(between, names, names[1:], strict=False)]
    other = names[-2] if between[-1] == "Relu" else "x"
    x = np.linspace(0.1, 0.9, 7, dtype=np.float32).reshape(1, 7, 1, 1)
    model = make_model([*chain, node("Less", [other, names[-1]], "y")], {"x": x})
    assert set(ask(model.SerializeToString(), {"x": x}).unstable) == ({"y"} if hangs else set())


def test_a_sum_of_fractions_is_whole_by_chance() -> None:
    """Of a long one all elements hang on its order, those, too, that this order makes whole numbers."""
    rng = np.random.default_rng(0)
    x = rng.uniform(30, 70, (64, 2000)).astype(np.float32)
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[64,2000] x) => (int64[64,1] y) {
        s = MatMul(x, w)
        y = Cast<to=7>(s)
    }"""
    model = onnx.parser.parse_model(text)
    weights = rng.uniform(30, 70, (2000, 1)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    assert ask(model.SerializeToString(), {"x": x}).unstable["y"].all()


def test_what_is_settled_counts_beside_what_is_not() -> None:
    """One element of an output hangs on rounding; another is wrong."""
    x = np.array([0.1, 0.2, 0.3], np.float32)
    chain = [node("Exp", ["x"], "e"), node("Log", ["e"], "l"), node("Less", ["c", "l"], "y")]
    model = make_model(chain, {"x": x}, {"c": np.array([0.1, 0.0, 9.0], np.float32)})
    found = ask(model.SerializeToString(), {"x": x})
    assert found.reference is not None
    assert found.unstable["y"].tolist() == [True, False, False]
    for flipped, wrong in (([0], False), ([1], True), ([0, 2], True)):
        answer = found.reference["y"].copy()
        answer[flipped] ^= True
        assert (found.why_wrong({"y": answer}) is not None) == wrong


@pytest.mark.ci
def test_a_pass_that_optimize_left_out_is_a_wrong_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The answer is right then, but only since the pass was left out; of the batch its model is named."""
    monkeypatch.setattr(passes, "PASSES", (*PASSES, Pass("double", "wrong", _double)))
    x = np.array([1, -2], np.float32)
    samples = [
        Sample(op, make_model([node(op, ["x"], "y")], {"x": x}, opset=17), {"x": x}) for op in ("Abs", "Neg")
    ]
    report = Driver(tmp_path / "costs.sqlite", ["onnxruntime"], shrinking=False).run(samples)
    assert {o.sample: o.status for o in report.outcomes} == {"Abs": RIGHT, "Neg": WRONG}
    assert "the pass double was left out" in report.failures[0].reason


def test_joined_models_answer_as_each_does() -> None:
    samples = list(_run_by_onnxruntime(range(8)))
    model, inputs = join(samples)
    onnx.checker.check_model(model, full_check=True)
    parts = split(run_onnxruntime(model.SerializeToString(), inputs), len(samples))
    for sample, found in zip(samples, parts, strict=True):
        expected = run_onnxruntime(sample.model.SerializeToString(), sample.inputs)
        assert found.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array)
    assert parts_named("node p3/Abs (Abs): 'p3/x' and p12/y") == {3, 12}


def test_what_fails_is_made_small() -> None:
    """Of ten operators in a row the one that fails is left, its input recorded."""
    chain = [node(op, [f"v{i}"], f"v{i + 1}") for i, op in enumerate(["Abs"] * 4 + ["Sin"] + ["Neg"] * 5)]
    x = np.arange(6, dtype=np.float32)
    sample = Sample("chain", make_model(chain, {"v0": x}), {"v0": x})
    values = all_values(sample.model.SerializeToString(), sample.inputs)
    small = shrink(sample, values, lambda s: "Sin" in s.operators)
    assert small.operators == ["Sin"]
    assert list(small.inputs) == ["v4"]
    onnx.checker.check_model(small.model, full_check=True)


def test_a_model_as_code_is_the_model() -> None:
    for sample in _run_by_onnxruntime(range(10)):
        made: dict[str, Any] = {}
        exec(as_code(sample.model, sample.inputs), made)
        expected = run_onnxruntime(sample.model.SerializeToString(), sample.inputs)
        found = run_onnxruntime(made["model"].SerializeToString(), made["inputs"])
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array)


def test_a_legal_refusal_names_what_it_is_about() -> None:
    told = "ModelError: node 'a': the reference implements no NonZero at opset 13"
    assert Outcome("m", REFUSED, (), "passes", told).legal
    assert not Outcome("m", REFUSED, (), "passes", "ModelError: no").legal
    fault = "ModelError: node 'a' (If) cannot be evaluated: operands could not be broadcast"
    assert not Outcome("m", REFUSED, (), "passes", fault).legal
    assert not Outcome("m", REFUSED, (), "passes", told + "\nTraceback").legal
    assert not Outcome("m", UNTOLD, (), "passes", told).legal
