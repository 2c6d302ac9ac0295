"""Never worse: what is slow or fails as a whole is not what one gets, however well its parts time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import pytest

from collage_core import Constraints, CostDatabase, CostRecord, Optimization, Placement, Target, optimize
from collage_core.costs.ratio import TURNS
from collage_core.errors import BackendError
from collage_core.pipeline.comparison import Comparison
from collage_core.pipeline.proof import COLLAGE, MIX, Single, prove
from collage_core.report.summary import optimization_json

if TYPE_CHECKING:
    from tests.pipeline.conftest import Parse

_TARGET = Target("cpu", 1)
_NO_REFERENCE = Constraints(excluded=(("reference", None),))
_BOTH = "(float[8] x) => (float y) { [a] a = Relu(x) [b] y = Neg(a) }"
_EACH_ITS_OWN = "(float[8] x) => (float y) { [a] a = Abs(x) [b] y = Exp(a) }"

pytestmark = pytest.mark.usefixtures("grudges")


def _optimize(parse: Parse, text: str, costs: Path) -> Optimization:
    return optimize(
        parse(text),
        backends=["left", "right"],
        target=_TARGET,
        costs=costs,
        constraints=_NO_REFERENCE,
        rounds=4,
    )


@pytest.mark.alone
def test_a_mix_that_times_well_in_parts_is_found_out_when_it_runs(parse: Parse, tmp_path: Path) -> None:
    costs = tmp_path / "c.sqlite"
    result = _optimize(parse, _BOTH, costs)
    first, *_ = result.op_level.history["turns"]
    assert first["predicted_ms"] < 10
    assert first["took_ms"] > 30
    (alone,) = result.mix.backends()
    (other,) = {"left", "right"} - {alone}
    assert result.chosen in (alone, other)
    assert result.placement.backends() == (result.chosen,)

    in_place, *_, choosing, confirming = (c.records for c in result.comparisons)
    with CostDatabase(costs) as database:
        stored = [item.record for item in database.items()]
    assert all(r in stored for r in (*in_place.values(), *choosing.values(), *confirming.values()))
    assert choosing.keys() == {COLLAGE, other}
    assert confirming.keys() == {COLLAGE, alone, other} - {result.chosen}
    assert (in_place[MIX].median_ms or 0) > 30
    report = optimization_json(result, "m.onnx")
    confirmed = {name: record.median_ms for name, record in confirming.items()}
    assert {name: report["latency_ms"][name] for name in confirmed} == confirmed
    assert report["latency_ms"]["reference"] is None
    assert report["latency_ms"]["collage"] == pytest.approx(4, rel=0.5)
    assert report["chosen"] == result.chosen
    assert report["predicted_ms"] == result.placement.predicted_ms

    again = _optimize(parse, _BOTH, costs)
    assert again.placement == result.placement
    assert not any(c.measured for c in again.comparisons)


def test_a_mix_that_fails_as_a_whole_loses_too(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLAGE_TEST_GRUDGE", "fail")
    result = _optimize(parse, _BOTH, tmp_path / "c.sqlite")
    assert result.mix.backends() == ("left", "right")
    assert result.chosen in ("left", "right")
    assert result.comparison is not None
    assert result.comparison.records["collage"].ok


def test_a_placement_that_cannot_run_is_no_result(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLAGE_TEST_GRUDGE", "fail")
    with pytest.raises(BackendError, match=r"runs as a whole: mix: .*failed with status 13"):
        _optimize(parse, _EACH_ITS_OWN, tmp_path / "c.sqlite")


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


def _record(turns_ms: Iterable[float]) -> CostRecord:
    """Of as many sittings as turns."""
    turns = [[float(ms)] for ms in turns_ms]
    return CostRecord("ok", median(ms for (ms,) in turns), 1.0, len(turns), details={TURNS: turns})


def _placements(count: int) -> list[Placement]:
    return [Placement((), (), Target("cpu", n), predicted_ms=1.0) for n in range(1, count + 1)]


@pytest.mark.parametrize(
    ("mix", "noise", "chosen"),
    [
        (0.98, 0.001, MIX),
        (0.995, 0.001, MIX),  # little, but certain
        (0.995, 0.1, "one"),  # little and uncertain: one library is simpler
        (0.96, 0.1, MIX),  # uncertain, but more than is given away for being simple
        (1.01, 0.001, "one"),
    ],
)
def test_one_library_is_preferred_only_where_no_difference_can_be_told(
    mix: float, noise: float, chosen: str
) -> None:
    ours, theirs = _placements(2)
    random = np.random.default_rng(0)
    drifting_ms = random.uniform(1.0, 2.0, 41)
    quotients = mix * (1.0 + noise * random.permutation(np.linspace(-1.0, 1.0, 41)))
    taken_ms = {ours.digest: quotients * drifting_ms, theirs.digest: drifting_ms}

    def compare(title: str, placements: Mapping[str, Placement], timed: Collection[str]) -> Comparison:
        records = {label: _record(taken_ms[p.digest]) for label, p in placements.items()}
        return Comparison(records, measured=True)

    proof = prove({MIX: ours}, [Single("one", theirs, alone=True)], compare, lambda _: None)
    assert proof.label == chosen
    assert [len(c.records) for c in proof.comparisons] == [2, 2]


def test_contenders_are_compared_with_each_other_not_with_a_third() -> None:
    """By their ratios to the mix "one" takes 0.55 and "two" 1; directly "one" takes 1.1 times as long."""
    mix, one, two = _placements(3)
    turns_ms = {mix.digest: [0.2, 2.0, 1.0], one.digest: [1.1, 1.1, 0.5], two.digest: [1.0, 1.0, 1.0]}

    def compare(title: str, placements: Mapping[str, Placement], timed: Collection[str]) -> Comparison:
        return Comparison({label: _record(turns_ms[p.digest]) for label, p in placements.items()}, True)

    singles = [Single("one", one, alone=True), Single("two", two, alone=True)]
    assert prove({MIX: mix}, singles, compare, lambda _: None).label == "two"


def test_a_backend_that_is_predicted_to_be_hopeless_is_not_run() -> None:
    ours, near, far = (
        replace(p, predicted_ms=ms) for p, ms in zip(_placements(3), (1.0, 2.4, 2.6), strict=True)
    )
    ran: list[set[str]] = []

    def compare(title: str, placements: Mapping[str, Placement], timed: Collection[str]) -> Comparison:
        ran.append(set(placements))
        return Comparison({label: _record([1.0, 1.0]) for label in placements}, True)

    singles = [Single("near", near, alone=False), Single("far", far, alone=False)]
    prove({MIX: ours}, singles, compare, lambda _: None)
    assert ran == [{COLLAGE, "near+reference"}] * 2


@pytest.mark.parametrize(
    ("confirmed", "chosen", "runs", "said"),
    [
        ([0.9], MIX, 2, None),
        ([1.005], MIX, 2, None),  # slower, but by no more than is given away for being simple
        ([1.05], MIX, 2, "but of both together it is still the best"),
        ([1.3], "one", 3, "and than one in both together, which is chosen now"),
        # The new choice is contradicted, too: what confirms last chooses nothing
        ([1.3, 0.7], "one", 3, "and than one in both together, which is chosen now"),
    ],
)
def test_what_is_slower_when_confirmed_is_chosen_anew_once(
    confirmed: Sequence[float], chosen: str, runs: int, said: str | None
) -> None:
    ours, theirs = _placements(2)
    confirming = iter(confirmed)
    notes: list[str] = []

    def compare(title: str, placements: Mapping[str, Placement], timed: Collection[str]) -> Comparison:
        mix = 0.9 if title == "choosing" else next(confirming, 1.0)
        taken = {ours.digest: mix * np.linspace(0.99, 1.01, 9), theirs.digest: np.ones(9)}
        return Comparison({label: _record(taken[p.digest]) for label, p in placements.items()}, True)

    proof = prove({MIX: ours}, [Single("one", theirs, alone=True)], compare, notes.append)
    assert proof.label == chosen
    assert len(proof.comparisons) == runs
    assert notes == ([f"mix was slower than one in the run to confirm it, {said}"] if said else [])


def test_the_first_choice_stands_if_what_beat_it_cannot_be_confirmed() -> None:
    ours, theirs = _placements(2)
    notes: list[str] = []

    def compare(title: str, placements: Mapping[str, Placement], timed: Collection[str]) -> Comparison:
        if title == "confirming" and placements[COLLAGE] is theirs:
            records = {label: _record(np.ones(9)) for label in placements}
            return Comparison({**records, COLLAGE: CostRecord("failed", reason="it crashed")}, True)
        mix = 0.9 if title == "choosing" else 1.3
        taken = {ours.digest: np.full(9, mix), theirs.digest: np.ones(9)}
        return Comparison({label: _record(taken[p.digest]) for label, p in placements.items()}, True)

    proof = prove({MIX: ours}, [Single("one", theirs, alone=True)], compare, notes.append)
    assert proof.label == MIX
    assert proof.rejected == ("one: it crashed",)
    assert len(proof.comparisons) == 4


def test_of_three_the_one_that_both_runs_favour_is_chosen() -> None:
    """ "two" beats the mix by most when it is confirmed, "one" in both runs together."""
    mix, one, two = _placements(3)
    notes: list[str] = []
    choosing_ms = {mix.digest: 0.9, one.digest: 0.95, two.digest: 1.2}
    confirming_ms = {mix.digest: 1.2, one.digest: 0.9, two.digest: 0.85}

    def compare(title: str, placements: Mapping[str, Placement], timed: Collection[str]) -> Comparison:
        taken_ms = choosing_ms if title == "choosing" else confirming_ms
        return Comparison({k: _record([taken_ms[p.digest]] * 9) for k, p in placements.items()}, True)

    singles = [Single("one", one, alone=True), Single("two", two, alone=True)]
    proof = prove({MIX: mix}, singles, compare, notes.append)
    assert proof.label == "one"
    assert notes == [
        "mix was slower than two in the run to confirm it, and than one in both together, which is chosen now"
    ]


def test_a_mix_that_is_one_library_is_as_simple_as_another() -> None:
    ours, theirs = _placements(2)
    random = np.random.default_rng(0)
    quotients = 1.004 * (1.0 + 0.1 * random.permutation(np.linspace(-1.0, 1.0, 41)))
    turns_ms = {ours.digest: np.ones(41), theirs.digest: quotients}

    def compare(title: str, placements: Mapping[str, Placement], timed: Collection[str]) -> Comparison:
        return Comparison({label: _record(turns_ms[p.digest]) for label, p in placements.items()}, True)

    singles = [Single("one", ours, alone=True), Single("two", theirs, alone=True)]
    assert prove({MIX: ours}, singles, compare, lambda _: None).label == "one"
