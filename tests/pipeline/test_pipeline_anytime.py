"""An answer at any time: the first one at once, then better ones, each of which can be kept and used."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest

from collage_core import Optimization, Target, build, optimize
from collage_core.formats import Array
from collage_core.measuring.progress import Silent
from collage_core.pipeline.budget import Budget
from collage_core.pipeline.effort import NORMAL, QUICK, THOROUGH
from collage_core.pipeline.found import Found
from collage_core.pipeline.optimization import Stage
from collage_core.plugins import PLUGINS_VARIABLE, default_registry
from collage_core.report.summary import optimization_json
from collage_core.runtime import Bundle, read, save
from collage_core.search.transitions import Transitions

if TYPE_CHECKING:
    from tests.pipeline.conftest import Answer, Parse

_TARGET = Target("cpu", 1)
_CHAIN = "(float[8] x) => (float y) { [a] a = Relu(x) [b] b = Neg(a) [c] c = Abs(b) [d] y = Exp(c) }"
_BACKENDS = ["operators", "pairs"]
_COMPARISONS = ("first answer", "in place", "choosing", "confirming", "confirming again")


class _Recorder(Silent):
    def __init__(self) -> None:
        self.phases: list[str] = []
        self.bests: list[tuple[str, float]] = []
        self.limits: list[float | None] = []

    def phase(self, name: str, total: int | None = None) -> None:
        self.phases.append(name)

    def best(self, label: str, latency_ms: float, single: str | None, single_ms: float | None) -> None:
        self.bests.append((label, latency_ms))

    def limit(self, seconds: float | None) -> None:
        self.limits.append(seconds)

    @property
    def compared(self) -> list[str]:
        return [p for p in self.phases if p in _COMPARISONS]


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Those of plugins/, ten times as fast, here and in workers."""
    monkeypatch.setenv(PLUGINS_VARIABLE, "pipeline_library_backends")
    monkeypatch.setenv("PIPELINE_PACE", "0.1")
    default_registry.cache_clear()
    yield
    default_registry.cache_clear()


def _children() -> set[int]:
    """Of all threads of this process."""
    return {int(pid) for t in Path("/proc/self/task").glob("*/children") for pid in t.read_text().split()}


def _optimize(parse: Parse, costs: Path, **options: Any) -> Optimization:
    return optimize(parse(_CHAIN), backends=_BACKENDS, target=_TARGET, costs=costs, **options)


def _is_right(found: Optimization, model: onnx.ModelProto, answer: Answer, x: Array) -> bool:
    """As a bundle on disk, opened again."""
    (y,) = answer(model, {"x": x}).values()
    (told,) = build(found.graph, found.placement)({"x": x}).values()
    return np.allclose(told, y, rtol=1e-4, atol=1e-5)


@pytest.mark.ci
def test_every_better_answer_can_be_kept_and_used(parse: Parse, answer: Answer, tmp_path: Path) -> None:
    model = parse(
        """(float[1,16,20,20] x) => (float y) {
            [conv] c = Conv<pads=[1,1,1,1]>(x, w)
            [relu] r = Relu(c)
            [next] d = Conv(r, v)
            [tanh] s = Tanh(d)
            [gate] y = Mul(d, s)
        }""",
        w=(16, 16, 3, 3),
        v=(16, 16, 1, 1),
    )
    told: list[Optimization] = []
    progress = _Recorder()

    def keep(best: Optimization) -> None:
        save(Bundle(best.graph, best.placement), tmp_path / f"{len(told)}.collage")
        told.append(best)

    found = optimize(
        model,
        backends=["dnnl", "tvm", "onnxruntime"],
        target=_TARGET,
        costs=tmp_path / "c.sqlite",
        progress=progress,
        on_best=keep,
    )
    first = told[0]
    assert first.stage is Stage.RUN
    assert first.placement.backends() == ("onnxruntime",), "it takes all of it, and needs no measuring"
    assert first.counts["measured"] == 0
    assert progress.phases.index("first answer") < progress.phases.index("searching")
    assert [best.chosen for best in told] == [label for label, _ in progress.bests]
    assert len({best.placement.digest for best in told}) == len(told)
    for better in told[1:]:
        comparison = better.comparisons[-1]
        names = {r for r in comparison.records if comparison.records[r].ok}
        assert "collage" in names, "what is best goes by this name"
        ratios = [comparison.ratio(n, "collage") for n in names - {"collage"}]
        assert all(r is None or r.value > 1.0 for r in ratios), "nothing in it was faster"
    x = np.random.default_rng(1).standard_normal((1, 16, 20, 20), dtype=np.float32)
    (y,) = answer(model, {"x": x}).values()
    for number in range(len(told)):
        bundle = read(tmp_path / f"{number}.collage")
        (kept,) = build(bundle.graph, bundle.placement)({"x": x}).values()
        np.testing.assert_allclose(kept, y, rtol=1e-3, atol=1e-4)
    assert found.stage is Stage.CONFIRMED
    assert found.counts["bounded_out"] > 0
    assert found.comparison is not None
    assert found.comparison.records["collage"].ok


@pytest.mark.ci
@pytest.mark.usefixtures("libraries")
def test_the_first_answer_is_told_and_nothing_slower_after_it(
    parse: Parse, answer: Answer, tmp_path: Path
) -> None:
    told: list[Optimization] = []
    progress = _Recorder()
    _optimize(parse, tmp_path / "c.sqlite", rounds=2, progress=progress, on_best=told.append)
    assert told
    assert told[0].stage is Stage.RUN
    assert {s.backend for s in told[0].singles} == set(told[0].candidates.kinds)
    assert "not tried by itself so far" in {s.reason for s in told[0].singles}
    assert progress.compared[0] == "first answer"
    assert [best.chosen for best in told] == [label for label, _ in progress.bests]
    x = np.linspace(-1.0, 1.0, 8, dtype=np.float32)
    assert all(_is_right(best, parse(_CHAIN), answer, x) for best in told)


@pytest.mark.ci
@pytest.mark.usefixtures("libraries")
def test_what_is_recalled_is_told_at_the_end_or_when_it_is_interrupted(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _optimize(parse, tmp_path / "c.sqlite", rounds=2)
    told: list[Optimization] = []
    _optimize(parse, tmp_path / "c.sqlite", rounds=2, on_best=told.append)
    assert not told, "the answer follows at once"

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("collage_core.pipeline.run.prove", interrupt)
    with pytest.raises(KeyboardInterrupt):
        _optimize(parse, tmp_path / "c.sqlite", rounds=2, on_best=told.append)
    (best,) = told
    assert best.stage is Stage.RUN
    assert found.stage is Stage.CONFIRMED


@pytest.mark.usefixtures("libraries")
def test_a_budget_of_nothing_still_gives_a_placement_that_runs(
    parse: Parse, answer: Answer, tmp_path: Path
) -> None:
    told: list[Optimization] = []
    progress = _Recorder()
    found = _optimize(parse, tmp_path / "c.sqlite", budget_s=0.0, progress=progress, on_best=told.append)
    assert progress.limits == [0.0]
    assert found.is_cut_short
    assert told
    x = np.linspace(-1.0, 1.0, 8, dtype=np.float32)
    assert _is_right(found, parse(_CHAIN), answer, x)
    assert found.comparison is not None
    assert found.comparison.records["collage"].ok
    assert found.counts["measured"] < found.counts["offered"]
    assert progress.compared == ["first answer"], "what cannot even open in time is not compared"
    assert found.stage is Stage.RUN
    assert found.chosen == told[-1].chosen
    backends = set(found.candidates.kinds)
    assert {s.backend for s in found.singles} == backends, "of those that did not run is told, too"


@pytest.mark.ci
@pytest.mark.usefixtures("libraries")
def test_thorough_without_time_for_all_of_it_still_answers(
    parse: Parse, answer: Answer, tmp_path: Path
) -> None:
    found = _optimize(parse, tmp_path / "c.sqlite", budget_s=0.0, effort=THOROUGH)
    assert found.is_cut_short
    assert found.counts["measured"] < found.counts["offered"]
    assert _is_right(found, parse(_CHAIN), answer, np.linspace(-1.0, 1.0, 8, dtype=np.float32))


def test_a_model_of_constants_alone_is_an_answer(parse: Parse, tmp_path: Path) -> None:
    model = parse("(float[2] x) => (float[2] c) { [c] c = Constant<value_floats=[1.0, 2.0]>() }")
    found = optimize(model, backends=["dnnl"], target=_TARGET, costs=tmp_path / "c.sqlite", effort=QUICK)
    (c,) = build(found.graph, found.placement)({"x": np.zeros(2, np.float32)}).values()
    assert c.tolist() == [1.0, 2.0]


@pytest.mark.ci
@pytest.mark.usefixtures("libraries")
def test_what_a_budget_has_cut_short_is_gone_on_with(parse: Parse, tmp_path: Path) -> None:
    found = _optimize(parse, tmp_path / "c.sqlite", budget_s=0.0)
    assert found.stage is Stage.RUN
    compared = _optimize(parse, tmp_path / "c.sqlite", budget_s=0.0)
    assert compared.is_cut_short
    assert compared.stage is Stage.CONFIRMED
    assert compared.counts["measured"] == 0
    same = _optimize(parse, tmp_path / "c.sqlite", budget_s=0.0)
    assert not any(c.measured for c in same.comparisons), "it has no more time than before"
    assert same.placement.digest == compared.placement.digest
    again = _optimize(parse, tmp_path / "c.sqlite", rounds=2)
    assert not again.is_cut_short
    assert again.counts["known"] == found.counts["measured"], "it goes on from there"


@pytest.mark.ci
@pytest.mark.alone
@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("after", [1, 2])
def test_whatever_is_raised_where_the_best_is_kept_leaves_nothing_behind(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    before = _children()
    told: list[Optimization] = []
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)

    def interrupt(best: Optimization) -> None:
        told.append(best)
        if len(told) == after:
            raise KeyboardInterrupt

    try:
        _optimize(parse, tmp_path / "c.sqlite", rounds=2, on_best=interrupt)
    except KeyboardInterrupt:
        assert len(told) == after + 1, "what was not kept is told once more"
    else:
        assert len(told) < after, "nothing better was found than the first answer"
    assert _children() == before
    assert not list(temporary.iterdir())


@pytest.mark.ci
@pytest.mark.usefixtures("libraries")
def test_quick_compares_once(parse: Parse, tmp_path: Path) -> None:
    progress = _Recorder()
    found = _optimize(parse, tmp_path / "c.sqlite", effort=QUICK, progress=progress)
    assert progress.compared == ["first answer", "choosing"]
    assert progress.limits == [QUICK.budget_s]
    assert (found.stage, found.effort) == (Stage.CHOSEN, "quick")
    assert found.comparison is not None
    assert found.comparison.records["collage"].ok


@pytest.mark.ci
@pytest.mark.usefixtures("libraries")
def test_only_those_are_compared_for_whom_there_is_time(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mix, and the best so far, whatever the time; to open them takes no longer than it has taken."""
    everybody = _optimize(parse, tmp_path / "c.sqlite", effort=QUICK, rounds=2)
    monkeypatch.setattr("collage_core.pipeline.found._STARTING_S", 1e4)
    found = _optimize(parse, tmp_path / "d.sqlite", effort=QUICK, rounds=2)
    assert everybody.comparison is not None
    assert found.comparison is not None
    assert 1 <= len(found.comparison.records) <= 2 < len(everybody.comparison.records)
    assert found.stage is everybody.stage is Stage.CHOSEN


@pytest.mark.ci
@pytest.mark.usefixtures("libraries")
def test_who_there_was_no_time_for_is_compared_by_the_next_call(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as slow:
        slow.setattr("collage_core.pipeline.found._STARTING_S", 1e4)
        slow.setattr(Found, "to_open_s", lambda self, out: math.inf)
        cut = _optimize(parse, tmp_path / "c.sqlite", effort=QUICK, rounds=2)
    assert cut.stage is Stage.RUN
    found = _optimize(parse, tmp_path / "c.sqlite", effort=QUICK, rounds=2)
    assert found.stage is Stage.CHOSEN
    assert found.comparison is not None
    assert len(found.comparison.records) > 2


@pytest.mark.ci
@pytest.mark.usefixtures("libraries")
def test_normal_confirms_and_thorough_measures_everything(parse: Parse, tmp_path: Path) -> None:
    measured: dict[str, int] = {}
    for effort in (NORMAL, THOROUGH):
        progress = _Recorder()
        found = _optimize(
            parse, tmp_path / f"{effort.name}.sqlite", effort=effort, rounds=2, progress=progress
        )
        assert progress.compared[0] == "first answer"
        assert progress.compared[1] == "in place"
        assert progress.compared[-2:] == ["choosing", "confirming"]
        assert progress.limits == [effort.budget_s]
        assert (found.stage, found.effort) == (Stage.CONFIRMED, effort.name)
        measured[effort.name] = found.counts["measured"]
    assert found.counts["bounded_out"] == 0
    assert measured["normal"] <= measured["thorough"] == found.counts["offered"]


@pytest.mark.ci
@pytest.mark.usefixtures("libraries")
def test_who_was_left_out_is_left_out_again(parse: Parse, tmp_path: Path) -> None:
    """Whatever is not run any more, and cannot be seen to be behind."""
    effort = replace(QUICK, behind=1.0)
    contenders = []
    for expected in (["first answer", "choosing"], []):
        progress = _Recorder()
        found = _optimize(parse, tmp_path / "c.sqlite", effort=effort, rounds=2, progress=progress)
        assert progress.compared == expected
        contenders.append(optimization_json(found, "m.onnx")["contenders"])
    assert contenders[0] == contenders[1], "those, too, who ran at once and not again"


@pytest.mark.ci
@pytest.mark.usefixtures("libraries")
def test_what_there_was_no_time_for_is_not_begun_when_it_is_recalled(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = _Recorder(), _Recorder()
    with monkeypatch.context() as in_a_hurry:
        in_a_hurry.setattr(Budget, "is_over", lambda self, share=1.0: share == NORMAL.in_place_share)
        _optimize(parse, tmp_path / "c.sqlite", effort=NORMAL, rounds=2, progress=first)
    assert first.compared == ["first answer", "choosing", "confirming"]
    _optimize(parse, tmp_path / "c.sqlite", effort=NORMAL, rounds=2, progress=second)
    assert second.compared == []


@pytest.fixture
def calibrating(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each call of `calibrate` was to measure; it finds that nothing costs anything."""
    asked: list[bool] = []

    def calibrate(*_: Any, measure: bool) -> tuple[Transitions, int]:
        asked.append(measure)
        return Transitions(), 0

    monkeypatch.setattr("collage_core.pipeline.run.calibrate", calibrate)
    return asked


@pytest.mark.ci
@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize(("budget_s", "measures"), [(60.0, [False, False]), (600.0, [False, True])])
def test_calibrating_waits_until_there_is_time_for_it(
    parse: Parse,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    calibrating: list[bool],
    budget_s: float,
    measures: list[bool],
) -> None:
    monkeypatch.setattr("collage_core.pipeline.found._MATTERS", 0.0)
    _optimize(parse, tmp_path / "c.sqlite", effort=NORMAL, budget_s=budget_s, rounds=2)
    assert calibrating == measures, "what is known is looked up first"


@pytest.mark.ci
@pytest.mark.usefixtures("libraries")
def test_what_cannot_matter_is_not_calibrated_by_the_next_call_either(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calibrating: list[bool]
) -> None:
    monkeypatch.setattr("collage_core.pipeline.found._MATTERS", math.inf)
    for _ in range(2):
        found = _optimize(parse, tmp_path / "c.sqlite", effort=NORMAL, budget_s=600.0, rounds=2)
    assert calibrating == [False] * 4
    assert found.is_recalled


@pytest.mark.usefixtures("libraries")
def test_what_is_recalled_is_of_the_same_constants(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dear = Transitions(dict.fromkeys(_BACKENDS, 1.0))
    found = []
    for constants in (Transitions(), dear, dear):
        told = constants, 0
        monkeypatch.setattr("collage_core.pipeline.run.calibrate", lambda *_, measure, told=told: told)
        found.append(_optimize(parse, tmp_path / "c.sqlite", effort=QUICK, rounds=0))
    assert found[0].mix.terms_ms["groups"] == 0.0
    assert found[1].mix.terms_ms["groups"] >= 1.0
    assert found[2].mix == found[1].mix


@pytest.mark.ci
@pytest.mark.usefixtures("libraries")
def test_what_was_found_before_calibrating_is_not_recalled_after_it(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dear = Transitions(dict.fromkeys(_BACKENDS, 1.0))
    calibrated: list[bool] = []

    def calibrate(*_: object, measure: bool) -> tuple[Transitions, int]:
        calibrated.extend([True] * measure)
        return dear if calibrated else Transitions(), 0

    monkeypatch.setattr("collage_core.pipeline.run.calibrate", calibrate)
    monkeypatch.setattr("collage_core.pipeline.found._MATTERS", 0.0)
    found = []
    for least_s in (math.inf, 90.0, 90.0):
        monkeypatch.setattr("collage_core.pipeline.found._CALIBRATED_FROM_S", least_s)
        options = {"effort": NORMAL, "budget_s": 600.0, "rounds": 2}
        found.append(_optimize(parse, tmp_path / "c.sqlite", **options))
    assert found[0].mix.terms_ms["groups"] == 0.0
    assert found[1].mix.terms_ms["groups"] >= 1.0
    assert found[2].mix == found[1].mix


@pytest.mark.usefixtures("libraries")
def test_nothing_is_told_of_what_is_not_run(parse: Parse, tmp_path: Path) -> None:
    told: list[Optimization] = []
    progress = _Recorder()
    found = _optimize(parse, tmp_path / "c.sqlite", rounds=0, progress=progress, on_best=told.append)
    assert not told
    assert not progress.bests
    assert not progress.compared
    assert found.stage is Stage.SEARCHED
    assert found.placement == found.mix
