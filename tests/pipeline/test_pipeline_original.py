"""The model as it was given is what the answer is compared with, and a second opinion is one."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest

from collage_core import Optimization, Target, build, optimize
from collage_core.costs import recording
from collage_core.errors import CollageError, DisagreementError, ModelError, WorkerError
from collage_core.formats import Array
from collage_core.ir import Graph, from_model, passes
from collage_core.ir.passes import PASSES, Pass
from collage_core.measuring.progress import Silent
from collage_core.pipeline import original
from collage_core.pipeline.second_opinion import second_opinion
from collage_core.plugins import default_registry
from collage_core.reference import ReferenceBackend
from collage_core.report.summary import optimization_json
from collage_core.report.text import explain_text, optimization_text
from collage_core.worker import Worker, WorkerCrash

if TYPE_CHECKING:
    from tests.pipeline.conftest import Parse

pytestmark = pytest.mark.ci

_TARGET = Target("cpu", 1)
_X: dict[str, Array] = {"x": np.linspace(-3, 3, 8, dtype=np.float32)}


@pytest.fixture(scope="module")
def model(parse: Parse) -> onnx.ModelProto:
    return parse(
        "(float[8] x) => (float[8] y, float[8] z) { [a] h = Softplus(x) [b] y = Neg(h) [c] z = Relu(h) }"
    )


def _optimize(model: onnx.ModelProto, **settings: object) -> Optimization:
    return optimize(model, backends=["reference"], target=_TARGET, rounds=0, inputs=_X, **settings)  # type: ignore[arg-type]


def _replacing(old: str, new: str) -> Callable[[Graph], Graph]:
    def apply(graph: Graph) -> Graph:
        nodes = [dataclasses.replace(n, op_type=new) if n.op_type == old else n for n in graph.nodes]
        return graph.replace(nodes=nodes)

    return apply


def _raises(graph: Graph) -> Graph:
    raise KeyError("nobody thought of this")


def _forgets(graph: Graph) -> Graph:
    return graph.replace(nodes=graph.nodes[1:])


def _insert(monkeypatch: pytest.MonkeyPatch, *wrong: Pass) -> None:
    monkeypatch.setattr(passes, "PASSES", (*PASSES[:2], *wrong, *PASSES[2:]))


def _right(found: Optimization) -> bool:
    h = np.log1p(np.exp(_X["x"]))
    answers = build(found.graph, found.placement)(_X)
    return np.allclose(answers["y"], -h, rtol=1e-5) and np.allclose(answers["z"], h, rtol=1e-5)


def test_what_the_passes_keep_is_compared_once(model: onnx.ModelProto, tmp_path: Path) -> None:
    costs = tmp_path / "costs.sqlite"
    first, second = (_optimize(model, costs=costs) for _ in range(2))
    assert first.original is not None
    assert second.original is not None
    assert first.original.error == second.original.error == 0.0
    assert first.original.faults == ()
    assert first.original.seconds > 0 == second.original.seconds
    report = optimization_json(first, "m.onnx")
    assert report["errors"] == []
    assert report["original"]["max_rel_error"] == 0.0
    assert "as the model was given, the reference answers the same: exactly" in explain_text(report)
    assert "the reference against the model as it was given, exactly" in optimization_text(report)
    other = _optimize(model, costs=costs, skip_passes=["dead-code"])
    assert other.original is not None
    assert other.original.seconds == 0.0, "the same graph, the same inputs"


@pytest.mark.parametrize(
    ("name", "apply", "reason"),
    [
        ("absolute", _replacing("Neg", "Abs"), "changes the answer: output 'y' has error 2"),
        ("misshapen", _replacing("Softplus", "NonZero"), "changes the answer"),
        ("unknown", _replacing("Relu", "Reloo"), "cannot run what it makes"),
        ("raising", _raises, "it fails: KeyError: 'nobody thought of this'"),
        ("forgetful", _forgets, "no valid graph: after forgetful: node 'b' reads 'h' before it is computed"),
    ],
)
def test_a_wrong_pass_is_named_and_left_out(
    model: onnx.ModelProto,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    apply: Callable[[Graph], Graph],
    reason: str,
) -> None:
    _insert(monkeypatch, Pass(name, "wrong", apply))
    found = _optimize(model)
    assert found.original is not None
    (fault,) = found.original.faults
    assert fault.name == name
    assert reason in fault.reason
    assert _right(found)
    report = optimization_json(found, "m.onnx")
    assert report["errors"] == [str(fault)]
    for text in (optimization_text(report), explain_text(report)):
        assert f"error: the pass {name} was left out: " in text


def test_several_wrong_passes_are_all_left_out(
    model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = [Pass("first", "", _replacing("Neg", "Abs")), Pass("second", "", _replacing("Relu", "Neg"))]
    _insert(monkeypatch, *wrong, Pass("third", "", _raises))
    found = _optimize(model)
    assert found.original is not None
    assert {f.name for f in found.original.faults} == {"first", "second", "third"}
    assert _right(found)


def test_a_model_that_needs_a_wrong_pass_is_refused(parse: Parse, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "(float[2,4] x) => (int64[8] y, int64[8] z) { [n] n = Size(x) [y] y = Range(c, n, d) [z] z = Neg(y) }"
    )
    model = parse(text, c=np.array(0), d=np.array(1))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    model.graph.output[1].type.tensor_type.ClearField("shape")
    (fold,) = (p for p in PASSES if p.name == "fold-constants")

    def off_by_one(graph: Graph) -> Graph:
        graph = fold.apply(graph)
        return graph.replace(constants={v: a + 1 for v, a in graph.constants.items()})

    wrong = dataclasses.replace(fold, apply=off_by_one)
    monkeypatch.setattr(passes, "PASSES", tuple(wrong if p is fold else p for p in PASSES))
    inputs = {"x": np.ones((2, 4), np.float32)}
    with pytest.raises(
        ModelError, match=r"fold-constants was left out: it changes the answer.*; without it: "
    ):
        optimize(model, backends=["reference"], target=_TARGET, rounds=0, inputs=inputs)


def test_a_graph_is_its_own_original(model: onnx.ModelProto) -> None:
    graph = _optimize(model).graph
    found = optimize(graph, backends=["reference"], target=_TARGET, rounds=0, inputs=_X)
    assert found.original is None
    assert optimization_json(found, "graph")["original"] is None


def test_a_model_too_large_for_memory_is_told(
    model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def killed(*arguments: object, **options: object) -> dict[str, Array]:
        raise WorkerCrash("killed by SIGKILL (killed)")

    monkeypatch.setattr(original, "reference_values", killed)
    found = _optimize(model, costs=tmp_path / "costs.sqlite")
    assert found.original is not None
    assert found.original.error is None
    assert found.original.unchecked is not None
    text = optimization_text(optimization_json(found, "m.onnx"))
    assert "error: not compared with the model as it was given: the reference cannot run it: " in text
    assert "killed by SIGKILL" in text
    assert _right(found)


def test_one_process_runs_the_original_and_the_recording(
    model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make = recording.reference_worker
    started: list[Worker] = []

    def start() -> Worker:
        started.append(make())
        return started[-1]

    monkeypatch.setattr(original, "reference_worker", start)
    monkeypatch.setattr(recording, "reference_worker", start)
    assert _right(_optimize(model, costs=tmp_path / "costs.sqlite"))
    assert len(started) == 1
    assert not started[0].alive


def test_a_process_that_dies_recording_is_no_fault_of_a_pass(
    model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It has run the original before; a new one records."""

    class Dying(Worker):
        def call(self, function: Any, *args: Any, **options: Any) -> Any:  # type: ignore[override]
            if function is recording._record:
                self.kill()
            return super().call(function, *args, **options)

    environment = ReferenceBackend().environment(Target(threads=1))
    monkeypatch.setattr(original, "reference_worker", lambda: Dying(environment))
    found = _optimize(model, costs=tmp_path / "costs.sqlite")
    assert found.original is not None
    assert found.original.faults == ()
    assert found.original.unchecked is None
    assert _right(found)


def test_a_second_opinion_that_agrees_is_told(model: onnx.ModelProto) -> None:
    found = _optimize(model, verify="onnxruntime")
    assert found.opinion is not None
    assert found.opinion.peer == "onnxruntime"
    assert found.opinion.error < 1e-6
    report = optimization_json(found, "m.onnx")
    assert "onnxruntime answers what the reference does: " in explain_text(report)
    assert "the reference against onnxruntime, within " in optimization_text(report)


def test_a_wrong_reference_is_found_by_a_second_opinion(
    model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(__file__).parent / "wrong_reference"
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    )
    assert _optimize(model).original is not None, "alone, the reference agrees with itself"
    with pytest.raises(DisagreementError) as caught:
        _optimize(model, verify="onnxruntime")
    said = str(caught.value)
    assert "onnxruntime answers something else than the reference: output 'y' has error" in said
    assert "first at node a (Softplus)" in said


def test_a_second_opinion_that_is_not_to_be_had(parse: Parse) -> None:
    model = parse("(float[3] x) => (float[3] y) { [y] y = Relu(x) }")
    with pytest.raises(CollageError, match="unknown peer 'nobody'; installed: "):
        optimize(model, backends=["reference"], rounds=0, verify="nobody")
    graph = from_model(parse("(float[3] x) => (float[3] y) { [y] y = Relu(x) }"))
    foreign = graph.replace(opsets={"": 99})
    with pytest.raises(WorkerError, match="no second opinion by onnxruntime is to be had: "):
        second_opinion(
            foreign, {"x": np.ones(3, np.float32)}, default_registry().peer("onnxruntime"), _TARGET, Silent()
        )
