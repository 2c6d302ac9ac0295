"""A placement that a person gives: run as it is, beside nothing else."""

from __future__ import annotations

from collage_core.costs.rounds import Limits
from collage_core.errors import PlacementError
from collage_core.measuring.calibration import calibrate
from collage_core.measuring.comparison import Comparison, Contest
from collage_core.measuring.entrants import placement_entrant
from collage_core.measuring.known_costs import look_up
from collage_core.pipeline.aim import Aim
from collage_core.pipeline.optimization import Optimization, Stage
from collage_core.pipeline.proof import COLLAGE
from collage_core.placement import Placement, is_transfer
from collage_core.runtime.plan import schedule
from collage_core.search.searcher import SearchResult

__all__ = ["GIVEN", "run_given"]

GIVEN = "given"
"""Label of such a placement."""
_TITLE = "the placement as it is given"


def run_given(aim: Aim, placement: Placement) -> Optimization:
    """The placement itself, with what is known of its costs and what it takes as a whole.

    PlacementError where it does not fit the graph, asks a backend for what it does not offer, contradicts
    what was asked for beside it, or does not run.
    """
    machine, graph = aim.machine, aim.workspace.graph
    machine.progress.phase("looking up costs")
    _check_conversions(aim, placement)
    look_up(machine, graph, aim.constraints)
    known = look_up(machine, graph)
    known.costs.transitions, _ = calibrate(machine, measure=False)
    placement = known.costs.priced(graph, placement)
    comparisons = (_run(aim, placement),) if aim.effort.runs else ()
    return Optimization(
        graph,
        placement,
        GIVEN,
        (),
        known.candidates,
        known.costs,
        SearchResult(placement),
        None,
        comparisons,
        (),
        (),
        0.0,
        aim.budget.spent_s,
        seconds=aim.timed.seconds,
        effort=aim.effort.name,
        stage=Stage.GIVEN,
        is_cut_short=any(c.is_cut_short for c in comparisons),
        is_recalled=not any(c.measured for c in comparisons),
        constraints=aim.constraints,
        peaks=aim.machine.known_peaks(),
    )


def _check_conversions(aim: Aim, placement: Placement) -> None:
    used = {step.what for step in schedule(aim.workspace.graph, placement)}
    kept = aim.constraints.on(aim.workspace.graph)
    for c in placement.conversions:
        what = f"the conversion of {c.value!r} to {c.destination} by {c.backend}"
        if c not in used:
            raise PlacementError(f"{what} is read by nobody")
        if not is_transfer(c.backend) and (c.backend not in aim.machine.backends or kept.excludes(c.backend)):
            raise PlacementError(f"{what}, which does not take part")


def _run(aim: Aim, placement: Placement) -> Comparison:
    entrant = placement_entrant(aim.workspace, COLLAGE, placement, aim.machine.registry, parts=True)
    contest = Contest(_TITLE, [entrant], aim.effort.confirming)
    limits = Limits(has_time=lambda seconds: aim.budget.left_s() > seconds)
    comparison = contest.recalled(aim.machine, aim.budget.limit_s) or contest.run(
        aim.machine, limits, aim.budget.limit_s
    )
    if not (record := comparison.records[COLLAGE]).ok:
        raise PlacementError(f"the placement does not run as a whole: {record.reason}")
    return comparison
