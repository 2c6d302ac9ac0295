"""`tune`: what is tuned, in which order, what it survives, and what comes of it in a placement."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from collage_core import Constraints, CostDatabase, CostRecord, Optimization, Policy, Target, optimize
from collage_core.costs import CostKey
from collage_core.costs.roofline import PEAKS, peaks_environment
from collage_core.errors import CollageError
from collage_core.pipeline.tuning import TaskResult, Tuning, tune
from collage_core.plugins import PLUGINS_VARIABLE, default_registry
from collage_core.report.summary import tuning_json
from collage_core.report.text import tuning_text

if TYPE_CHECKING:
    from tests.pipeline.conftest import Parse

pytestmark = pytest.mark.ci

_TARGET = Target("cpu", 1)
_NO_REFERENCE = Constraints(excluded=(("reference", None),))
_THREE = "(float[8] x) => (float y) { [a] a = Relu(x) [b] b = Neg(a) [c] y = Relu(b) }"
_TWO = "(float[8] x) => (float y) { [a] a = Relu(x) [b] y = Neg(a) }"


@pytest.fixture(autouse=True)
def _tuners(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv(PLUGINS_VARIABLE, "pipeline_tuning_backends")
    monkeypatch.setenv("COLLAGE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    default_registry.cache_clear()
    _say_peaks(gflops=1e3)
    yield
    default_registry.cache_clear()


def _say_peaks(gflops: float) -> None:
    """Instead of measuring them."""
    details: dict[str, object] = {"gflops": gflops, "copy_gb_per_s": {"1000000": 1e3}}
    with CostDatabase() as database:
        key = CostKey(PEAKS, "", "", "", peaks_environment(_TARGET), Policy())
        database.put(key, CostRecord("ok", details=details))


def _tune(
    parse: Parse, text: str, trials: int = 8, budget_s: float | None = None, **weights: tuple[int, ...]
) -> Tuning:
    return tune(
        parse(text, **weights),
        backends=["trier"],
        against=["steady"],
        trials=trials,
        budget_s=budget_s,
        target=_TARGET,
    )


def _place(parse: Parse, text: str) -> Optimization:
    names = ["steady", "trier"]
    return optimize(parse(text), backends=names, target=_TARGET, constraints=_NO_REFERENCE, rounds=0)


def _by_node(tuning: Tuning) -> dict[str, TaskResult]:
    return {r.task.candidate.subgraph.nodes[0].name: r for r in tuning.results}


def test_what_is_tuned_and_faster_is_chosen(parse: Parse) -> None:
    assert _place(parse, _TWO).placement.backends() == ("steady",)
    tuning = _tune(parse, _TWO)
    for result in tuning.results:
        assert result.tuned is not None
        assert (result.tuned.trials, result.new_trials, result.reason) == (8, 8, None)
        assert result.cost_ms is not None
        assert result.task.known_ms is not None
        assert 1.15 <= result.cost_ms < result.task.known_ms
    placed = _place(parse, _TWO).placement
    assert placed.backends() == ("trier",)
    assert placed.predicted_ms is not None
    assert placed.predicted_ms == pytest.approx(sum(r.cost_ms or 0.0 for r in tuning.results))


def test_what_is_tuned_and_slower_is_not_chosen(parse: Parse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLAGE_TEST_BEST_MS", "60")
    tuning = _tune(parse, _TWO)
    assert all(r.cost_ms is not None and r.cost_ms >= 60 for r in tuning.results)
    assert not any(t["faster"] for t in tuning_json(tuning, "m.onnx")["tuned"])
    placed = _place(parse, _TWO)
    assert placed.placement.backends() == ("steady",)
    assert {c.backend for c in placed.candidates.candidates} == {"steady", "trier"}


def test_equal_kernels_are_tuned_once_and_the_largest_gain_comes_first(parse: Parse) -> None:
    tuning = _tune(parse, _THREE)
    assert [(r.task.candidate.subgraph.nodes[0].op_type, r.task.occurrences) for r in tuning.results] == [
        ("Relu", 2),
        ("Neg", 1),
    ]
    gains = [r.task.gain_ms for r in tuning.results]
    assert gains[0] == pytest.approx(2 * gains[1], rel=0.5)


def test_of_nested_groups_the_largest_is_tuned(parse: Parse) -> None:
    text = "(float[4,8] x) => (float y) { [m] m = MatMul(x, w) [r] y = Relu(m) }"
    tuning = _tune(parse, text, w=(8, 8))
    [result] = tuning.results
    assert str(result.task.candidate.subgraph) == "MatMul+Relu"
    assert result.task.known_ms is not None
    assert result.task.known_ms >= 24, "two kernels that do the same"
    assert result.cost_ms is not None
    assert 1.15 <= result.cost_ms < result.task.known_ms


def test_it_goes_on_where_it_was(parse: Parse) -> None:
    assert [r.new_trials for r in _tune(parse, _TWO, 6).results] == [6, 6]
    assert [r.new_trials for r in _tune(parse, _TWO, 6).results] == [0, 0]
    more = _tune(parse, _TWO, 20)
    assert [(r.new_trials, r.tuned and r.tuned.trials) for r in more.results] == [(14, 20)] * 2


def test_it_stops_when_nothing_is_left_to_try(parse: Parse) -> None:
    tuning = _tune(parse, _TWO, 100)
    assert [(r.tuned and r.tuned.trials, r.reason) for r in tuning.results] == [(40, None)] * 2


def test_the_budget_ends_it_and_what_was_found_is_kept(parse: Parse, monkeypatch: pytest.MonkeyPatch) -> None:
    _place(parse, _TWO)  # so that no time goes into measuring
    monkeypatch.setenv("COLLAGE_TEST_STEP_S", "11")
    tuning = _tune(parse, _TWO, budget_s=10.0)
    assert len(tuning.results) == len(tuning.left) == 1
    [result] = tuning.results
    assert result.reason == "the budget is used up"
    assert result.tuned is not None
    assert 4 <= result.tuned.trials < 8
    assert result.cost_ms is not None
    monkeypatch.delenv("COLLAGE_TEST_STEP_S")
    assert sum(r.new_trials for r in _tune(parse, _TWO).results) == 16 - result.new_trials


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("crash", "SIGSEGV"),
        ("hang", "no answer within 385 s"),
        ("raise", "no idea how"),
        ("grow", "more than 500 MiB"),
    ],
)
def test_a_tuner_that_fails_costs_one_kernel(
    parse: Parse, monkeypatch: pytest.MonkeyPatch, hanging_clock: None, fault: str, reason: str
) -> None:
    _place(parse, _THREE)
    monkeypatch.setenv("COLLAGE_CANDIDATE_LIMIT_S", "77")
    monkeypatch.setenv("COLLAGE_WORKER_MEMORY_MIB", "500")
    monkeypatch.setenv("COLLAGE_TEST_TRIER", f"{fault}:Relu")
    results = _by_node(_tune(parse, _THREE))
    assert reason in str(results["a"].reason)
    assert (results["a"].new_trials, results["a"].cost_ms) == (0, None)
    assert (results["b"].new_trials, results["b"].reason) == (8, None)
    assert results["b"].cost_ms is not None


def test_where_the_machine_is_the_limit_nothing_is_tuned(parse: Parse) -> None:
    _place(parse, _TWO)
    with CostDatabase() as database:
        for stored in [s for s in database.items() if s.key.backend == "steady"]:
            database.put(stored.key, replace(stored.record, median_ms=4.0))  # on the minute, whatever it took
    _say_peaks(gflops=8e-9 / 3.9e-3)
    tuning = _tune(parse, _TWO)
    assert not tuning.results
    assert [t.least_ms for t in tuning.skipped] == [pytest.approx(3.9)] * 2
    assert "2 groups not worth tuning" in tuning_text(tuning_json(tuning, "m.onnx"))


def test_nothing_to_tune_says_why(parse: Parse, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CollageError, match="can be tuned by steady; steady tunes nothing"):
        tune(parse(_TWO), backends=["steady"], target=_TARGET)
    monkeypatch.setenv("COLLAGE_TEST_TRIER", "nothing is tunable")
    with pytest.raises(CollageError, match="the tuner is on holiday"):
        _tune(parse, _TWO)


def test_the_report_says_what_came_of_it(parse: Parse) -> None:
    report = tuning_json(_tune(parse, _TWO), "m.onnx")
    [first, _] = report["tuned"]
    assert first["faster"]
    assert (first["trials"], first["new_trials"], first["occurrences"]) == (8, 8, 1)
    assert first["least_ms"] < first["cost_ms"] < first["known_ms"]
    text = tuning_text(report)
    assert "8 (+8)" in text
    assert "faster" in text
