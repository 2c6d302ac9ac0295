"""Never worse: what is slow or fails as a whole is not what one gets, however well its parts time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from simulated_sittings import record_of_ms

from collage_core import Constraints, CostDatabase, Optimization, Target, optimize
from collage_core.errors import BackendError
from collage_core.measuring.comparison import Comparison, Plan
from collage_core.measuring.entrants import Entrant
from collage_core.pipeline.effort import NORMAL, THOROUGH, Effort
from collage_core.pipeline.proof import COLLAGE, CONFIRMING, IN_PLACE, LEFT_OUT, MIX
from collage_core.report.summary import optimization_json

if TYPE_CHECKING:
    from tests.pipeline.conftest import Parse

_TARGET = Target("cpu", 1)
_NO_REFERENCE = Constraints(excluded=(("reference", None),))
_BOTH = "(float[8] x) => (float y) { [a] a = Relu(x) [b] y = Neg(a) }"
_EACH_ITS_OWN = "(float[8] x) => (float y) { [a] a = Abs(x) [b] y = Exp(a) }"

pytestmark = pytest.mark.usefixtures("grudges")


def _optimize(parse: Parse, text: str, costs: Path, effort: Effort = NORMAL) -> Optimization:
    return optimize(
        parse(text),
        backends=["left", "right"],
        target=_TARGET,
        costs=costs,
        constraints=_NO_REFERENCE,
        effort=effort,
        rounds=4,
    )


@pytest.mark.slow
@pytest.mark.alone
def test_a_mix_that_times_well_in_parts_is_found_out_when_it_runs(parse: Parse, tmp_path: Path) -> None:
    costs = tmp_path / "c.sqlite"
    result = _optimize(parse, _BOTH, costs, THOROUGH)  # it takes three turns to learn it of every kernel
    first, *_ = result.op_level.history["turns"]
    assert first["predicted_ms"] < 10
    assert first["took_ms"] > 30
    (alone,) = result.mix.backends()
    (other,) = {"left", "right"} - {alone}
    assert result.chosen in (alone, other)
    assert result.placement.backends() == (result.chosen,)

    at_once, in_place, *_, choosing, confirming = (c.records for c in result.comparisons)
    assert at_once.keys() <= {COLLAGE, alone, other}, "the first answer is a library"
    with CostDatabase(costs) as database:
        stored = [item.record for item in database.items()]
    assert all(r in stored for r in (*in_place.values(), *choosing.values(), *confirming.values()))
    assert {COLLAGE, alone, other} - {result.chosen} <= choosing.keys() | confirming.keys()
    assert (in_place[MIX].median_ms or 0) > 30
    report = optimization_json(result, "m.onnx")
    told = {name: c["median_ms"] for name, c in report["contenders"].items()}
    assert {name: told[name] for name in confirming} == {n: r.median_ms for n, r in confirming.items()}
    assert told["collage"] == pytest.approx(4, rel=0.5)
    assert report["contenders"]["collage"]["sittings"] == 2
    assert report["chosen"] == result.chosen
    assert report["predicted_ms"] == result.placement.predicted_ms

    again = _optimize(parse, _BOTH, costs, THOROUGH)
    assert again.placement == result.placement
    assert not any(c.measured for c in again.comparisons)


@pytest.mark.slow
def test_a_mix_that_fails_as_a_whole_loses_too(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLAGE_TEST_GRUDGE", "fail")
    result = _optimize(parse, _BOTH, tmp_path / "c.sqlite")
    assert result.mix.backends() == ("left", "right")
    assert result.chosen in ("left", "right")
    assert result.comparison is not None
    assert result.comparison.records["collage"].ok


@pytest.mark.ci
def test_a_placement_that_cannot_run_is_no_result(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLAGE_TEST_GRUDGE", "fail")
    with pytest.raises(BackendError, match=r"runs as a whole: mix: .*failed with status 13"):
        _optimize(parse, _EACH_ITS_OWN, tmp_path / "c.sqlite")


@pytest.mark.ci
def test_what_only_the_mix_can_run_is_kept(parse: Parse, tmp_path: Path) -> None:
    result = _optimize(parse, _EACH_ITS_OWN, tmp_path / "c.sqlite")
    assert result.chosen == "mix"
    singles = {s.backend: s for s in result.singles}
    assert singles.keys() == {"left", "right", "reference"}
    assert all(s.placement is None for s in singles.values())
    assert "no backend can run node 'b' (Exp)" in (singles["left"].reason or "")
    assert singles["reference"].label == "reference"
    assert result.comparison is not None
    assert list(result.comparison.records) == ["collage"]


class _Compared:
    """In place of `Contest`: everything takes what it takes, in as many sittings as a title has."""

    def __init__(self) -> None:
        self.ran: dict[str, list[str]] = {}

    def __call__(self, title: str, entrants: Sequence[Entrant], plan: Plan) -> Any:
        self.ran[title] = sorted(e.name for e in entrants)
        sittings = 1 if title == IN_PLACE else 3 if title == LEFT_OUT else 9
        takes = {e.name: 1.0 if e.name in (COLLAGE, MIX) else 1.3 for e in entrants}
        records = {n: record_of_ms(np.linspace(ms, 1.01 * ms, sittings)) for n, ms in takes.items()}
        return SimpleNamespace(title=title, recalled=lambda *_: Comparison(records, True))


@pytest.mark.ci
@pytest.mark.parametrize("has_time", [True, False])
def test_a_second_call_has_those_sit_who_sat_in_the_first(
    has_time: bool, parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`left` and `right` leave each operator of the other to the reference, and are behind at once."""
    compared: list[dict[str, list[str]]] = []
    for starting_s in (0.1 if has_time else 1e6, 0.1):
        monkeypatch.setattr("collage_core.pipeline.found._STARTING_S", starting_s)
        monkeypatch.setattr("collage_core.pipeline.runner.Contest", compare := _Compared())
        result = optimize(
            parse(_EACH_ITS_OWN), backends=["left", "right"], target=_TARGET, costs=tmp_path / "c.sqlite"
        )
        compared.append(compare.ran)
        assert result.chosen == MIX
        contenders = optimization_json(result, "m.onnx")["contenders"]
        assert contenders[COLLAGE]["sittings"] == 9, "of the run that confirms"
        assert contenders["left+reference"]["sittings"] == (3 if has_time else 1)
    everybody = sorted([COLLAGE, "left+reference", "reference", "right+reference"])
    assert [c.get(LEFT_OUT) for c in compared] == [everybody if has_time else None] * 2


@pytest.mark.ci
def test_a_call_that_ended_before_has_not_said_who_sits(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it found is recalled, and compared; with whom is for the next call to say."""

    class Interrupted(_Compared):
        def __call__(self, title: str, entrants: Sequence[Entrant], plan: Plan) -> Any:
            if title == CONFIRMING:
                raise KeyboardInterrupt
            return super().__call__(title, entrants, plan)

    def call() -> None:
        optimize(
            parse(_EACH_ITS_OWN), backends=["left", "right"], target=_TARGET, costs=tmp_path / "c.sqlite"
        )

    monkeypatch.setattr("collage_core.pipeline.found._STARTING_S", 0.1)
    monkeypatch.setattr("collage_core.pipeline.runner.Contest", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        call()
    for _ in range(2):
        monkeypatch.setattr("collage_core.pipeline.runner.Contest", compare := _Compared())
        call()
        assert compare.ran[LEFT_OUT] == sorted([COLLAGE, "left+reference", "reference", "right+reference"])


@pytest.mark.ci
def test_who_asks_for_so_many_rounds_has_no_more(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collage_core.pipeline.found._STARTING_S", 0.1)
    monkeypatch.setattr("collage_core.pipeline.runner.Contest", compare := _Compared())
    costs = tmp_path / "c.sqlite"
    optimize(parse(_EACH_ITS_OWN), backends=["left", "right"], target=_TARGET, costs=costs, rounds=4)
    assert CONFIRMING in compare.ran
    assert LEFT_OUT not in compare.ran
