"""How much an optimization spends on its answer, and what it promises for that."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from collage_core.costs.ratio import HOPELESS
from collage_core.errors import CollageError
from collage_core.measuring.comparison import Plan
from collage_core.pipeline.budget import Budget
from collage_core.pipeline.refinement import NEAR, TURNS

__all__ = ["EFFORTS", "NORMAL", "QUICK", "THOROUGH", "Effort", "effort_named"]


@dataclass(frozen=True, slots=True)
class Effort:
    """What is measured, and how often.

    promise: for people. budget_s: of the whole, where nobody says otherwise; None for no limit. It leaves
    some seconds of what is promised for the command's start, its last turn and the bundle. measures_all:
    whether every candidate is measured, or only what bounds cannot rule out. gap: where not all, what the
    best of what is measured may be above the best of the bounds, relative, when measuring ends.
    measuring_share, in_place_share, choosing_share: of the budget, after which no further candidate is
    measured (but see `ends_measuring`), nothing is run any more to learn costs in place, and the choice is
    made. calibrates: whether constants that are not known are measured.

    turns: how often the mix is run to learn what its kernels take in place. near: who is run beside it the
    first time, backends alone that are predicted to take at most so many times as long. in_place, choosing,
    confirming: how long these comparisons go on. behind: what was seen to take so many times as long as
    something else, while costs were learnt in place, is not compared again. far: a backend alone that is
    predicted to take so many times as long as the mix is not compared. confirms: whether a second
    comparison, which did not choose, gives the figures. most_standing: how many contenders it has, None for
    all that come near. patience: the share of the time that may go by in waiting for moved processors. runs:
    whether placements are run as a whole, or only searched for.
    """

    name: str
    promise: str
    budget_s: float | None
    measures_all: bool
    gap: float
    measuring_share: float
    in_place_share: float
    choosing_share: float
    calibrates: bool
    turns: int
    near: float
    in_place: Plan
    choosing: Plan
    confirming: Plan
    confirms: bool
    most_standing: int | None
    behind: float
    far: float
    patience: float
    runs: bool = True

    def ends_measuring(self, budget: Budget, calibrated_s: float) -> bool:
        """Whether no further candidate is to be measured. What calibrating took, once per machine, is not
        taken from that, but from what would be run to learn costs in place.
        """
        if budget.limit_s is None:
            return False
        share_s = self.measuring_share * budget.limit_s
        return budget.spent_s - calibrated_s >= share_s or budget.is_over(self.in_place_share)

    def with_rounds(self, rounds: int) -> Effort:
        """The same, with so many rounds of each comparison; at most six of those that teach costs. With none,
        nothing is run as a whole.
        """
        if rounds == 0:
            return replace(self, runs=False)
        plan = Plan.of_rounds(rounds)
        return replace(
            self, in_place=Plan.of_rounds(min(rounds, self.in_place.rounds)), choosing=plan, confirming=plan
        )


_BRIEF = Plan(sittings=1, goes_on=False, patience=0.1, most_rounds=4)

_QUICK = Plan(
    sittings=2, most_sittings=4, unsettled_s=0.0, hopeless=1.5, patience=0.1, most_rounds=8, most_in_front=3
)
QUICK = Effort(
    "quick",
    "an answer within a minute: the best that was found in that time, compared once",
    56.0,
    measures_all=False,
    gap=0.05,
    measuring_share=0.5,
    in_place_share=0.6,
    choosing_share=0.95,
    calibrates=False,
    turns=0,
    near=0.0,
    in_place=_BRIEF,
    choosing=_QUICK,
    confirming=_QUICK,
    confirms=False,
    most_standing=None,
    behind=1.15,
    far=1.5,
    patience=0.1,
)
_NORMAL = Plan(
    sittings=3, most_sittings=8, unsettled_s=0.0, hopeless=1.5, patience=0.2, most_rounds=8, most_in_front=2
)
NORMAL = Effort(
    "normal",
    "an answer within three minutes: measured where it can matter, confirmed by a run that did not choose",
    170.0,
    measures_all=False,
    gap=0.01,
    measuring_share=0.35,
    in_place_share=0.65,
    choosing_share=0.8,
    calibrates=True,
    turns=TURNS,
    near=math.inf,
    in_place=_BRIEF,
    choosing=_NORMAL,
    confirming=_NORMAL,
    confirms=True,
    most_standing=2,
    behind=1.15,
    far=math.inf,
    patience=0.2,
)
THOROUGH = Effort(
    "thorough",
    "every candidate measured, and compared until it is settled; without a limit",
    None,
    measures_all=True,
    gap=0.0,
    measuring_share=1.0,
    in_place_share=1.0,
    choosing_share=1.0,
    calibrates=True,
    turns=TURNS,
    near=NEAR,
    in_place=Plan(sittings=3, goes_on=False, hopeless=HOPELESS),
    choosing=Plan(),
    confirming=Plan(),
    confirms=True,
    most_standing=None,
    behind=math.inf,
    far=math.inf,
    patience=0.5,
)
EFFORTS = {e.name: e for e in (QUICK, NORMAL, THOROUGH)}


def effort_named(name: str) -> Effort:
    """CollageError lists the known ones."""
    try:
        return EFFORTS[name.lower()]
    except KeyError:
        raise CollageError(f"unknown effort {name!r}; known: {', '.join(EFFORTS)}") from None
