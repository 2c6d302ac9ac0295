"""From a graph to the fastest placement of it that is known here, with the proof."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path

import onnx

from collage_core.backend import Backend, BackendKind
from collage_core.costs.database import CostDatabase
from collage_core.costs.limits import check_limits
from collage_core.device import Target
from collage_core.formats import Array
from collage_core.ir import Graph
from collage_core.ir.randomness import drawing_nodes, random_values, seed_of
from collage_core.ir.verify import require_static
from collage_core.pipeline.bounding import search_placement
from collage_core.pipeline.budget import Budget
from collage_core.pipeline.effort import NORMAL, Effort
from collage_core.pipeline.optimization import Optimization
from collage_core.pipeline.original import checked_workspace
from collage_core.pipeline.progress import Progress, Silent, Timed
from collage_core.pipeline.proof import COLLAGE, MIX, Single
from collage_core.pipeline.reading import read_model
from collage_core.pipeline.run import OptimizationRun
from collage_core.pipeline.second_opinion import second_opinion
from collage_core.pipeline.workspace import Workspace
from collage_core.plugins import Registry, default_registry
from collage_core.search.candidates import Constraints
from collage_core.search.op_level import OpLevelSearch
from collage_core.search.searcher import Searcher
from collage_core.search.transitions import Transitions

__all__ = [
    "COLLAGE",
    "MIX",
    "Optimization",
    "Single",
    "optimize",
    "optimize_graph",
    "search_placement",
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
    searcher: Searcher | None = None,
    inputs: Mapping[str, Array] | None = None,
    progress: Progress | None = None,
    executor: Executor | None = None,
    effort: Effort = NORMAL,
    rounds: int | None = None,
    budget_s: float | None = None,
    seed: int = 0,
    verify: str | None = None,
    on_best: Callable[[Optimization], object] = lambda best: None,
) -> Optimization:
    """Read, normalise and place a model in one call; see `optimize_graph` for what is not said here.

    model: an ONNX file, a model in memory, or a graph (normalised already, taken as it is). backends: names
    of those that may take part, all available ones where None. shapes: of inputs with open dimensions. costs:
    the cost database's file, the user's own where None. verify: a peer that is asked what the model answers;
    DisagreementError where that is something else than the reference says.

    The model as it was given is run beside what the passes made of it; a pass that changes an answer is left
    out, and `Optimization.original` says so.
    """
    check_limits()
    registry = registry or default_registry()
    progress = Timed(progress or Silent())
    for plugin, reason in registry.failures.items():
        progress.note(f"plugin {plugin!r} is left out: {reason}")
    budget = _budget(effort, budget_s, progress)
    target = target or Target.default()
    chosen = registry.available(backends)
    verifiers = registry.available_peers([] if verify is None else [verify])
    reading = read_model(model, shapes, skip_passes, progress)
    require_static(reading.graph)
    with ExitStack() as opened:
        database = opened.enter_context(CostDatabase(costs))
        if reading.original is None:
            workspace, check = opened.enter_context(Workspace(reading.graph, inputs)), None
        else:
            checked = checked_workspace(reading, inputs, database, progress)
            workspace, check = opened.enter_context(checked)
        opinion = None
        for peer in verifiers:
            given, modules = reading.original or reading.graph, registry.modules()
            opinion = second_opinion(given, workspace.inputs, peer, target, progress, modules)
        found = optimize_graph(
            workspace.graph,
            chosen,
            target,
            database,
            registry=registry,
            constraints=constraints,
            searcher=searcher,
            workspace=workspace,
            progress=progress,
            executor=executor,
            effort=effort,
            rounds=rounds,
            budget=budget,
            seed=seed,
            on_best=lambda best: on_best(replace(best, original=check, opinion=opinion)),
        )
        return replace(found, original=check, opinion=opinion)


def optimize_graph(
    graph: Graph,
    backends: Sequence[Backend],
    target: Target,
    database: CostDatabase,
    *,
    registry: Registry | None = None,
    constraints: Constraints | None = None,
    searcher: Searcher | None = None,
    transitions: Transitions | None = None,
    inputs: Mapping[str, Array] | None = None,
    workspace: Workspace | None = None,
    progress: Progress | None = None,
    executor: Executor | None = None,
    effort: Effort = NORMAL,
    rounds: int | None = None,
    budget_s: float | None = None,
    budget: Budget | None = None,
    seed: int = 0,
    on_best: Callable[[Optimization], object] = lambda best: None,
) -> Optimization:
    """Place a normalised graph: measure what may matter, search, then let the result prove itself end to end.

    backends: those that may take part; core's reference is added, so that every model places. inputs: what to
    record values with, by name (made up where None). workspace: an open one of this graph, with inputs of its
    own. executor: where measuring jobs run; what machines there take is kept as theirs, and serves this run.
    transitions: constants per group and crossing; where None, calibrated, or those known if `executor`
    measures or `rounds` is 0. effort: how much is measured; everything where an executor measures. rounds: of
    each end-to-end comparison (at most 6 of those that teach costs in place), 0 for none; as the effort has
    it where None. budget_s: seconds for all of it, the effort's own where None; inf for no limit. budget: one
    that runs already. searcher: a further search after the op level, or the op level's own with other limits;
    seed: see `SearchTask`.

    on_best: called whenever something was run that is faster than what was the best before. What it is given
    is complete: it may be saved, and is what there is if the rest is interrupted.

    ModelError for an open dimension, PlacementError where no backend, not even the reference, runs a node.
    """
    registry = registry or default_registry()
    progress = progress if isinstance(progress, Timed) else Timed(progress or Silent())
    budget = budget or _budget(effort, budget_s, progress)
    require_static(graph)
    _tell_randomness(graph, progress)
    chosen = {b.name: b for b in backends}
    fallback = next(b for b in registry.backends.values() if b.info().kind is BackendKind.REFERENCE)
    chosen.setdefault(fallback.name, fallback)
    is_op_level = isinstance(searcher, OpLevelSearch)
    with nullcontext(workspace) if workspace is not None else Workspace(graph, inputs) as workspace:
        run = OptimizationRun(
            chosen,
            fallback.name,
            target,
            database,
            workspace,
            registry,
            progress,
            executor,
            effort if not rounds else effort.with_rounds(rounds),
            budget,
            constraints or Constraints(),
            searcher if isinstance(searcher, OpLevelSearch) else OpLevelSearch(),
            on_best,
            measured_here=executor is None and rounds != 0,
            runs=rounds != 0,
        )
        return run.run(transitions, None if is_op_level else searcher, seed)


def _budget(effort: Effort, budget_s: float | None, progress: Progress) -> Budget:
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
