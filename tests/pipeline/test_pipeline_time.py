"""What there is time for: who is compared, what is calibrated, and what the next call makes up for."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from chain_optimization import BACKENDS, Recorder, optimize_chain

from collage_core.costs.rounds import OPEN_LIMIT_S
from collage_core.pipeline.budget import Budget
from collage_core.pipeline.effort import NORMAL, QUICK, THOROUGH
from collage_core.pipeline.found import Found
from collage_core.pipeline.optimization import Stage
from collage_core.report.summary import optimization_json
from collage_core.search.transitions import Transitions

if TYPE_CHECKING:
    from tests.pipeline.conftest import Parse


@pytest.mark.ci
@pytest.mark.usefixtures("libraries")
def test_quick_compares_once(parse: Parse, tmp_path: Path) -> None:
    progress = Recorder()
    found = optimize_chain(parse, tmp_path / "c.sqlite", effort=QUICK, progress=progress)
    assert progress.compared == ["first answer", "choosing"]
    assert progress.limits == [QUICK.budget_s]
    assert (found.stage, found.effort) == (Stage.CHOSEN, "quick")
    assert found.comparison is not None
    assert found.comparison.records["collage"].ok


@pytest.mark.parametrize(
    ("ran", "left_s", "limit_s"),
    [
        ((), 0.0, 30.0),  # there would be no answer
        (("reference",), 0.0, 30.0),
        (("fast",), 0.0, 5.0),
        (("fast",), 50.0, 25.0),
        ((), 100.0, 50.0),
    ],
)
def test_opening_may_take_longer_where_there_is_no_answer_yet(
    ran: tuple[str, ...], left_s: float, limit_s: float
) -> None:
    def placement(name: str) -> Any:
        return SimpleNamespace(digest=name, groups=[name], backends=lambda: (name,))

    known: Any = SimpleNamespace(fallback="reference", unknown_kernels=lambda p: 0)
    record = SimpleNamespace(ok=True, seconds=0.5)
    comparison: Any = SimpleNamespace(records=dict.fromkeys(ran, record))
    found = Found(known, {}, SimpleNamespace(known=None))  # type: ignore[arg-type]  # it is not asked
    found.ran = [(comparison, {name: placement(name) for name in ran})]
    assert found.open_limit_s([placement("new")], left_s) == limit_s
    assert found.open_limit_s([placement(name) for name in ran], left_s) == OPEN_LIMIT_S


@pytest.mark.slow
@pytest.mark.usefixtures("libraries")
def test_only_those_are_compared_for_whom_there_is_time(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mix, and the best so far, whatever the time; to open them takes no longer than it has taken."""
    everybody = optimize_chain(parse, tmp_path / "c.sqlite", effort=QUICK, rounds=2)
    monkeypatch.setattr("collage_core.pipeline.found._STARTING_S", 1e4)
    found = optimize_chain(parse, tmp_path / "d.sqlite", effort=QUICK, rounds=2)
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
        cut = optimize_chain(parse, tmp_path / "c.sqlite", effort=QUICK, rounds=2)
    assert cut.stage is Stage.RUN
    found = optimize_chain(parse, tmp_path / "c.sqlite", effort=QUICK, rounds=2)
    assert found.stage is Stage.CHOSEN
    assert found.comparison is not None
    assert len(found.comparison.records) > 2


@pytest.mark.slow
@pytest.mark.usefixtures("libraries")
def test_normal_confirms_and_thorough_measures_everything(parse: Parse, tmp_path: Path) -> None:
    measured: dict[str, int] = {}
    for effort in (NORMAL, THOROUGH):
        progress = Recorder()
        found = optimize_chain(
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
        progress = Recorder()
        found = optimize_chain(parse, tmp_path / "c.sqlite", effort=effort, rounds=2, progress=progress)
        assert progress.compared == expected
        contenders.append(optimization_json(found, "m.onnx")["contenders"])
    assert contenders[0] == contenders[1], "those, too, who ran at once and not again"


@pytest.mark.ci
@pytest.mark.usefixtures("libraries")
def test_what_there_was_no_time_for_is_not_begun_when_it_is_recalled(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Recorder(), Recorder()
    with monkeypatch.context() as in_a_hurry:
        in_a_hurry.setattr(Budget, "is_over", lambda self, share=1.0: share == NORMAL.in_place_share)
        optimize_chain(parse, tmp_path / "c.sqlite", effort=NORMAL, rounds=2, progress=first)
    assert first.compared == ["first answer", "choosing", "confirming"]
    optimize_chain(parse, tmp_path / "c.sqlite", effort=NORMAL, rounds=2, progress=second)
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


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize(
    ("budget_s", "measures"),
    [
        pytest.param(60.0, [False, False], marks=pytest.mark.slow),
        pytest.param(600.0, [False, True], marks=pytest.mark.ci),
    ],
)
def test_calibrating_waits_until_there_is_time_for_it(
    parse: Parse,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    calibrating: list[bool],
    budget_s: float,
    measures: list[bool],
) -> None:
    monkeypatch.setattr("collage_core.pipeline.found._MATTERS", 0.0)
    optimize_chain(parse, tmp_path / "c.sqlite", effort=NORMAL, budget_s=budget_s, rounds=2)
    assert calibrating == measures, "what is known is looked up first"


@pytest.mark.slow
@pytest.mark.usefixtures("libraries")
def test_what_cannot_matter_is_not_calibrated_by_the_next_call_either(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calibrating: list[bool]
) -> None:
    monkeypatch.setattr("collage_core.pipeline.found._MATTERS", math.inf)
    for _ in range(2):
        found = optimize_chain(parse, tmp_path / "c.sqlite", effort=NORMAL, budget_s=600.0, rounds=2)
    assert calibrating == [False] * 4
    assert found.is_recalled


@pytest.mark.usefixtures("libraries")
def test_what_is_recalled_is_of_the_same_constants(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dear = Transitions(dict.fromkeys(BACKENDS, 1.0))
    found = []
    for constants in (Transitions(), dear, dear):
        told = constants, 0
        monkeypatch.setattr("collage_core.pipeline.run.calibrate", lambda *_, measure, told=told: told)
        found.append(optimize_chain(parse, tmp_path / "c.sqlite", effort=QUICK, rounds=0))
    assert found[0].mix.terms_ms["groups"] == 0.0
    assert found[1].mix.terms_ms["groups"] >= 1.0
    assert found[2].mix == found[1].mix


@pytest.mark.slow
@pytest.mark.usefixtures("libraries")
def test_what_was_found_before_calibrating_is_not_recalled_after_it(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dear = Transitions(dict.fromkeys(BACKENDS, 1.0))
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
        found.append(optimize_chain(parse, tmp_path / "c.sqlite", **options))
    assert found[0].mix.terms_ms["groups"] == 0.0
    assert found[1].mix.terms_ms["groups"] >= 1.0
    assert found[2].mix == found[1].mix
