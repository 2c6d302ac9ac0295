"""Placements of one optimization, run beside each other; what is the best so far is kept up to date."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from collage_core.costs.rounds import Limits
from collage_core.errors import BackendError
from collage_core.measuring.comparison import Comparison, Contest, Plan
from collage_core.measuring.entrants import placement_entrant
from collage_core.pipeline.aim import Aim
from collage_core.pipeline.found import Found
from collage_core.pipeline.optimization import Optimization, Stage
from collage_core.pipeline.proof import CHOOSING, COLLAGE, IN_PLACE, IN_PLACE_AGAIN, MIX, Compare, Proof
from collage_core.pipeline.rounding import WithinLimit
from collage_core.placement import Placement
from collage_core.search.searcher import SearchResult

__all__ = ["Runner"]

_FIRST = "first answer"
_AT_ONCE = Plan(sittings=1, goes_on=False, patience=0.1)
"""Of what is to be there at once."""


class Runner:
    """Runs what was found, and says what is known of it."""

    def __init__(self, aim: Aim, found: Found, within: WithinLimit | None = None) -> None:
        self._aim = aim
        self._found = found
        self._within = within

    def at_once(self, placements: Mapping[str, Placement]) -> Comparison:
        """What a first look at these shows."""
        found = self._found
        comparison = self.comparing(lambda title: _AT_ONCE)(_FIRST, placements, ())
        ran = {name: p for name, p in placements.items() if comparison.records[name].ok}
        found.memory.first = placements if comparison.is_kept else ran
        found.memory.first_ms = found.best.took_ms
        return comparison

    def comparing(self, plan_of: Callable[[str], Plan]) -> Compare:
        """Comparisons by the plan for their title, which keep the best up to date."""

        def run(
            title: str,
            placements: Mapping[str, Placement],
            timed: Collection[str],
            *,
            thorough: bool = False,
        ) -> Comparison:
            aim, found = self._aim, self._found
            plan = plan_of(title)
            most_error = None if aim.limit is None else aim.limit.of_each_output
            entrants = [
                placement_entrant(
                    aim.workspace,
                    name,
                    p,
                    aim.machine.registry,
                    parts=name in timed,
                    most_error=most_error,
                    load=aim.load,
                )
                for name, p in placements.items()
            ]
            contest = Contest(title, entrants, plan.twice() if thorough else plan)
            comparison = contest.recalled(aim.machine, aim.budget.limit_s) or self._run(contest, placements)
            found.ran.append((comparison, placements))
            for reason in found.failures_of(comparison, placements):
                aim.machine.progress.note(f"failed as a whole, {reason}")
            found.best.keep(
                comparison,
                placements,
                found.singles,
                lambda placement, label: self.outcome(Proof(placement, label), Stage.RUN),
            )
            # Where all was found before, what is recalled is followed by better at once.
            if comparison.measured or found.recalled is None:
                found.best.tell()
            return comparison

        return run

    def _run(self, contest: Contest, placements: Mapping[str, Placement]) -> Comparison:
        aim, found = self._aim, self._found
        found.best.tell()  # something is about to be measured: what is the best till then is kept first
        in_place = dict.fromkeys((IN_PLACE, IN_PLACE_AGAIN), aim.effort.in_place_share)
        shares = {CHOOSING: aim.effort.choosing_share, **in_place}
        share = shares.get(contest.title, 1.0)
        # What is begun when nothing is left is there for want of an answer.
        left_s = aim.budget.left_s() or aim.budget.limit_s or 0.0
        limits = Limits(
            found.open_limit_s(placements.values(), left_s),
            has_time=lambda seconds: aim.budget.left_s(share) > seconds,
        )
        return contest.run(aim.machine, limits, aim.budget.limit_s)

    def outcome(self, proof: Proof, stage: Stage) -> Optimization:
        """What is known now, of the placement that has come so far."""
        aim, found = self._aim, self._found
        known = found.known
        return Optimization(
            aim.workspace.graph,
            proof.placement,
            proof.label,
            found.every_single(),
            known.candidates,
            known.costs,
            found.op_level or SearchResult(proof.placement),
            found.second_level,
            found.compared(proof.placement),
            tuple(dict.fromkeys([*found.failed.values(), *proof.rejected])),
            proof.beaten_by,
            found.search_s,
            aim.budget.spent_s,
            seconds=aim.timed.seconds,
            counts=known.ledger.counts(),
            effort=aim.effort.name,
            stage=stage,
            is_cut_short=aim.budget.is_over() or any(c.is_cut_short for c, _ in found.ran),
            is_recalled=found.recalled is not None
            and not known.costs.measured
            and not any(c.measured for c, _ in found.ran),
            constraints=aim.constraints,
            spent=None if self._within is None else self._within.spent(proof.placement),
            peaks=aim.machine.known_peaks(),
        )

    def unproven(self, late: Collection[str]) -> Optimization | None:
        """The fastest so far, where there is no time to open what would be compared. The next call compares
        it: what was found is recalled, if it is no guess. Where nothing but the reference has run, what was
        found is run beside it.
        """
        aim, found = self._aim, self._found
        best = found.best.known
        if best is None or found.recalled is not None or not aim.bounds:
            return None
        if aim.budget.left_s() > found.to_open_s({*found.memory.left_out, *late}):
            return None
        if not found.has_answer and found.mix.digest not in {*found.failed, best.placement.digest}:
            aim.machine.progress.note("time is over, but nothing has run but the reference")
            self.at_once({found.known.fallback: best.placement, MIX: found.mix})
            best = found.best.known or best
        if found.known.is_guess(found.mix):
            text = "no time is left to measure what may be faster; a call with more time does"
        else:
            text = "no time is left to compare what was found; the next call does"
        return self._ended(best, text)

    def what_ran(self, error: BackendError) -> Optimization | None:
        """The best before, where nothing runs as a whole any more: a machine may be too busy by then to open
        anything in time. None where nothing had run, or the best has failed since for another reason.
        """
        best = self._found.best.known
        if best is None or not self._found.is_sound(best.placement):
            return None
        is_cut_short = self._aim.budget.is_over() or any(c.is_cut_short for c, _ in self._found.ran)
        return self._ended(best, f"{error}; what ran before is the answer", is_cut_short)

    def _ended(self, best: Optimization, why: str, is_cut_short: bool = True) -> Optimization:
        """The fastest so far as the answer, which nothing has proven."""
        aim, found = self._aim, self._found
        aim.machine.progress.note(why)
        return replace(
            best,
            singles=found.every_single(best.singles),
            comparisons=_last_of_ours(found.compared(best.placement)),
            total_s=aim.budget.spent_s,
            seconds=aim.timed.seconds,
            counts=found.known.ledger.counts(),
            search_s=found.search_s,
            rejected=tuple(why for digest, why in found.failed.items() if digest != best.placement.digest),
            is_cut_short=is_cut_short,
        )


def _last_of_ours(comparisons: tuple[Comparison, ...]) -> tuple[Comparison, ...]:
    """The last one in which what is chosen ran comes last: it gives the figures."""
    ours = [c for c in comparisons if COLLAGE in c.records and c.records[COLLAGE].ok][-1:]
    return (*(c for c in comparisons if c not in ours), *ours)
