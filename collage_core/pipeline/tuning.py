"""`tune`: better kernels for the groups in which some backend could be faster than all are now."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from collage_core.backend import Backend, BackendKind, Tuned
from collage_core.candidates import (
    Candidate,
    CandidateSet,
    generate_candidates,
    tunable_candidates,
)
from collage_core.costs.database import CostDatabase
from collage_core.costs.host import Host
from collage_core.costs.limits import check_limits, worker_memory_bytes
from collage_core.costs.roofline import Peaks, Work, shows_peaks, work_of
from collage_core.costs.tune import tune_step
from collage_core.errors import CollageError, WorkerError
from collage_core.ir import Graph, NodeSet
from collage_core.ir.static import require_static
from collage_core.measuring.costing import Costs
from collage_core.measuring.ledger import collect_costs
from collage_core.measuring.machine import Machine
from collage_core.measuring.progress import Progress, Silent
from collage_core.measuring.workspace import Workspace
from collage_core.pipeline.reading import read_model
from collage_core.placement import VIEW
from collage_core.plugins import Registry, default_registry
from collage_core.target import Target

__all__ = ["TaskResult", "TuneTask", "Tuning", "tune", "tune_graph"]

_WORTH = 0.9
"""A group is worth tuning if it could take at most this part of what it takes now."""

_TOLD_REFUSALS = 3


@dataclass(frozen=True, slots=True)
class TuneTask:
    """A kernel that could be faster. occurrences: groups of the model that it serves. least_ms: by the
    roofline. known_ms: the best known cost of the same nodes, on whatever backends; None where there is none.
    """

    candidate: Candidate
    occurrences: int
    least_ms: float
    known_ms: float | None

    @property
    def gain_ms(self) -> float:
        """What the model could gain at most."""
        known_ms = math.inf if self.known_ms is None else self.known_ms
        return (known_ms - self.least_ms) * self.occurrences

    @property
    def is_worthwhile(self) -> bool:
        return self.known_ms is None or self.least_ms <= _WORTH * self.known_ms


@dataclass(frozen=True, slots=True)
class TaskResult:
    """tuned: how far it has come, None where it failed before the first answer. new_trials: of this run.
    reason: why tuning it ended early, None where it did not. cost_ms: what the best that its backend offers
    for this group now costs, measured and checked as every cost is; None where nothing is offered.
    """

    task: TuneTask
    tuned: Tuned | None
    new_trials: int
    seconds: float
    reason: str | None = None
    cost_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Tuning:
    """What `tune_graph` did. skipped: tasks for which the roofline leaves nothing to gain. left: those that
    the budget did not suffice for.
    """

    target: Target
    peaks: Peaks
    results: tuple[TaskResult, ...]
    skipped: tuple[TuneTask, ...]
    left: tuple[TuneTask, ...]
    seconds: float


def tune(
    model: str | Path | onnx.ModelProto | Graph,
    *,
    backends: Sequence[str] | None = None,
    against: Sequence[str] | None = None,
    trials: int = 64,
    budget_s: float | None = None,
    target: Target | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    costs: str | Path | None = None,
    skip_passes: Collection[str] = (),
    registry: Registry | None = None,
    progress: Progress | None = None,
) -> Tuning:
    """Read, normalise and tune a model; see `tune_graph` for what is not said here, `optimize` for the
    arguments that both have. backends: names of those that tune, against: of those to be faster than; all
    available ones where None.
    """
    check_limits()
    registry = registry or default_registry()
    progress = progress or Silent()
    tuners = registry.available(backends)
    graph = read_model(model, shapes, skip_passes, registry, progress).graph
    with CostDatabase(costs) as database:
        of_all = {b.name: b for b in (*registry.available(against), *tuners)}
        machine = Machine(of_all, target or Target.default(), database, registry, progress)
        return tune_graph(machine, graph, tuners, trials=trials, budget_s=budget_s)


def tune_graph(
    machine: Machine,
    graph: Graph,
    tuners: Sequence[Backend],
    *,
    trials: int = 64,
    budget_s: float | None = None,
) -> Tuning:
    """Tune what could be faster than the best known cost on any of the machine's backends, what the model
    gains most from first. Costs that are not known yet are measured before, and those of what was found
    after.

    trials: per kernel, those of earlier runs included. budget_s: no step begins after so many seconds of
    tuning, measuring costs not counted. What is found is kept at once: it may be interrupted at any time.

    CollageError where no backend tunes anything of this graph.
    """
    if trials < 1:
        raise CollageError(f"trials must be at least 1, not {trials}")
    start = time.monotonic()
    progress, target = machine.progress, machine.target
    require_static(graph)
    progress.phase("finding what can be tuned")
    tunable, refusals = tunable_candidates(graph, tuners, target)
    if not tunable:
        said = "".join(f"; {r}" for r in list(dict.fromkeys(map(str, refusals)))[:_TOLD_REFUSALS])
        raise CollageError(f"nothing of this model can be tuned by {_names(tuners)}{said}")
    with Workspace(graph) as workspace:
        candidates, costs = _offered(machine, workspace)
        peaks = machine.peaks().raised(_measured(candidates, costs))
        tasks = _tasks(tunable, candidates, costs, peaks)
        worthwhile = sorted((t for t in tasks if t.is_worthwhile), key=lambda t: -t.gain_ms)
        deadline = math.inf if budget_s is None else time.monotonic() + budget_s
        results: list[TaskResult] = []
        left: list[TuneTask] = []
        with _Tuners(workspace, target, machine.registry.modules()) as workers:
            for task in worthwhile:
                if time.monotonic() >= deadline:
                    left.append(task)
                else:
                    results.append(_tuned(task, workers, trials, deadline, progress))
        if any(r.new_trials for r in results):
            candidates, costs = _offered(machine, workspace)
        results = [replace(r, cost_ms=_offered_ms(r.task, candidates, costs)) for r in results]
    skipped = tuple(t for t in tasks if not t.is_worthwhile)
    return Tuning(target, peaks, tuple(results), skipped, tuple(left), time.monotonic() - start)


def _names(backends: Sequence[Backend]) -> str:
    return ", ".join(b.name for b in backends)


def _offered(machine: Machine, workspace: Workspace) -> tuple[CandidateSet, Costs]:
    """What the backends offer at this moment, and what it costs."""
    candidates = generate_candidates(workspace.graph, machine.backends.values(), machine.target)
    return candidates, collect_costs(machine, workspace, candidates)


class _Tuners:
    """A host for each backend, when it is first asked for: it lives from one kernel to the next."""

    def __init__(self, workspace: Workspace, target: Target, plugins: Sequence[str]) -> None:
        self._graph_path, self._target, self._plugins = workspace.graph_folder, target, plugins
        self._hosts: dict[str, Host] = {}

    def of(self, backend: str) -> Host:
        if backend not in self._hosts:
            host = Host(self._graph_path, backend, self._target, self._plugins, worker_memory_bytes())
            self._hosts[backend] = host
        return self._hosts[backend]

    def __enter__(self) -> _Tuners:
        return self

    def __exit__(self, *_: object) -> None:
        for host in self._hosts.values():
            host.kill()


def _tuned(task: TuneTask, workers: _Tuners, trials: int, deadline: float, progress: Progress) -> TaskResult:
    """Step by step, until all trials are made, nothing is left, the time is up or something goes wrong."""
    candidate = task.candidate
    name = f"{candidate.subgraph} ({candidate.subgraph.nodes[0].name}) on {candidate.backend}"
    progress.phase(f"tuning {name}", trials)
    start = time.monotonic()
    tuned: Tuned | None = None
    first, reason = 0, None
    while reason is None and (tuned is None or (tuned.trials < trials and not tuned.exhausted)):
        before = tuned.trials if tuned else None
        if tuned is not None and time.monotonic() >= deadline:
            reason = "the budget is used up"
            break
        # Asked for none, a tuner tells where it stands.
        aim = trials if tuned else 0
        try:
            host = workers.of(candidate.backend)
            tuned = tune_step(host, candidate.subgraph, candidate.variant, aim, progress.note)
        except WorkerError as error:
            reason = str(error)
            progress.note(f"{name}: {reason}")
            break
        if before is None:
            first = tuned.trials
        elif tuned.trials <= before and not tuned.exhausted:
            reason = "it tries nothing more"
        best = "" if tuned.best_ms is None else f"best {tuned.best_ms:.4f} ms"
        for _ in range(tuned.trials - (before or 0)):
            progress.step(best)
    new_trials = tuned.trials - first if tuned else 0
    return TaskResult(task, tuned, new_trials, time.monotonic() - start, reason)


def _tasks(
    tunable: Sequence[Candidate], candidates: CandidateSet, costs: Costs, peaks: Peaks
) -> list[TuneTask]:
    """One for each distinct kernel."""
    same: dict[tuple[str, str, str], list[Candidate]] = {}
    for c in tunable:
        same.setdefault((c.backend, c.subgraph.key, str(c.variant)), []).append(c)
    best_ms = _best_by_nodes(candidates, costs)
    tasks = []
    for group in same.values():
        known = [k for c in group if (k := _cover_ms(c.subgraph.node_set, best_ms)) is not None]
        least_ms = peaks.least_ms(work_of(group[0].subgraph))
        tasks.append(TuneTask(group[0], len(group), least_ms, min(known, default=None)))
    return tasks


def _measured(candidates: CandidateSet, costs: Costs) -> Iterator[tuple[Work, float]]:
    """What groups took that show what the machine reaches."""
    for c in candidates.candidates:
        record = None if c.backend == VIEW else costs.record_of(c)
        if record is None or not record.ok or not record.median_ms or c.is_rounded:
            continue
        if shows_peaks(c.subgraph):
            yield work_of(c.subgraph), record.median_ms


def _best_by_nodes(candidates: CandidateSet, costs: Costs) -> dict[NodeSet, float]:
    best: dict[NodeSet, float] = {}
    for c in candidates.candidates:
        nodes = c.subgraph.node_set
        if c.backend == VIEW:
            best[nodes] = 0.0
        elif candidates.kinds[c.backend] is not BackendKind.GRAPH:
            record = costs.record_of(c)
            if record is not None and record.ok and record.median_ms is not None and not c.is_rounded:
                best[nodes] = min(best.get(nodes, math.inf), record.median_ms)
    return best


def _cover_ms(nodes: NodeSet, best_ms: Mapping[NodeSet, float]) -> float | None:
    """The cheapest way to run just these nodes in one or more kernels, conversions apart; None if there is
    none.
    """
    parts = [(part, ms) for part, ms in best_ms.items() if part <= nodes]
    found: dict[NodeSet, float] = {NodeSet(): 0.0}

    def cheapest(rest: NodeSet) -> float:
        if rest not in found:
            first = next(iter(rest))
            found[rest] = min(
                (ms + cheapest(rest - part) for part, ms in parts if first in part and part <= rest),
                default=math.inf,
            )
        return found[rest]

    total = cheapest(nodes)
    return None if math.isinf(total) else total


def _offered_ms(task: TuneTask, candidates: CandidateSet, costs: Costs) -> float | None:
    """The best that the task's backend offers for its nodes in its formats."""
    wanted = task.candidate
    offers = [
        record.median_ms
        for c in candidates.candidates
        if c.backend == wanted.backend
        and c.subgraph.node_set == wanted.subgraph.node_set
        and (c.variant.inputs, c.variant.outputs) == (wanted.variant.inputs, wanted.variant.outputs)
        and (record := costs.record_of(c)) is not None
        and record.ok
        and record.median_ms is not None
    ]
    return min(offers, default=None)
