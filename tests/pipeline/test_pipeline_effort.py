"""Efforts and what they promise; budgets."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from collage_core.errors import CollageError
from collage_core.measuring.comparison import Plan
from collage_core.pipeline.budget import Budget
from collage_core.pipeline.effort import EFFORTS, NORMAL, QUICK, THOROUGH, Effort, effort_named


class _Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_budget_is_over_when_its_seconds_are_gone() -> None:
    clock = _Clock()
    budget = Budget(10.0, clock)
    assert (budget.spent_s, budget.left_s(), budget.is_over()) == (0.0, 10.0, False)
    clock.now_s += 4.0
    assert (budget.spent_s, budget.left_s(), budget.is_over()) == (4.0, 6.0, False)
    assert budget.left_s(0.5) == 1.0
    assert budget.left_s(0.25) == 0.0, "never below"
    assert not budget.is_over(0.5)
    assert budget.is_over(0.4)
    clock.now_s += 6.0
    assert budget.is_over()
    assert budget.left_s() == 0.0


def test_without_a_limit_it_is_never_over() -> None:
    clock = _Clock()
    budget = Budget(clock=clock)
    clock.now_s += 1e9
    assert budget.left_s() == budget.left_s(0.1) == math.inf
    assert not budget.is_over()
    assert not budget.is_over(0.0)
    assert budget.spent_s == 1e9


def test_a_budget_of_nothing_is_over_from_the_start() -> None:
    assert Budget(0.0, _Clock()).is_over()


def test_what_calibrating_took_is_not_taken_from_measuring() -> None:
    clock = _Clock()
    budget = Budget(100.0, clock)
    clock.now_s += 100.0 * NORMAL.measuring_share
    assert NORMAL.ends_measuring(budget, 0.0)
    assert not NORMAL.ends_measuring(budget, 5.0)
    clock.now_s += 5.0
    assert NORMAL.ends_measuring(budget, 5.0)
    assert not NORMAL.ends_measuring(budget, 50.0)
    clock.now_s += 100.0 * (NORMAL.in_place_share - NORMAL.measuring_share)
    assert NORMAL.ends_measuring(budget, 50.0), "what is left is for comparing"
    assert not NORMAL.ends_measuring(Budget(None, clock), 0.0)
    assert NORMAL.ends_measuring(Budget(0.0, clock), 50.0)


def test_efforts_go_by_their_names() -> None:
    assert list(EFFORTS) == ["quick", "normal", "thorough"]
    for name, effort in EFFORTS.items():
        assert effort.name == name
        assert effort_named(name) is effort_named(name.upper()) is effort
    with pytest.raises(CollageError, match="unknown effort 'lazy'; known: quick, normal, thorough"):
        effort_named("lazy")


def test_more_effort_measures_more() -> None:
    assert QUICK.gap >= NORMAL.gap >= THOROUGH.gap == 0.0
    assert QUICK.turns <= NORMAL.turns <= THOROUGH.turns
    assert QUICK.budget_s is not None
    assert NORMAL.budget_s is not None
    assert QUICK.budget_s < NORMAL.budget_s
    assert THOROUGH.budget_s is None
    assert [e.measures_all for e in EFFORTS.values()] == [False, False, True]
    assert [e.confirms for e in EFFORTS.values()] == [False, True, True]
    assert THOROUGH.behind == THOROUGH.far == math.inf, "everybody is compared"
    assert NORMAL.far == math.inf, "everybody is run once"
    assert THOROUGH.most_standing is None
    for effort in EFFORTS.values():
        assert 0 < effort.measuring_share <= effort.in_place_share <= 1


@pytest.mark.parametrize("effort", EFFORTS.values(), ids=lambda e: e.name)
@pytest.mark.parametrize(("rounds", "in_place"), [(2, 2), (4, 4), (100, 6)])
def test_rounds_that_are_asked_for_are_those_of_every_comparison(
    effort: Effort, rounds: int, in_place: int
) -> None:
    asked = effort.with_rounds(rounds)
    assert asked.choosing == asked.confirming == Plan.of_rounds(rounds)
    assert asked.in_place.rounds == min(in_place, effort.in_place.rounds)
    assert not asked.in_place.goes_on
    same = replace(asked, in_place=effort.in_place, choosing=effort.choosing, confirming=effort.confirming)
    assert same == effort
