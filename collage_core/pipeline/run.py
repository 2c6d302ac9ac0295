"""The steps of one optimization, and the best that is known after each."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count

from collage_core.backend import Backend, BackendKind
from collage_core.costs.database import CostDatabase
from collage_core.costs.ratio import HOPELESS
from collage_core.costs.record import CostKey
from collage_core.costs.roofline import machine_peaks
from collage_core.device import Target
from collage_core.formats import Array
from collage_core.ir import Subgraph
from collage_core.pipeline.best import BestSoFar
from collage_core.pipeline.bounding import Known
from collage_core.pipeline.budget import Budget
from collage_core.pipeline.calibration import calibrate
from collage_core.pipeline.comparison import Comparison, Plan, compare
from collage_core.pipeline.effort import Effort
from collage_core.pipeline.entrants import placement_entrant
from collage_core.pipeline.estimates import Estimates
from collage_core.pipeline.found import Found
from collage_core.pipeline.ledger import Ledger, default_policy
from collage_core.pipeline.libraries import find_candidates, is_usable, offering
from collage_core.pipeline.memory import Memory, costs_digest, memory_key
from collage_core.pipeline.optimization import Optimization, Stage
from collage_core.pipeline.priors import keep_priors, known_priors
from collage_core.pipeline.progress import Timed
from collage_core.pipeline.proof import (
    CHOOSING,
    IN_PLACE,
    MIX,
    Compare,
    Proof,
    Single,
    prove,
    prove_beside_left_out,
)
from collage_core.pipeline.refinement import anchor_of, refine
from collage_core.pipeline.singles import measure_singles, single, singles_beside
from collage_core.pipeline.trials import Trials
from collage_core.pipeline.workspace import Workspace
from collage_core.placement import Placement
from collage_core.plugins import Registry
from collage_core.search.candidates import Candidate, Constraints
from collage_core.search.op_level import OpLevelSearch
from collage_core.search.searcher import Searcher, SearchResult, SearchTask
from collage_core.search.transitions import Transitions

__all__ = ["OptimizationRun"]

_SECOND_LEVEL_SHARE = 0.8
"""Of the budget, after which a further search ends."""
_FIRST = "first answer"
_AT_ONCE = Plan(sittings=1, goes_on=False, patience=0.1)
"""Of what is to be there at once."""


@dataclass(frozen=True, slots=True)
class OptimizationRun:
    """What the steps share.

    backends: with core's reference, `fallback`. measured_here: whether this machine may be measured on; else
    what is known of its constants has to do. runs: whether placements are run end to end. on_best: told
    whenever something was run that is faster than what was the best before, with what is known of it.
    """

    backends: Mapping[str, Backend]
    fallback: str
    target: Target
    database: CostDatabase
    workspace: Workspace
    registry: Registry
    progress: Timed
    executor: Executor | None
    effort: Effort
    budget: Budget
    constraints: Constraints
    op_search: OpLevelSearch
    on_best: Callable[[Optimization], object]
    measured_here: bool
    runs: bool

    def run(self, transitions: Transitions | None, searcher: Searcher | None, seed: int) -> Optimization:
        """All steps. searcher: a further one, after the op level's."""
        self.progress.phase("finding candidates")
        candidates, taken = find_candidates(
            self.workspace.graph,
            self.backends,
            self.target,
            self.database,
            self.workspace,
            self.progress,
            self.constraints,
            self.executor,
            self.registry.modules(),
        )
        ledger = Ledger(
            candidates,
            self.backends,
            self.database,
            self.workspace,
            default_policy(self.workspace.graph),
            self.progress,
            self.executor,
            self.registry.modules(),
            lambda: self.effort.ends_measuring(self.budget, found.calibrated_s),
            self.effort.patience,
        )
        with closing(ledger):
            known = Known(ledger, transitions or Transitions(), self.effort.gap)
            found = Found(known, taken, BestSoFar(self.on_best, self.progress))
            try:
                return self._steps(found, transitions, searcher, seed)
            except BaseException:  # an interrupt, too
                found.best.tell()
                raise

    def _steps(
        self, found: Found, transitions: Transitions | None, searcher: Searcher | None, seed: int
    ) -> Optimization:
        if transitions is None:
            self._calibrate(found, measure=False)
        self._recall(found)
        self._estimate(found)
        if self.runs and found.known.estimates is not None:
            self._answer_at_once(found)
        if transitions is None:
            before = found.known.transitions
            is_worth_it = self.effort.calibrates and found.is_worth_calibrating(self.budget.left_s())
            self._calibrate(found, measure=self.measured_here and is_worth_it)
            if found.recalled is not None and found.known.transitions != before:
                found.forget()  # what was found at other constants
                self._recall(found)
                self._estimate(found)
        if self.runs and found.recalled is not None and found.recalled.first:
            self._runs_at_once(found, found.recalled.first)
        if not self._bounds:
            found.known.ledger.measure_all()
            self._learn(found)
            if not found.known.ledger.time_is_over:
                found.known.estimates = None
        self._search(found)
        if self.runs and len(self.backends) > 1 and self.effort.turns:
            self._refine(found)
        if searcher is not None:
            self._search_further(found, searcher, seed)
        self._learn(found)
        recalled = found.recalled
        found.memory.left_out = found.left_out(self.effort) if recalled is None else recalled.left_out
        if self._bounds and found.recalled is None:
            found.memory.costs_digest = costs_digest(found.known.candidates, found.known.costs)
            self._remember(found)
        if not self.runs:
            return self._outcome(found, Proof(found.mix, MIX), Stage.SEARCHED)
        late = found.out_of_time(self.effort, self.budget)
        if (unproven := self._unproven(found, late)) is not None:
            return unproven
        memory = recalled or found.memory
        if memory.out_of_time is None:
            memory.out_of_time = late
            self._remember(found)
        proof = self._beside_left_out(found, self._prove(found, late))
        return self._outcome(found, proof, Stage.CONFIRMED if self.effort.confirms else Stage.CHOSEN)

    def _remember(self, found: Found) -> None:
        """For the next call of the same."""
        if self._bounds:
            self.database.put(self._memory_key(found), (found.recalled or found.memory).to_record())

    def _unproven(self, found: Found, late: Collection[str]) -> Optimization | None:
        """The fastest so far, where there is no time to open what would be compared. The next call compares
        it: what was found is recalled.
        """
        best = found.best.known
        if best is None or found.recalled is not None or not self._bounds:
            return None
        if self.budget.left_s() > found.to_open_s({*found.memory.left_out, *late}):
            return None
        self.progress.note("no time is left to compare what was found; the next call does")
        return replace(
            best,
            singles=found.every_single(best.singles),
            total_s=self.budget.spent_s,
            seconds=self.progress.seconds,
            counts=found.known.ledger.counts(),
            search_s=found.search_s,
            rejected=tuple(found.failed.values()),
            is_cut_short=True,
        )

    @property
    def _bounds(self) -> bool:
        """Whether bounds say what is measured; an executor measures everything: it can do so at once."""
        return not self.effort.measures_all and self.executor is None

    def _memory_key(self, found: Found) -> CostKey:
        """Of what is found at the constants that are known now."""
        effort = self.effort if self.runs else replace(self.effort, turns=0, confirms=False)
        return memory_key(
            found.known.candidates,
            self.backends,
            replace(effort, budget_s=self.budget.limit_s),  # with more time it goes on
            self.workspace.inputs_digest,
            found.known.transitions,
            self.op_search,
        )

    def _recall(self, found: Found) -> None:
        """What an earlier optimization of the same has found, unless other costs are known now."""
        if self._bounds:
            memory = Memory.of_record(self.database.get(self._memory_key(found)))
            known = costs_digest(found.known.candidates, found.known.costs)
            if memory is not None and memory.costs_digest == known:
                found.recalled, found.singles, found.failed = memory, memory.singles, dict(memory.failed)

    def _estimate(self, found: Found) -> None:
        """Nothing needs estimates where all is known, or recalled, or measured by others, all at once."""
        known, ledger = found.known, found.known.ledger
        unknown = ledger.unknown_kernels or ledger.unknown_converters
        if unknown and found.recalled is None and self.executor is None:
            peaks = machine_peaks(self.target, self.database, self.progress.note)
            priors = known_priors(self.backends, self.target, self.database)
            known.estimates = Estimates(known.candidates, peaks, priors)

    def _learn(self, found: Found) -> None:
        """For the guesses of the next network."""
        if found.known.estimates is not None:
            reached = found.known.estimates.reached(found.known.costs)
            keep_priors(reached, self.backends, self.target, self.database)

    def _answer_at_once(self, found: Found) -> None:
        """The libraries that take all of the graph, or else all others as they are guessed to do best: the
        fastest of them is a first answer.
        """
        graph_libraries = [n for n, k in found.known.candidates.kinds.items() if k is BackendKind.GRAPH]
        others = [n for n in self.backends if n not in graph_libraries and n != self.fallback]
        for names in (graph_libraries, others, [self.fallback]):
            usable = [n for n in names if is_usable(self.backends[n], self.target)]
            singles = [single(n, self.fallback, found.known, self.op_search) for n in usable]
            placements = {s.label: s.placement for s in singles if s.placement is not None and s.alone}
            if not placements and names is others:
                placements = {s.label: s.placement for s in singles if s.placement is not None}
            if placements:
                found.singles = tuple(singles)
                if self._runs_at_once(found, placements):
                    return

    def _runs_at_once(self, found: Found, placements: Mapping[str, Placement]) -> bool:
        """Whether any of these runs."""
        comparison = self._comparing(found, lambda title: _AT_ONCE)(_FIRST, placements, ())
        ran = {name: p for name, p in placements.items() if comparison.records[name].ok}
        found.memory.first = placements if comparison.is_kept else ran
        found.memory.first_ms = found.best.took_ms
        return bool(ran)

    def _calibrate(self, found: Found, *, measure: bool) -> None:
        start = time.monotonic()
        found.known.transitions, measured = calibrate(
            self.backends,
            self.target,
            self.database,
            self.registry,
            self.progress,
            measure=measure,
        )
        found.known.costs.measured += measured
        found.calibrated_s += time.monotonic() - start

    def _search(self, found: Found) -> None:
        self.progress.phase("searching")
        start = time.monotonic()
        measured_s = found.known.costs.measure_s
        usable = [name for name, b in self.backends.items() if is_usable(b, self.target)]
        measure_singles(usable, self.fallback, found.known, self.op_search)
        found.op_level = self._next_answer(found)
        if found.recalled is None:
            mix = found.op_level.placement
            found.singles = singles_beside(mix, usable, self.fallback, found.known, self.op_search)
        found.memory.singles, found.memory.failed = found.singles, dict(found.failed)
        found.search_s = time.monotonic() - start - (found.known.costs.measure_s - measured_s)

    def _next_answer(self, found: Found) -> SearchResult:
        """Of the op level's search: what it answered before at this place, or now."""
        number = len(found.memory.searches)
        if found.recalled is not None and number < len(found.recalled.searches):
            answer = found.recalled.searches[number]
        else:
            answer = found.known.search(self.op_search)
        found.memory.searches.append(answer)
        return answer

    def _refine(self, found: Found) -> None:
        assert found.op_level is not None
        known, effort, recalled = found.known, self.effort, found.recalled
        turns = count()
        refined = refine(
            self.workspace.graph,
            found.op_level,
            found.singles_that_run,
            known.costs,
            known.transitions,
            lambda: self._next_answer(found),
            self._comparing(found, lambda title: effort.in_place),
            turns=effort.turns,
            near=effort.near,
            # As often as the one that is recalled had time for.
            time_is_over=lambda: (
                self.budget.is_over(effort.in_place_share)
                if recalled is None
                else next(turns) >= recalled.turns
            ),
        )
        found.op_level, found.memory.turns = refined.result, len(refined.comparisons)
        found.search_s += refined.search_s
        if found.recalled is None:
            found.memory.singles_after = tuple(self._single_after(found, s) for s in found.singles)
        else:
            found.memory.singles_after = found.recalled.singles_after
        found.singles = tuple(known.priced_single(s) for s in found.memory.singles_after)

    def _single_after(self, found: Found, before: Single) -> Single:
        """The same, unless it failed as a whole: then, while there is time, once its kernels are measured."""
        if before.placement is None or before.placement.digest not in found.failed:
            return before

        def is_over() -> bool:
            return self.budget.is_over(self.effort.choosing_share)

        if before.backend == self.fallback or is_over():
            return before
        name = before.backend
        return single(name, self.fallback, found.known, self.op_search, math.inf, time_is_over=is_over)

    def _search_further(self, found: Found, searcher: Searcher, seed: int) -> None:
        """What a further search finds, with its groups' costs."""
        assert found.op_level is not None
        known, op_level = found.known, found.op_level
        left_s = self.budget.left_s(_SECOND_LEVEL_SHARE)
        task = SearchTask(
            known.candidates,
            known.costs.record_of,
            known.costs.converters(None, known.transitions),
            known.transitions,
            op_level=op_level,
            offer=offering(self.workspace.graph, self.backends, self.target, found.taken, self.constraints),
            on_best=lambda ms: self.progress.step(f"best {ms:.3f} ms"),
            budget_s=left_s if left_s < math.inf else None,
            seed=seed,
        )
        trials = None
        anchor = anchor_of(op_level.placement, found.singles, found.failed) if self.runs else None
        if anchor is not None:
            trials = Trials(anchor, self.database, self.workspace, self.registry, self.progress)
            task = replace(task, measure=trials.measure)
        self.progress.phase(f"searching, level {searcher.name}")
        result = searcher.search(task)
        if trials is not None:
            known.costs.measured += trials.measured
            known.costs.cached += trials.cached
        if result.placement.digest != op_level.placement.digest:
            graph = self.workspace.graph
            # The search may have made groups that nobody had measured.
            known.ledger.cost(
                Candidate(Subgraph(graph, g.nodes), g.backend, g.variant, "search")
                for g in result.placement.groups
            )
            result = replace(result, placement=known.priced(result.placement))
        found.second_level, found.second_name = result, searcher.name

    def _prove(self, found: Found, late: Collection[str]) -> Proof:
        placements = {MIX: found.mix}
        further = found.second_level
        if further is not None:
            simpler = [found.mix, *(s.placement for s in found.singles if s.placement is not None)]
            if all(further.placement.digest != p.digest for p in simpler):
                placements[found.second_name] = further.placement
        plans = {CHOOSING: self.effort.choosing}
        left_out = {*found.memory.left_out, *late}
        return prove(
            placements,
            [s for s in found.singles_that_run if s.placement is None or s.placement.digest not in left_out],
            self._comparing(found, lambda title: plans.get(title, self.effort.confirming)),
            self.progress.note,
            confirms=self.effort.confirms,
            most_standing=self.effort.most_standing,
            time_is_over=self.budget.is_over,
        )

    def _beside_left_out(self, found: Found, proof: Proof) -> Proof:
        """A mix is to be shown faster than every library alone: those that left after too few sittings to
        tell sit beside it in the end, while there is time. Of a recalled one, those who did then.
        """
        confirming = self.effort.confirming
        if not self.effort.confirms or confirming.rounds_asked is not None:
            return proof
        if proof.label in {s.label for s in found.singles}:
            return proof
        seated = found.recalled.seated if found.recalled is not None else None
        left_out = found.untold_beside(proof.placement, self.budget.left_s() if seated is None else math.inf)
        if seated is not None:
            left_out = {n: p for n, p in left_out.items() if p.digest in seated}
        elif self._bounds:
            (found.recalled or found.memory).seated = tuple(sorted(p.digest for p in left_out.values()))
            self._remember(found)
        if not left_out:
            return proof
        plan = replace(confirming, goes_on=False, hopeless=HOPELESS, most_rounds=0)
        comparing = self._comparing(found, lambda title: plan)
        proof = prove_beside_left_out(proof, left_out, comparing, self.progress.note)
        found.ran.insert(-1, found.ran.pop())  # what confirms stays the last
        return proof

    def _comparing(self, found: Found, plan_of: Callable[[str], Plan]) -> Compare:
        """Comparisons that keep the best up to date."""

        def run(
            title: str,
            placements: Mapping[str, Placement],
            timed: Collection[str],
            *,
            thorough: bool = False,
        ) -> Comparison:
            plan = plan_of(title)
            shares = {CHOOSING: self.effort.choosing_share, IN_PLACE: self.effort.in_place_share}
            comparison = compare(
                self.workspace.graph,
                [
                    placement_entrant(name, p, self.registry, parts=name in timed)
                    for name, p in placements.items()
                ],
                self.target,
                self.database,
                self.workspace,
                self.progress,
                title=title,
                plan=plan.twice() if thorough else plan,
                expected=lambda: self._expected(found),
                open_limit_s=found.open_limit_s(placements.values(), self.budget.left_s()),
                has_time=lambda seconds: self.budget.left_s(shares.get(title, 1.0)) > seconds,
                limit_s=self.budget.limit_s,
            )
            found.ran.append((comparison, placements))
            for reason in found.failures_of(comparison, placements):
                self.progress.note(f"failed as a whole, {reason}")
            found.best.keep(
                comparison,
                placements,
                found.singles,
                lambda placement, label: self._outcome(found, Proof(placement, label), Stage.RUN),
            )
            # Where all was found before, what is recalled is followed by better at once.
            if comparison.measured or found.recalled is None:
                found.best.tell()
            return comparison

        return run

    def _expected(self, found: Found) -> Mapping[str, Array]:
        """The right outputs. Something is about to be measured: what is the best till then is kept first."""
        found.best.tell()
        return self.workspace.expected_outputs()

    def _outcome(self, found: Found, proof: Proof, stage: Stage) -> Optimization:
        known = found.known
        return Optimization(
            self.workspace.graph,
            proof.placement,
            proof.label,
            found.every_single(),
            known.candidates,
            known.costs,
            known.transitions,
            found.op_level or SearchResult(proof.placement),
            found.second_level,
            found.compared(proof.placement),
            tuple(dict.fromkeys([*found.failed.values(), *proof.rejected])),
            proof.beaten_by,
            found.search_s,
            self.budget.spent_s,
            seconds=self.progress.seconds,
            counts=known.ledger.counts(),
            effort=self.effort.name,
            stage=stage,
            is_cut_short=self.budget.is_over() or any(c.is_cut_short for c, _ in found.ran),
            is_recalled=found.recalled is not None
            and not known.costs.measured
            and not any(c.measured for c, _ in found.ran),
            constraints=self.constraints,
        )
