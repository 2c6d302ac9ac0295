"""The rules of the proof: which of the contenders is chosen, by what they were measured to take."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np
import pytest
from simulated_sittings import details_of_ms, record_of_ms

from collage_core import CostRecord, Placement, Target
from collage_core.costs.sittings import SITTINGS, Sitting, Turn, sittings_to_json
from collage_core.measuring.comparison import Comparison
from collage_core.pipeline.proof import COLLAGE, MIX, Proof, Single, prove, prove_beside_left_out


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
        records = {label: record_of_ms(taken_ms[p.digest]) for label, p in placements.items()}
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
        return Comparison({n: record_of_ms([takes[p.digest]] * 9) for n, p in placements.items()}, True)

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
        return Comparison({label: record_of_ms(taken[p.digest]) for label, p in placements.items()}, True)

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
        return Comparison({label: record_of_ms(taken[p.digest]) for label, p in placements.items()}, True)

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
        return Comparison({n: record_of_ms(takes[p.digest]) for n, p in placements.items()}, True)

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
        return Comparison({n: record_of_ms(takes[p.digest]) for n, p in placements.items()}, True)

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
        records = {label: record_of_ms([takes[p.digest]] * 9) for label, p in placements.items()}
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
        return Comparison({label: record_of_ms(turns_ms[p.digest]) for label, p in placements.items()}, True)

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
        return Comparison({n: record_of_ms(takes[p.digest]) for n, p in placements.items()}, True)

    confirmed = Comparison({COLLAGE: record_of_ms([1.0] * 9)}, True)
    proof = prove_beside_left_out(Proof(ours, MIX, (confirmed,)), {"one": theirs}, compare, notes.append)
    assert proof.beaten_by == beaten_by
    assert [set(c.records) for c in proof.comparisons] == [{COLLAGE, "one"}, {COLLAGE}]
    assert notes == ["one was left out when it was behind, and is faster after all"] * len(beaten_by)
