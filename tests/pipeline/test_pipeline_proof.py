"""Never worse: what is slow or fails as a whole is not what one gets, however well its parts time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from simulated_sittings import details_of_ms

from collage_core import Constraints, CostDatabase, CostRecord, Optimization, Placement, Target, optimize
from collage_core.costs.sittings import SITTINGS, Sitting, Turn, sittings_to_json
from collage_core.errors import BackendError
from collage_core.measuring.comparison import Comparison, Plan
from collage_core.measuring.entrants import Entrant
from collage_core.pipeline.effort import NORMAL, THOROUGH, Effort
from collage_core.pipeline.proof import (
    COLLAGE,
    CONFIRMING,
    IN_PLACE,
    LEFT_OUT,
    MIX,
    Proof,
    Single,
    prove,
    prove_beside_left_out,
)
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


@pytest.mark.ci
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


@pytest.mark.ci
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


def _record(turns_ms: Iterable[float]) -> CostRecord:
    """Of as many sittings as turns."""
    turns = [[float(ms)] for ms in turns_ms]
    return CostRecord("ok", median(ms for (ms,) in turns), 1.0, len(turns), details=details_of_ms(turns))


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

    def compare(
        title: str, placements: Mapping[str, Placement], timed: Collection[str], *, thorough: bool = False
    ) -> Comparison:
        records = {label: _record(taken_ms[p.digest]) for label, p in placements.items()}
        return Comparison(records, measured=True)

    proof = prove({MIX: ours}, [Single("one", theirs, alone=True)], compare, lambda _: None)
    assert proof.label == chosen
    assert [len(c.records) for c in proof.comparisons] == [2, 2]


def test_contenders_are_compared_with_each_other_not_with_a_third() -> None:
    """By their ratios to the mix "one" takes 0.55 and "two" 1; directly "one" takes 1.1 times as long."""
    mix, one, two = _placements(3)
    turns_ms = {mix.digest: [0.2, 2.0, 1.0], one.digest: [1.1, 1.1, 0.5], two.digest: [1.0, 1.0, 1.0]}

    def compare(
        title: str, placements: Mapping[str, Placement], timed: Collection[str], *, thorough: bool = False
    ) -> Comparison:
        details = {label: details_of_ms([turns_ms[p.digest]] * 8) for label, p in placements.items()}
        return Comparison({n: CostRecord("ok", 1.0, 0.1, 24, details=d) for n, d in details.items()}, True)

    singles = [Single("one", one, alone=True), Single("two", two, alone=True)]
    assert prove({MIX: mix}, singles, compare, lambda _: None).label == "two"


def test_every_backend_runs_whose_run_takes_less_than_a_minute() -> None:
    """What it is predicted to take is no reason to drop it; what it was seen to take is."""
    ours, near, far, further = (
        replace(p, predicted_ms=ms) for p, ms in zip(_placements(4), (1.0, 2.4, 59e3, 61e3), strict=True)
    )
    ran: list[set[str]] = []

    def compare(
        title: str, placements: Mapping[str, Placement], timed: Collection[str], *, thorough: bool = False
    ) -> Comparison:
        ran.append(set(placements))
        takes = {ours.digest: 1.0, near.digest: 1.1, far.digest: 5.0}
        return Comparison({n: _record([takes[p.digest]] * 9) for n, p in placements.items()}, True)

    singles = [Single(n, p, alone=False) for n, p in (("near", near), ("far", far), ("further", further))]
    prove({MIX: ours}, singles, compare, lambda _: None)
    assert ran == [{COLLAGE, "near+reference", "far+reference"}, {COLLAGE, "near+reference"}]


_LONGER = "mix was slower than one in the run to confirm it: measured again, for longer"


@pytest.mark.parametrize(
    ("confirmed", "again", "chosen", "beaten_by", "said"),
    [
        (0.9, None, MIX, (), []),
        (1.005, None, MIX, (), []),  # slower, but by no more than is given away for being simple
        (1.05, 0.95, MIX, (), [_LONGER, "mix is chosen"]),
        (1.05, 1.0, MIX, ("one",), [_LONGER, "mix is chosen; one may be faster"]),
        (1.3, 1.2, "one", (), [_LONGER, "one is chosen"]),
    ],
)
def test_what_is_slower_when_confirmed_is_measured_for_longer(
    confirmed: float,
    again: float | None,
    chosen: str,
    beaten_by: tuple[str, ...],
    said: list[str],
) -> None:
    ours, theirs = _placements(2)
    mix_ms = {"choosing": 0.9, "confirming": confirmed, "confirming again": again}
    notes: list[str] = []
    runs: list[tuple[str, bool]] = []

    def compare(
        title: str, placements: Mapping[str, Placement], timed: Collection[str], *, thorough: bool = False
    ) -> Comparison:
        runs.append((title, thorough))
        taken = {ours.digest: (mix_ms[title] or 0.0) * np.linspace(0.99, 1.01, 9), theirs.digest: np.ones(9)}
        return Comparison({label: _record(taken[p.digest]) for label, p in placements.items()}, True)

    proof = prove({MIX: ours}, [Single("one", theirs, alone=True)], compare, notes.append)
    assert proof.label == chosen
    assert proof.placement is (ours if chosen == MIX else theirs)
    assert proof.beaten_by == beaten_by
    assert notes == said
    expected = [("choosing", False), ("confirming", False), ("confirming again", True)]
    assert runs == expected[: 2 if again is None else 3]
    other = "one" if chosen == MIX else MIX
    assert [set(c.records) for c in proof.comparisons] == [{COLLAGE, other}] * len(runs)


@pytest.mark.parametrize(("confirmed", "chosen"), [(0.9, MIX), (1.005, MIX), (1.3, "one")])
def test_with_no_time_left_what_was_faster_last_is_chosen(confirmed: float, chosen: str) -> None:
    """`normal` once handed back a library that its own confirmation had shown to be slower than another."""
    ours, theirs = _placements(2)
    mix_ms = {"choosing": 0.9, "confirming": confirmed}
    notes: list[str] = []

    def compare(
        title: str, placements: Mapping[str, Placement], timed: Collection[str], *, thorough: bool = False
    ) -> Comparison:
        taken = {ours.digest: mix_ms[title] * np.linspace(0.99, 1.01, 9), theirs.digest: np.ones(9)}
        return Comparison({label: _record(taken[p.digest]) for label, p in placements.items()}, True)

    singles = [Single("one", theirs, alone=True)]
    proof = prove({MIX: ours}, singles, compare, notes.append, has_time=lambda _: False)
    assert (proof.label, proof.beaten_by) == (chosen, ())
    assert proof.is_confirmed is (chosen == MIX)
    assert [set(c.records) for c in proof.comparisons] == [{COLLAGE, "one" if chosen == MIX else MIX}] * 2
    assert notes == (
        []
        if proof.is_confirmed
        else [
            "mix was slower than one in the run to confirm it, and no time is left to measure for longer",
            "one is chosen",
        ]
    )


def test_a_mix_is_not_chosen_over_a_library_that_is_faster_as_it_comes() -> None:
    """Together the mix takes 0.9 of it; what the host's moves cost it is thrown away, but not unseen."""
    ours, theirs = _placements(2)

    def sittings(ms: float, moved_ms: float) -> tuple[Sitting, ...]:
        kept, moved = Turn(ms), Turn(moved_ms, moved=True)
        steady = Sitting((replace(moved, taken_again=True), kept, kept))
        return (steady, Sitting((moved, kept, moved), as_it_comes=True), steady) * 4

    takes = {ours.digest: sittings(0.9, 2.4), theirs.digest: sittings(1.0, 1.0)}

    def compare(
        title: str, placements: Mapping[str, Placement], timed: Collection[str], *, thorough: bool = False
    ) -> Comparison:
        told = {n: {SITTINGS: sittings_to_json(takes[p.digest])} for n, p in placements.items()}
        return Comparison({n: CostRecord("ok", 1.0, 0.1, 24, details=d) for n, d in told.items()}, True)

    proof = prove({MIX: ours}, [Single("one", theirs, alone=True)], compare, lambda _: None)
    assert proof.label == "one"
    steady = proof.comparisons[-1].ratio(MIX, COLLAGE)
    assert steady is not None
    assert steady.value == pytest.approx(0.9)
    assert len(proof.comparisons) == 2, "as it comes is no reason to take a mix rather than a library"


def test_of_few_sittings_the_simpler_is_chosen() -> None:
    ours, theirs = _placements(2)

    def compare(
        title: str, placements: Mapping[str, Placement], timed: Collection[str], *, thorough: bool = False
    ) -> Comparison:
        takes = {ours.digest: [0.9, 0.94, 0.9, 0.86], theirs.digest: [1.0, 0.99, 1.0, 1.06]}
        return Comparison({n: _record(takes[p.digest]) for n, p in placements.items()}, True)

    notes: list[str] = []
    assert prove({MIX: ours}, [Single("one", theirs, alone=True)], compare, notes.append).label == "one"
    (said,) = notes
    assert (
        said
        == "too few sittings to tell: one is preferred for being simpler, though mix took 0.89 of its time"
    )


def test_what_left_after_one_sitting_is_not_preferred_for_being_simpler() -> None:
    """Nothing but its being far behind is known of it: that is no reason to take it."""
    ours, near, far = _placements(3)

    def compare(
        title: str, placements: Mapping[str, Placement], timed: Collection[str], *, thorough: bool = False
    ) -> Comparison:
        def turns_ms(p: Placement) -> list[list[float]]:
            ms = {ours.digest: 0.9, near.digest: 1.0, far.digest: 2.0}[p.digest]
            noise = np.random.default_rng(p.target.threads).normal(1.0, 0.002, 8)
            return [[ms * n] if p is not far or i == 0 else [] for i, n in enumerate(noise)]

        told = {n: details_of_ms(turns_ms(p)) for n, p in placements.items()}
        return Comparison({n: CostRecord("ok", 1.0, 0.1, 8, details=d) for n, d in told.items()}, True)

    singles = [Single("near", near, alone=True), Single("far", far, alone=True)]
    proof = prove({MIX: ours}, singles, compare, lambda _: None, most_standing=2)
    assert proof.label == MIX
    assert [set(c.records) for c in proof.comparisons] == [{COLLAGE, "near", "far"}, {COLLAGE, "near"}]


@pytest.mark.parametrize(("mix", "chosen"), [(0.7, MIX), (0.99, "one"), (1.2, "one")])
def test_of_two_sittings_a_mix_that_gains_much_is_taken(mix: float, chosen: str) -> None:
    """Too few to tell anything for sure; but what is 40 % slower is not taken for being simple."""
    ours, theirs = _placements(2)

    def compare(
        title: str, placements: Mapping[str, Placement], timed: Collection[str], *, thorough: bool = False
    ) -> Comparison:
        takes = {ours.digest: [mix, 1.02 * mix], theirs.digest: [1.0, 1.01]}
        return Comparison({n: _record(takes[p.digest]) for n, p in placements.items()}, True)

    singles = [Single("one", theirs, alone=True)]
    proof = prove({MIX: ours}, singles, compare, lambda _: None, confirms=False)
    assert proof.label == chosen
    assert len(proof.comparisons) == 1
    assert COLLAGE in proof.comparisons[0].records, "its figures are those of the choice"


def test_what_fails_when_it_is_confirmed_is_not_chosen() -> None:
    ours, theirs = _placements(2)

    def compare(
        title: str, placements: Mapping[str, Placement], timed: Collection[str], *, thorough: bool = False
    ) -> Comparison:
        takes = {ours.digest: 0.9, theirs.digest: 1.0}
        records = {label: _record([takes[p.digest]] * 9) for label, p in placements.items()}
        if title == "confirming" and placements[COLLAGE] is ours:
            records[COLLAGE] = CostRecord("failed", reason="it crashed")
        return Comparison(records, True)

    proof = prove({MIX: ours}, [Single("one", theirs, alone=True)], compare, lambda _: None)
    assert proof.label == "one"
    assert proof.rejected == ("mix: it crashed",)
    assert len(proof.comparisons) == 3


def test_a_mix_that_is_one_library_is_as_simple_as_another() -> None:
    ours, theirs = _placements(2)
    random = np.random.default_rng(0)
    quotients = 1.004 * (1.0 + 0.1 * random.permutation(np.linspace(-1.0, 1.0, 41)))
    turns_ms = {ours.digest: np.ones(41), theirs.digest: quotients}

    def compare(
        title: str, placements: Mapping[str, Placement], timed: Collection[str], *, thorough: bool = False
    ) -> Comparison:
        return Comparison({label: _record(turns_ms[p.digest]) for label, p in placements.items()}, True)

    singles = [Single("one", ours, alone=True), Single("two", theirs, alone=True)]
    assert prove({MIX: ours}, singles, compare, lambda _: None).label == "one"


@pytest.mark.parametrize(("took_ms", "beaten_by"), [(1.2, ()), (0.9, ("one",))])
def test_what_was_left_out_sits_beside_a_mix_in_the_end(took_ms: float, beaten_by: tuple[str, ...]) -> None:
    ours, theirs = _placements(2)
    notes: list[str] = []

    def compare(
        title: str, placements: Mapping[str, Placement], timed: Collection[str], *, thorough: bool = False
    ) -> Comparison:
        takes = {ours.digest: np.linspace(0.99, 1.01, 9), theirs.digest: np.full(9, took_ms)}
        return Comparison({n: _record(takes[p.digest]) for n, p in placements.items()}, True)

    confirmed = Comparison({COLLAGE: _record([1.0] * 9)}, True)
    proof = prove_beside_left_out(Proof(ours, MIX, (confirmed,)), {"one": theirs}, compare, notes.append)
    assert proof.beaten_by == beaten_by
    assert [set(c.records) for c in proof.comparisons] == [{COLLAGE, "one"}, {COLLAGE}]
    assert notes == ["one was left out when it was behind, and is faster after all"] * len(beaten_by)


class _Compared:
    """In place of `Contest`: everything takes what it takes, in as many sittings as a title has."""

    def __init__(self) -> None:
        self.ran: dict[str, list[str]] = {}

    def __call__(self, title: str, entrants: Sequence[Entrant], plan: Plan) -> Any:
        self.ran[title] = sorted(e.name for e in entrants)
        sittings = 1 if title == IN_PLACE else 3 if title == LEFT_OUT else 9
        takes = {e.name: 1.0 if e.name in (COLLAGE, MIX) else 1.3 for e in entrants}
        records = {n: _record(np.linspace(ms, 1.01 * ms, sittings)) for n, ms in takes.items()}
        return SimpleNamespace(title=title, recalled=lambda *_: Comparison(records, True))


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


def test_who_asks_for_so_many_rounds_has_no_more(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collage_core.pipeline.found._STARTING_S", 0.1)
    monkeypatch.setattr("collage_core.pipeline.runner.Contest", compare := _Compared())
    costs = tmp_path / "c.sqlite"
    optimize(parse(_EACH_ITS_OWN), backends=["left", "right"], target=_TARGET, costs=costs, rounds=4)
    assert CONFIRMING in compare.ran
    assert LEFT_OUT not in compare.ran
