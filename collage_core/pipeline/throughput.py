"""The most requests a second: each way to serve them is optimised under its load, then the best of each way
are run beside each other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from collage_core.costs.rounds import Limits
from collage_core.errors import BackendError, CollageError, PlacementError
from collage_core.formats import CPU
from collage_core.measuring.beside import Load
from collage_core.measuring.comparison import Comparison, Contest
from collage_core.measuring.entrants import placement_entrant
from collage_core.pipeline.aim import Aim
from collage_core.pipeline.budget import Budget
from collage_core.pipeline.optimization import Optimization, Stage
from collage_core.pipeline.proof import CHOOSING, Proof, Single, prove
from collage_core.pipeline.run import run
from collage_core.placement import Placement
from collage_core.search.searcher import Searcher
from collage_core.serving import Serving, ways_to_serve
from collage_core.steering import PlacementFile
from collage_core.target import Target

__all__ = ["on_threads", "require_for_throughput", "run_for_throughput"]

_SHARE_OF_WAYS = 0.7
"""Of the budget; in the rest they are run beside each other."""


def require_for_throughput(
    concurrency: int, target: Target, *, runs: bool, max_error: float | None, placement: PlacementFile | None
) -> None:
    """CollageError for what is asked for and goes with latency alone. runs: whether placements are run."""
    Serving(concurrency, 1)  # or it is no number of requests
    if placement is not None:
        raise CollageError(f"{placement.path} says on how many threads; throughput is what decides that")
    if not runs:
        raise CollageError("without rounds nothing is run, and throughput is told by running")
    if max_error is not None:
        raise CollageError("the error is limited for one request at a time only: max_error goes with latency")
    if target.devices != (CPU,):
        raise CollageError(f"throughput is told of {CPU!r} alone; devices: {target.devices}")


def on_threads(aim: Aim, threads: int) -> Aim:
    """The same for sessions of so many threads."""
    target = replace(aim.machine.target, threads=threads)
    return replace(aim, machine=replace(aim.machine, target=target))


def run_for_throughput(aim: Aim, concurrency: int, searcher: Searcher | None, seed: int) -> Optimization:
    """As `run`, for `concurrency` requests at a time on the target's threads, all sessions together. Times of
    its comparisons are what one request takes of all (`Load.of`). What `require_for_throughput` asks for
    holds.
    """
    ways = ways_to_serve(concurrency, aim.machine.target.threads)
    effort = aim.effort if len(ways) == 1 else replace(aim.effort, confirms=False)
    limit_s, share = aim.budget.limit_s, _SHARE_OF_WAYS if len(ways) > 1 else 1.0
    found: dict[int, Optimization] = {}
    failed: Exception | None = None
    is_cut_short = False
    for threads, serving in ways.items():
        if found and aim.budget.is_over(share):
            aim.machine.progress.note(f"no time is left to try {serving.text(threads)}")
            is_cut_short = True
            continue
        if len(ways) > 1:
            aim.machine.progress.note(f"trying {serving.text(threads)}")
        load = Load.of(serving).of_a_session if serving.sessions > 1 else None
        budget = Budget(None if limit_s is None else limit_s * share / len(ways))
        way = replace(
            on_threads(aim, threads),
            effort=effort,
            budget=budget,
            load=load,
            # Which of two ways answers more is not known before both have run beside each other.
            on_best=_ignored if found else partial(_tell, aim, serving),
        )
        try:
            found[threads] = _served(run(way, searcher, seed), serving)
        except (BackendError, PlacementError) as error:
            aim.machine.progress.note(f"not with {serving.text(threads)}: {error}")
            failed = error
    if failed is not None and not found:
        raise failed
    best = next(iter(found.values()))
    if len(found) > 1:
        try:
            best = _fastest(aim, found, ways)
        except BackendError as error:  # each has run by itself, and that there is an answer comes first
            aim.machine.progress.note(f"the ways cannot be run beside each other: {error}")
    return replace(best, total_s=aim.budget.spent_s, is_cut_short=best.is_cut_short or is_cut_short)


def _ignored(best: Optimization) -> None:
    return None


def _tell(aim: Aim, serving: Serving, best: Optimization) -> None:
    aim.on_best(_served(best, serving))


def _served(optimization: Optimization, serving: Serving) -> Optimization:
    """What was found for one session of these, with times that are what a request takes of all."""
    sessions = serving.sessions

    def shared(comparison: Comparison) -> Comparison:
        records = {
            name: record
            if record.median_ms is None
            else replace(
                record,
                median_ms=record.median_ms / sessions,
                spread_ms=None if record.spread_ms is None else record.spread_ms / sessions,
            )
            for name, record in comparison.records.items()
        }
        return replace(comparison, records=records)

    return replace(optimization, serving=serving, comparisons=tuple(map(shared, optimization.comparisons)))


def _fastest(aim: Aim, found: Mapping[int, Optimization], ways: Mapping[int, Serving]) -> Optimization:
    """Of the best of each way, beside each way's fastest library alone."""
    labels: dict[str, tuple[int, str]] = {}
    best_of_ways: dict[str, Placement] = {}
    singles: list[Single] = []
    for threads, optimization in found.items():
        way = ways[threads].text(threads)
        known = {s.label: s for s in optimization.singles}
        best = {optimization.chosen: optimization.placement}
        for label, placement in {**best, **_fastest_single(optimization)}.items():
            told = f"{label}, {way}"
            labels[told] = threads, label
            if label in best:
                best_of_ways[told] = placement
            if label in known:
                singles.append(replace(known[label], placement=placement, way=way))

    def compare(
        title: str, placements: Mapping[str, Placement], timed: Collection[str], *, thorough: bool = False
    ) -> Comparison:
        plan = aim.effort.choosing if title == CHOOSING else aim.effort.confirming
        entrants = [
            placement_entrant(
                aim.workspace,
                name,
                p,
                aim.machine.registry,
                parts=name in timed,
                load=Load.of(ways[p.target.threads]),
            )
            for name, p in placements.items()
        ]
        contest = Contest(title, entrants, plan.twice() if thorough else plan)
        limits = Limits(has_time=lambda seconds: aim.budget.left_s() > seconds)
        limit_s = aim.budget.limit_s
        return contest.recalled(aim.machine, limit_s) or contest.run(aim.machine, limits, limit_s)

    proof = prove(
        best_of_ways,
        singles,
        compare,
        aim.machine.progress.note,
        confirms=aim.effort.confirms,
        most_standing=aim.effort.most_standing,
        has_time=lambda standing: not aim.budget.is_over(),
    )
    return _told(aim, proof, found, labels, singles)


def _fastest_single(optimization: Optimization) -> dict[str, Placement]:
    """The library alone that took least beside the choice, by label; none where no other one ran."""
    took_ms = {
        label: ms
        for comparison in optimization.comparisons
        for label, placement in optimization.rivals.items()
        if placement.digest != optimization.placement.digest
        and (ms := comparison.median_ms(label)) is not None
    }
    fastest = sorted(took_ms, key=took_ms.__getitem__)[:1]
    return {label: optimization.rivals[label] for label in fastest}


def _told(
    aim: Aim,
    proof: Proof,
    found: Mapping[int, Optimization],
    labels: Mapping[str, tuple[int, str]],
    singles: Sequence[Single],
) -> Optimization:
    """What was found for the way that is chosen, with what its rivals of all ways have shown."""
    threads, label = labels[proof.label]
    chosen = found[threads]
    # Of this way libraries go by their names alone, as in a bundle of one request at a time.
    plain = {told: name for told, (of, name) in labels.items() if of == threads and told != proof.label}
    comparisons = tuple(c.renamed(plain) for c in proof.comparisons)
    others = [s for s in singles if labels[s.label][0] != threads]
    return replace(
        chosen,
        placement=proof.placement,
        chosen=label,
        singles=(*chosen.singles, *others),
        comparisons=comparisons,
        rejected=tuple(dict.fromkeys([*chosen.rejected, *proof.rejected])),
        beaten_by=tuple(plain.get(told, told) for told in proof.beaten_by),
        total_s=aim.budget.spent_s,
        seconds=aim.timed.seconds,
        stage=Stage.CONFIRMED if proof.is_confirmed else Stage.CHOSEN,
        is_cut_short=any(o.is_cut_short for o in found.values())
        or any(c.is_cut_short for c in proof.comparisons),
        is_recalled=all(o.is_recalled for o in found.values())
        and not any(c.measured for c in proof.comparisons),
    )
