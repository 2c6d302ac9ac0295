"""The steps of one optimization, and the best that is known after each."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import replace

from collage_core import clock
from collage_core.backend import BackendKind
from collage_core.candidates import Candidate
from collage_core.costs.ratio import HOPELESS
from collage_core.costs.record import CostKey
from collage_core.errors import BackendError
from collage_core.ir import Subgraph
from collage_core.measuring.bounding import Known
from collage_core.measuring.calibration import calibrate
from collage_core.measuring.comparison import Comparison
from collage_core.measuring.estimates import Estimates
from collage_core.measuring.in_place import kernel_key
from collage_core.measuring.ledger import Ledger
from collage_core.measuring.libraries import find_candidates, offering
from collage_core.measuring.priors import keep_priors, known_priors
from collage_core.measuring.trials import Trials
from collage_core.pipeline.aim import Aim
from collage_core.pipeline.answers import Answers
from collage_core.pipeline.best import BestSoFar
from collage_core.pipeline.found import Found
from collage_core.pipeline.memory import Memory, costs_digest, memory_key
from collage_core.pipeline.optimization import Optimization, Stage
from collage_core.pipeline.proof import CHOOSING, MIX, Proof, Single, prove, prove_beside_left_out
from collage_core.pipeline.refinement import Refinement, anchor_of
from collage_core.pipeline.rounding import WithinLimit
from collage_core.pipeline.runner import Runner
from collage_core.pipeline.singles import Looking, measure_singles, priced, single, singles_beside
from collage_core.placement import VIEW, Placement
from collage_core.search.searcher import Searcher, SearchTask

__all__ = ["run"]

_SECOND_LEVEL_SHARE = 0.8
"""Of the budget, after which a further search ends."""


def run(aim: Aim, searcher: Searcher | None, seed: int) -> Optimization:
    """All steps. searcher: a further one, after the op level's; seed: of whatever it leaves to chance."""
    candidates, taken = find_candidates(aim.machine, aim.workspace, aim.constraints)
    ledger = Ledger(
        aim.machine,
        aim.workspace,
        candidates,
        time_is_over=lambda: aim.effort.ends_measuring(aim.budget, found.calibrated_s),
        patience=aim.effort.patience,
    )
    with closing(ledger):
        known = Known(ledger, aim.op_search, aim.effort.gap)
        found = Found(known, taken, BestSoFar(aim.on_best, aim.machine.progress))
        known.is_answered = lambda: aim.budget.is_over(aim.effort.choosing_share) and found.has_answer
        try:
            return _Steps(aim, found).all(searcher, seed)
        except BaseException:  # an interrupt, too
            found.best.tell()
            raise


class _Steps:
    def __init__(self, aim: Aim, found: Found) -> None:
        self._aim = aim
        self._machine = aim.machine
        self._effort, self._budget = aim.effort, aim.budget
        self._found = found
        self._known = found.known
        self._within = None
        if aim.limit is not None:
            offer = offering(aim.machine, aim.workspace.graph, found.taken, aim.constraints)
            self._within = WithinLimit(aim, aim.limit, found.known, offer)
        self._runner = Runner(aim, found, self._within)
        self._answers = Answers(found, self._within)

    def all(self, searcher: Searcher | None, seed: int) -> Optimization:
        found, runs = self._found, self._effort.runs
        self._calibrate(measure=False)
        self._recall()
        self._estimate()
        if runs and self._known.estimates is not None:
            self._answer_at_once()
        self._calibrate_if_worth_it()
        if runs and found.recalled is not None and found.recalled.first:
            self._runner.at_once(found.recalled.first)
        if not self._aim.bounds:
            self._known.ledger.measure_all()
            self._learn()
            if not self._known.ledger.time_is_over:
                self._known.estimates = None
        self._search()
        if runs and len(self._machine.backends) > 1 and self._effort.turns:
            self._refine()
        if searcher is not None:
            self._search_further(searcher, seed)
        self._learn()
        recalled = found.recalled
        found.memory.left_out = found.left_out(self._effort) if recalled is None else recalled.left_out
        self._remember_costs()
        if not runs:
            return self._runner.outcome(Proof(found.mix, MIX), Stage.SEARCHED)
        late = found.out_of_time(self._effort, self._budget)
        if (unproven := self._runner.unproven(late)) is not None:
            return unproven
        memory = recalled or found.memory
        if memory.out_of_time is None:
            memory.out_of_time = late
            self._remember()
        try:
            proof = self._proven(late)
        except BackendError as error:  # nothing that was found runs as a whole
            if (best := self._runner.what_ran(error)) is None:
                raise
            return best
        return self._runner.outcome(proof, Stage.CONFIRMED if proof.is_confirmed else Stage.CHOSEN)

    def _remember_costs(self) -> None:
        """At which costs all was found. What is no more than a guess is looked for again by the next call."""
        if self._known.is_guess(self._found.mix):
            return
        if self._aim.bounds and self._found.recalled is None:
            self._found.memory.costs_digest = costs_digest(self._known.candidates, self._known.costs)
            self._remember()

    def _remember(self) -> None:
        """For the next call of the same."""
        if self._aim.bounds:
            memory = self._found.recalled or self._found.memory
            if self._within is not None:
                memory.tried = tuple(self._within.tried.values())
            self._machine.database.put(self._memory_key(), memory.to_record())

    def _memory_key(self) -> CostKey:
        """Of what is found at the constants that are known now."""
        return memory_key(self._aim, self._known.candidates, self._known.costs.transitions)

    def _recall(self) -> None:
        """What an earlier optimization of the same has found, unless other costs are known now."""
        if self._aim.bounds:
            found = self._found
            memory = Memory.of_record(self._machine.database.get(self._memory_key()))
            known = costs_digest(self._known.candidates, self._known.costs)
            if memory is not None and memory.costs_digest == known:
                found.recalled, found.singles, found.failed = memory, memory.singles, dict(memory.failed)
                if self._within is not None:
                    self._within.tried = {str(i): tried for i, tried in enumerate(memory.tried)}

    def _estimate(self) -> None:
        """Nothing needs estimates where all is known, or recalled, or measured by others, all at once."""
        ledger = self._known.ledger
        unknown = ledger.unknown_kernels or ledger.unknown_converters
        if unknown and self._found.recalled is None and self._machine.executor is None:
            priors = known_priors(self._machine)
            self._known.estimates = Estimates(self._known.candidates, self._machine.peaks(), priors)

    def _learn(self) -> None:
        """For the guesses of the next network."""
        if self._known.estimates is not None:
            keep_priors(self._machine, self._known.estimates.reached(self._known.costs))

    def _answer_at_once(self) -> None:
        """The libraries that take all of the graph, or else all others as they are guessed to do best: the
        fastest of them is a first answer.
        """
        usable = self._machine.usable()
        graph_libraries = self._machine.of_kind(BackendKind.GRAPH)
        fallback = self._known.fallback
        others = [n for n in self._machine.backends if n not in graph_libraries and n != fallback]
        for names in (graph_libraries, others, [fallback]):
            singles = [single(n, self._known) for n in names if n in usable]
            placements = {s.label: s.placement for s in singles if s.placement is not None and s.alone}
            if not placements and names is others:
                placements = {s.label: s.placement for s in singles if s.placement is not None}
            if placements:
                self._found.singles = tuple(singles)
                comparison = self._runner.at_once(placements)
                self._see(comparison, placements)
                if any(record.ok for record in comparison.records.values()):
                    return

    def _see(self, comparison: Comparison, placements: Mapping[str, Placement]) -> None:
        """What a library has taken that runs it all in one group need not be measured as a kernel, too. Where
        costs are learnt in place it is: what it takes alone tells how its others do.
        """
        graph = self._known.candidates.graph
        # Beside other sessions all take longer, and kernels are measured alone.
        if self._effort.turns or self._aim.load is not None:
            return
        for name, placement in placements.items():
            took_ms = comparison.median_ms(name)
            computing = [g for g in placement.groups if g.backend != VIEW]
            if took_ms is not None and len(computing) == 1 and not placement.conversions:
                self._known.seen_ms[kernel_key(graph, computing[0])] = took_ms

    def _calibrate(self, *, measure: bool) -> None:
        start = clock.monotonic()
        costs = self._known.costs
        costs.transitions, measured = calibrate(self._machine, measure=measure)
        costs.measured += measured
        self._found.calibrated_s += clock.monotonic() - start

    def _calibrate_if_worth_it(self) -> None:
        """Where constants are others then, what was recalled was found at none or at others."""
        found, before = self._found, self._known.costs.transitions
        measures_here = self._machine.executor is None and self._effort.runs
        is_worth_it = self._effort.calibrates and found.is_worth_calibrating(self._budget.left_s())
        self._calibrate(measure=measures_here and is_worth_it)
        if found.recalled is not None and self._known.costs.transitions != before:
            found.forget()
            self._recall()
            self._estimate()

    def _search(self) -> None:
        found, known = self._found, self._known
        self._machine.progress.phase("searching")
        start = clock.monotonic()
        measured_s = known.costs.measure_s
        usable = self._machine.usable()
        if self._within is not None:
            self._within.begin(is_recalled=found.recalled is not None)
        measure_singles(usable, known)
        found.op_level = self._answers.next()
        if found.recalled is None:
            found.singles = found.sooner_ran(singles_beside(found.op_level.placement, usable, known))
            if self._within is not None:
                found.singles = tuple(map(self._within.single, found.singles))
        found.memory.singles, found.memory.failed = found.singles, dict(found.failed)
        found.search_s = clock.monotonic() - start - (known.costs.measure_s - measured_s)

    def _refine(self) -> None:
        found, effort, recalled = self._found, self._effort, self._found.recalled
        assert found.op_level is not None
        refinement = Refinement(
            self._aim.workspace.graph,
            self._known.costs,
            found.singles_that_run,
            self._runner.comparing(lambda title: effort.in_place),
            effort.near,
        )
        refined = refinement.refine(
            found.op_level,
            self._answers.next_if_any,
            self._answers.of_seen,
            effort.turns,
            # As many comparisons as the one that is recalled had time for.
            time_is_over=lambda ran: (
                self._budget.is_over(effort.in_place_share) if recalled is None else ran >= recalled.turns
            ),
        )
        found.op_level, found.memory.turns = refined.result, len(refined.comparisons)
        found.search_s += refined.search_s
        if found.is_wrongly_rounded:
            self._known.rounds = False  # of which of its groups that was nobody knows
            found.op_level = self._answers.next()
        if recalled is None:
            found.memory.singles_after = tuple(self._single_after(s) for s in found.singles)
        else:
            found.memory.singles_after = recalled.singles_after
        found.singles = tuple(priced(s, self._known) for s in found.memory.singles_after)

    def _single_after(self, before: Single) -> Single:
        """The same, unless it failed as a whole: then, while there is time, once its kernels are measured."""
        if before.placement is None or before.placement.digest not in self._found.failed:
            return before

        def is_over() -> bool:
            return self._budget.is_over(self._effort.choosing_share)

        if before.backend == self._known.fallback or is_over():
            return before
        rounds = not self._found.has_failed_rounded(before.placement)
        after = single(before.backend, self._known, Looking(math.inf, time_is_over=is_over, rounds=rounds))
        return after if self._within is None else self._within.single(after)

    def _search_further(self, searcher: Searcher, seed: int) -> None:
        """What a further search finds, with its groups' costs."""
        found, known, machine, aim = self._found, self._known, self._machine, self._aim
        assert found.op_level is not None
        op_level, graph = found.op_level, aim.workspace.graph
        left_s = self._budget.left_s(_SECOND_LEVEL_SHARE)
        task = SearchTask(
            known.candidates,
            known.costs.record_of,
            known.costs.converters(),
            known.costs.transitions,
            op_level=op_level,
            offer=offering(machine, graph, found.taken, aim.constraints),
            on_best=lambda ms: machine.progress.step(f"best {ms:.3f} ms"),
            budget_s=left_s if left_s < math.inf else None,
            seed=seed,
        )
        trials = None
        anchor = None
        if self._effort.runs:
            anchor = anchor_of(op_level.placement, found.singles, found.failed)
        if anchor is not None:
            trials = Trials(machine, aim.workspace, anchor, aim.load)
            task = replace(task, measure=trials.measure)
        machine.progress.phase(f"searching, level {searcher.name}")
        result = searcher.search(task)
        if trials is not None:
            known.costs.measured += trials.measured
            known.costs.cached += trials.cached
        if result.placement.digest != op_level.placement.digest:
            # The search may have made groups that nobody had measured.
            known.ledger.cost(
                Candidate(Subgraph(graph, g.nodes), g.backend, g.variant, "search")
                for g in result.placement.groups
            )
            result = replace(result, placement=known.priced(result.placement))
        if self._within is not None and not self._within.holds(result.placement):
            machine.progress.note(f"what level {searcher.name} found is off by more than is allowed")
            return
        found.second_level, found.second_name = result, searcher.name

    def _proven(self, late: Collection[str]) -> Proof:
        """BackendError where nothing runs, be it unrounded."""
        try:
            proof = self._beside_left_out(self._prove(late))
        except BackendError:
            if not self._found.is_wrongly_rounded:
                raise
        return self._prove_unrounded(late) if self._found.is_wrongly_rounded else proof

    def _prove_unrounded(self, late: Collection[str]) -> Proof:
        """The same with what is found where nothing is rounded."""
        found, self._known.rounds = self._found, False
        found.op_level, found.second_level = self._answers.next(), None
        found.singles = tuple(self._single_after(s) for s in found.singles)
        self._remember_costs()
        return self._beside_left_out(self._prove(late))

    def _prove(self, late: Collection[str]) -> Proof:
        found, effort = self._found, self._effort
        placements = {MIX: found.mix}
        further = found.second_level
        if further is not None:
            simpler = [found.mix, *(s.placement for s in found.singles if s.placement is not None)]
            if all(further.placement.digest != p.digest for p in simpler):
                placements[found.second_name] = further.placement
        plans = {CHOOSING: effort.choosing}
        left_out = {*found.memory.left_out, *late}
        return prove(
            placements,
            [s for s in found.singles_that_run if s.placement is None or s.placement.digest not in left_out],
            self._runner.comparing(lambda title: plans.get(title, effort.confirming)),
            self._machine.progress.note,
            confirms=effort.confirms,
            most_standing=effort.most_standing,
            has_time=lambda placements: self._budget.left_s() > found.to_sit_s(placements),
        )

    def _beside_left_out(self, proof: Proof) -> Proof:
        """A mix is to be shown faster than every library alone: those that left after too few sittings to
        tell sit beside it in the end, while there is time. Of a recalled one, those who did then.
        """
        found, confirming = self._found, self._effort.confirming
        if not self._effort.confirms or confirming.rounds_asked is not None:
            return proof
        if proof.label in {s.label for s in found.singles}:
            return proof
        seated = found.recalled.seated if found.recalled is not None else None
        left_s = self._budget.left_s() if seated is None else math.inf
        left_out = found.untold_beside(proof.placement, left_s)
        if seated is not None:
            left_out = {n: p for n, p in left_out.items() if p.digest in seated}
        elif self._aim.bounds:
            memory = found.recalled or found.memory
            memory.seated = tuple(sorted(p.digest for p in left_out.values()))
            self._remember()
        if not left_out:
            return proof
        plan = replace(confirming, goes_on=False, hopeless=HOPELESS, most_rounds=0)
        compare = self._runner.comparing(lambda title: plan)
        proof = prove_beside_left_out(proof, left_out, compare, self._machine.progress.note)
        found.ran.insert(-1, found.ran.pop())  # what confirms stays the last
        return proof
