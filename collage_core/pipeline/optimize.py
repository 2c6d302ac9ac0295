"""From a graph to the fastest placement of it that is known here, with the proof."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, closing
from dataclasses import replace
from numbers import Real
from pathlib import Path

import onnx

from collage_core.candidates import Constraints
from collage_core.costs.database import CostDatabase
from collage_core.costs.limits import check_limits
from collage_core.errors import CollageError
from collage_core.formats import BFLOAT16, Array
from collage_core.ir import Graph
from collage_core.ir.digests import structure_digest
from collage_core.ir.randomness import drawing_nodes, random_values, seed_of
from collage_core.ir.static import require_static
from collage_core.measuring.held_out import HeldOut
from collage_core.measuring.machine import Machine
from collage_core.measuring.metric import Metric, MetricFunction
from collage_core.measuring.progress import Progress, Silent, Timed
from collage_core.measuring.workspace import Workspace
from collage_core.pipeline.aim import Aim
from collage_core.pipeline.budget import Budget
from collage_core.pipeline.calibration import Samples, made_up, samples_of
from collage_core.pipeline.effort import NORMAL, Effort
from collage_core.pipeline.error_limit import ErrorLimit
from collage_core.pipeline.given import run_given
from collage_core.pipeline.optimization import Optimization
from collage_core.pipeline.original import checked_workspace
from collage_core.pipeline.prices import prices_of
from collage_core.pipeline.proof import COLLAGE, MIX, Single
from collage_core.pipeline.reading import read_model
from collage_core.pipeline.run import run
from collage_core.pipeline.second_opinion import second_opinion
from collage_core.pipeline.throughput import on_threads, require_for_throughput, run_for_throughput
from collage_core.plugins import Registry, default_registry
from collage_core.search.op_level import OpLevelSearch
from collage_core.search.searcher import Searcher
from collage_core.steering import PlacementFile
from collage_core.target import Target, processor

__all__ = [
    "COLLAGE",
    "MIX",
    "Optimization",
    "Single",
    "optimize",
]


def optimize(
    model: str | Path | onnx.ModelProto | Graph,
    *,
    backends: Sequence[str] | None = None,
    target: Target | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    costs: str | Path | None = None,
    skip_passes: Collection[str] = (),
    registry: Registry | None = None,
    constraints: Constraints | None = None,
    placement: PlacementFile | None = None,
    searcher: Searcher | None = None,
    inputs: Mapping[str, Array] | None = None,
    max_error: float | None = None,
    metric: MetricFunction | Metric | None = None,
    calibration: Mapping[str, Array] | None = None,
    progress: Progress | None = None,
    executor: Executor | None = None,
    effort: Effort = NORMAL,
    rounds: int | None = None,
    budget_s: float | None = None,
    seed: int = 0,
    verify: str | None = None,
    concurrency: int | None = None,
    on_best: Callable[[Optimization], object] = lambda best: None,
) -> Optimization:
    """Read, normalise and place a model: measure what may matter, search, then let the result prove itself
    end to end.

    model: an ONNX file, a model in memory, or a graph (normalised already, taken as it is). backends: names
    of those that may take part, all available ones where None; core's reference is added, so that every model
    places. shapes: of inputs with open dimensions. costs: the cost database's file, the user's own where
    None. inputs: what to record values with, by name (made up where None).

    max_error: allows rounding, of what gains most time for its error, while it makes no output be off by more
    than this, max|difference| / max|expected|, on inputs by which nothing was chosen. What is not rounded is
    held to its own type's tolerance. Values may be stored as the target's `precisions` say, as bfloat16 where
    it names none and the processor multiplies it. metric: a function that says how far outputs are off, as
    `max_error` limits it then; both are given with all samples along a further axis in front. What it reads
    but its arguments must not change: what it said before is kept by its source. calibration: samples of
    each input along a further axis in front; the first takes the place of `inputs`, the others are held out.
    Sixteen are made up where None, of a large graph fewer. They are run even where `rounds` is 0.

    executor: where measuring jobs run; what machines there take is kept as theirs, and serves this run. What
    groups and crossings cost is calibrated, or as known where an executor measures or `rounds` is 0. effort:
    how much is measured; everything where an executor measures. rounds: of each end-to-end comparison (at
    most 6 of those that teach costs in place), 0 for none; as the effort has it where None. budget_s: seconds
    for all of it, the effort's own where None; inf for no limit.

    constraints: what the placement has to keep to. placement: a file that says more of it. One that leaves
    nothing open is built and run as it is: nothing else is measured or run.

    searcher: a further search after the op level, or the op level's own with other limits; seed: see
    `SearchTask`. verify: a peer that is asked what the model answers; DisagreementError where that is
    something else than the reference says.

    concurrency: as many requests a second as can be are to be answered, of so many that are asked at a time:
    by sessions beside each other, each on its share of the target's threads (`Optimization.serving`). None:
    one request at a time is to take as little time as can be.

    on_best: called whenever something was run that is faster than what was the best before. What it is given
    is complete: it may be saved, and is what there is if the rest is interrupted.

    ModelError for an open dimension, PlacementError where no backend, not even the reference, runs a node,
    InputError for a calibration that does not fit.

    The model as it was given is run beside what the passes made of it; a pass that changes an answer is left
    out, and `Optimization.original` says so.
    """
    check_limits()
    registry = registry or default_registry()
    timed = Timed(progress or Silent())
    budget = _budget(effort, budget_s, timed)
    if target is None:
        target = Target.default() if placement is None else placement.target(Target.default())
    if max_error is None and calibration is not None:
        raise CollageError("calibration says nothing without max_error")
    if max_error is None and metric is not None:
        raise CollageError("metric says nothing without max_error")
    measure = metric if metric is None or isinstance(metric, Metric) else Metric.of(metric)
    if max_error is not None:
        target = _rounding_target(target, max_error, math.inf if measure else 1.0, timed)
    if concurrency is not None:
        runs = effort.runs and rounds != 0
        require_for_throughput(concurrency, target, runs=runs, max_error=max_error, placement=placement)
    if isinstance(backends, str):
        raise CollageError(f"backends are several names, as in [{backends!r}]")
    chosen = None if backends is None else registry.available(backends)
    verifiers = registry.available_peers([] if verify is None else [verify])
    registry.ask_all()
    for plugin, reason in registry.failures.items():
        timed.note(f"plugin {plugin!r} is left out, or a part of it: {reason}")
    reading = read_model(model, shapes, skip_passes, registry, timed)
    require_static(reading.graph)
    with ExitStack() as opened:
        samples = None
        if max_error is not None:
            samples = _samples(reading.graph, inputs, calibration)
            inputs = samples.chosen_by
        database = opened.enter_context(CostDatabase(costs))
        machine = Machine.of(database, chosen, target, registry=registry, progress=timed, executor=executor)
        if reading.original is None:
            workspace, check = opened.enter_context(Workspace(reading.graph, inputs)), None
        else:
            checked = checked_workspace(reading, inputs, database, timed)
            workspace, check = opened.enter_context(checked)
        opinion = None
        for peer in verifiers:
            original, modules = reading.original or reading.graph, registry.modules()
            opinion = second_opinion(original, workspace.inputs, peer, target, timed, modules)
        require_static(workspace.graph)
        _tell_randomness(workspace.graph, timed)
        limit = None
        if samples is not None and max_error is not None:
            held_out = HeldOut(
                machine, workspace, samples.held_out, is_made_up=samples.is_made_up, metric=measure
            )
            limit = ErrorLimit(max_error, opened.enter_context(closing(held_out)))
            held_out.check_metric(max_error)
        asked, given = constraints or Constraints(), None
        if placement is not None:
            asked = placement.constraints(workspace.graph, registry, asked)
            given = placement.placement(workspace.graph, asked, machine.target)
            if given is not None and max_error is not None:
                raise CollageError(
                    f"{placement.path} leaves nothing open that max_error could choose; what it rounds, "
                    "its groups say"
                )
            if placement.graph not in ("", structure_digest(workspace.graph)):
                timed.note(f"{placement.path} was written for another graph; what it names is there, too")
        is_op_level = isinstance(searcher, OpLevelSearch)
        aim = Aim(
            machine,
            workspace,
            effort if rounds is None else effort.with_rounds(rounds),
            budget,
            asked,
            searcher if isinstance(searcher, OpLevelSearch) else OpLevelSearch(),
            timed,
            lambda best: on_best(replace(best, original=check, opinion=opinion)),
            limit,
        )
        further = None if is_op_level else searcher
        if concurrency is not None:
            found = run_for_throughput(aim, concurrency, further, seed)
            aim = on_threads(aim, found.placement.target.threads)
        elif given is None or placement is None:
            found = run(aim, further, seed)
        else:
            with placement.naming():
                found = run_given(aim, given)
        if not asked:
            return replace(found, original=check, opinion=opinion)
        if not found.is_recalled:
            aim.on_best(found)  # kept, should somebody not wait for the prices
        prices = prices_of(aim)
        return replace(found, original=check, opinion=opinion, prices=prices, total_s=budget.spent_s)


def _rounding_target(target: Target, max_error: float, below: float, progress: Progress) -> Target:
    """The target, with a type to round to."""
    if not isinstance(max_error, Real) or isinstance(max_error, bool):
        raise CollageError(f"max_error is a number, not {max_error!r}")
    if not 0.0 < max_error < below:
        raise CollageError(f"max_error must be above 0 and below {below:g}, not {max_error:g}")
    if target.precisions:
        return target
    if not processor().multiplies_bfloat16:
        progress.note("this processor does not multiply bfloat16, and no other precision was named")
        return target
    return replace(target, precisions=(BFLOAT16,))


def _samples(
    graph: Graph, inputs: Mapping[str, Array] | None, calibration: Mapping[str, Array] | None
) -> Samples:
    if calibration is None:
        return made_up(graph, inputs)
    if inputs is not None:
        raise CollageError("inputs and calibration both say what values are recorded with; give one of them")
    return samples_of(graph, calibration)


def _budget(effort: Effort, budget_s: float | None, progress: Progress) -> Budget:
    if budget_s is not None and not budget_s >= 0.0:
        raise CollageError(f"budget_s is a number of seconds from 0 on, not {budget_s!r}")
    limit_s = effort.budget_s if budget_s is None else budget_s
    budget = Budget(limit_s if limit_s is not None and limit_s < math.inf else None)
    progress.limit(budget.limit_s)
    return budget


def _tell_randomness(graph: Graph, progress: Progress) -> None:
    drawn = [f"{n} with seed {seed_of(n)}" for n in drawing_nodes(graph)]
    if drawn:
        random = random_values(graph)
        outputs = ", ".join(v for v in graph.outputs if v in random) or "none"
        progress.note(
            f"random numbers are drawn by {', '.join(drawn)}; outputs that depend on them, "
            f"which are compared by shape, element type and range: {outputs}"
        )
