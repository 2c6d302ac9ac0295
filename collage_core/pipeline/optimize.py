"""From a graph to the fastest placement of it that is known here, with the proof."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from collage_core.backend import Backend, BackendKind
from collage_core.costs.database import CostDatabase
from collage_core.costs.record import CostRecord
from collage_core.costs.samples import median_uncertainty_ms
from collage_core.device import Target
from collage_core.errors import BackendError, PlacementError
from collage_core.formats import Array
from collage_core.ir import Graph
from collage_core.ir.verify import require_static
from collage_core.pipeline.calibration import calibrate
from collage_core.pipeline.comparison import Comparison, compare, placement_entrant
from collage_core.pipeline.costing import Costs, collect_costs, default_policy
from collage_core.pipeline.progress import Progress, Silent
from collage_core.pipeline.reading import read_graph
from collage_core.pipeline.workspace import Workspace
from collage_core.placement import VIEW, Placement
from collage_core.plugins import Registry, default_registry
from collage_core.search.candidates import CandidateSet, Constraints, generate_candidates, require_offers
from collage_core.search.op_level import OpLevelSearch
from collage_core.search.searcher import Searcher, SearchResult, SearchTask
from collage_core.search.transitions import Transitions

__all__ = ["COLLAGE", "MIX", "Optimization", "Single", "optimize", "optimize_graph", "search_placement"]

COLLAGE = "collage"
"""Name of the chosen placement among the contenders."""

MIX = "mix"
"""Label of the search's own placement."""

_HOPELESS = 20.0
"""A single backend predicted to be this many times slower than the mix is not run: its prediction says
enough.
"""


@dataclass(frozen=True, slots=True)
class Single:
    """One backend on its own, `reference` running what it declines.

    placement: None where not even that covers the graph (`reason` says why). alone: whether `reference` runs
    nothing.
    """

    backend: str
    placement: Placement | None
    alone: bool
    reason: str | None = None

    @property
    def label(self) -> str:
        return self.backend if self.alone else f"{self.backend}+reference"


@dataclass(frozen=True, slots=True)
class Optimization:
    """What `optimize_graph` found.

    placement: the fastest in the deciding run: the mix that the search found, or a single backend's, which
    also wins where no difference can be told. chosen: "mix", or the single's label. op_level: what the search
    of measured costs found.
    comparisons: the end-to-end runs, in order; the last one confirms. rejected: what failed or was wrong as a
    whole, with the reason. search_s: the search alone; total_s: everything.
    """

    graph: Graph
    placement: Placement
    chosen: str
    singles: tuple[Single, ...]
    candidates: CandidateSet
    costs: Costs
    transitions: Transitions
    op_level: SearchResult
    comparisons: tuple[Comparison, ...]
    rejected: tuple[str, ...]
    search_s: float
    total_s: float

    @property
    def mix(self) -> Placement:
        """What the search of measured costs found."""
        return self.op_level.placement

    @property
    def comparison(self) -> Comparison | None:
        """The confirmation run, in which `placement` goes by the name "collage"; None when not asked for."""
        return self.comparisons[-1] if self.comparisons else None


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
    rounds: int = 15,
) -> Optimization:
    """Read, normalise and place a model in one call; see `optimize_graph` for what is not said here.

    model: an ONNX file, a model in memory, or a graph (normalised already, taken as it is). backends: names
    of those that may take part, all available ones where None. shapes: of inputs with open dimensions. costs:
    the cost database's file, the user's own where None.
    """
    registry = registry or default_registry()
    progress = progress or Silent()
    chosen = registry.available(backends)
    graph = read_graph(model, shapes, skip_passes, progress)
    with CostDatabase(costs) as database:
        return optimize_graph(
            graph,
            chosen,
            target or Target.default(),
            database,
            registry=registry,
            constraints=constraints,
            searcher=searcher,
            inputs=inputs,
            progress=progress,
            executor=executor,
            rounds=rounds,
        )


def search_placement(
    candidates: CandidateSet,
    costs: Costs,
    searcher: Searcher,
    backends: Sequence[str] | None = None,
    transitions: Transitions | None = None,
) -> SearchResult:
    """The best placement of measured candidates, on the backends named or on all. transitions: nothing where
    None.

    PlacementError names a node that none of them can run.
    """
    if backends is not None:
        allowed = {*backends, VIEW}
        candidates = replace(
            candidates, candidates=tuple(c for c in candidates.candidates if c.backend in allowed)
        )
    transitions = transitions or Transitions()
    converters = costs.converters(backends, transitions)
    return searcher.search(SearchTask(candidates, costs.record_of, converters, transitions))


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
    progress: Progress | None = None,
    executor: Executor | None = None,
    rounds: int = 15,
) -> Optimization:
    """Place a normalised graph: measure what is not known yet, search, then let the result prove itself end
    to end.

    backends: those that may take part; core's reference is added, so that every model places. inputs: what to
    record values with, by name (made up where None). transitions: constants per group and crossing; where
    None, calibrated, or those known if `executor` measures or `rounds` is 0. rounds: of each of the two
    end-to-end comparisons, 0 for none. ModelError for an open dimension, PlacementError where no backend, not
    even the reference, runs a node.
    """
    start = time.monotonic()
    registry = registry or default_registry()
    progress = progress or Silent()
    searcher = searcher or OpLevelSearch()
    require_static(graph)
    chosen = {b.name: b for b in backends}
    fallback = next(b for b in registry.backends.values() if b.info().kind is BackendKind.REFERENCE)
    chosen.setdefault(fallback.name, fallback)
    progress.phase("finding candidates")
    candidates = generate_candidates(graph, chosen.values(), target, constraints)
    require_offers(candidates)
    with Workspace(graph, inputs) as workspace:
        policy = default_policy(graph)
        costs = collect_costs(
            candidates, chosen, database, workspace, policy, progress, executor, registry.modules()
        )
        if transitions is None:
            # Where nothing is run on this machine, what is known of it has to do.
            here = executor is None and rounds > 0
            transitions, measured = calibrate(chosen, target, database, registry, progress, measure=here)
            costs.measured += measured
        progress.phase("searching")
        search_start = time.monotonic()
        op_level = search_placement(candidates, costs, searcher, transitions=transitions)
        mix = op_level.placement
        search_s = time.monotonic() - search_start
        singles = tuple(
            _single(name, fallback.name, candidates, costs, searcher, transitions) for name in chosen
        )
        proof = _Proof(mix, MIX, ())
        if rounds:
            proof = _prove(graph, mix, singles, target, database, workspace, registry, progress, rounds)
    return Optimization(
        graph,
        proof.placement,
        proof.label,
        singles,
        candidates,
        costs,
        transitions,
        op_level,
        proof.comparisons,
        proof.rejected,
        search_s,
        time.monotonic() - start,
    )


def _single(
    name: str,
    fallback: str,
    candidates: CandidateSet,
    costs: Costs,
    searcher: Searcher,
    transitions: Transitions,
) -> Single:
    try:
        found = search_placement(candidates, costs, searcher, [name], transitions)
        return Single(name, found.placement, alone=True)
    except PlacementError as error:
        reason = str(error)
    if name == fallback:
        return Single(name, None, True, reason)
    try:
        found = search_placement(candidates, costs, searcher, [name, fallback], transitions)
        return Single(name, found.placement, False, reason)
    except PlacementError as error:
        return Single(name, None, False, str(error))


def _uncertainty_ms(record: CostRecord) -> float:
    return median_uncertainty_ms(record.spread_ms or 0.0, record.runs)


@dataclass(frozen=True, slots=True)
class _Proof:
    placement: Placement
    label: str
    comparisons: tuple[Comparison, ...]
    rejected: tuple[str, ...] = ()


def _prove(
    graph: Graph,
    mix: Placement,
    singles: Sequence[Single],
    target: Target,
    database: CostDatabase,
    workspace: Workspace,
    registry: Registry,
    progress: Progress,
    rounds: int,
) -> _Proof:
    """Choose the fastest end to end, then measure all again: the run that chooses flatters what it chose.

    What fails or answers wrongly as a whole is not chosen. BackendError if nothing is left.
    """
    limit_ms = (mix.predicted_ms or 0.0) * _HOPELESS
    rivals = {
        s.label: s.placement
        for s in singles
        if s.placement is not None
        and (s.placement.predicted_ms or 0.0) <= limit_ms
        and s.placement.digest != mix.digest
    }

    def run(title: str, placements: Mapping[str, Placement], parts: bool = False) -> Comparison:
        return compare(
            graph,
            [placement_entrant(n, p, registry, parts=parts and n == COLLAGE) for n, p in placements.items()],
            target,
            database,
            workspace,
            progress,
            title=title,
            rounds=rounds,
            expected=workspace.expected_outputs,
        )

    comparisons: list[Comparison] = []
    times: dict[str, float] = {MIX: 0.0}
    reasons: list[str] = []
    if rivals:
        choosing = run("choosing", {COLLAGE: mix, **rivals})
        comparisons.append(choosing)
        named = {MIX: choosing.records[COLLAGE], **{label: choosing.records[label] for label in rivals}}
        times = {label: r.median_ms for label, r in named.items() if r.ok and r.median_ms is not None}
        reasons = [f"{label}: {r.reason}" for label, r in named.items() if not r.ok]
        alone = {s.label for s in singles if s.alone}
        if MIX in times:
            # Where no difference can be told, one library is simpler than several.
            for label in alone & times.keys():
                if times[label] - times[MIX] <= _uncertainty_ms(named[label]) + _uncertainty_ms(named[MIX]):
                    times[label] = min(times[label], math.nextafter(times[MIX], 0.0))
    # What was hopelessly slow is better than nothing: the reference, above all.
    tried = {p.digest for p in (mix, *rivals.values())}
    untried = {
        s.label: s.placement for s in singles if s.placement is not None and s.placement.digest not in tried
    }
    placements = {MIX: mix, **rivals, **untried}
    last = sorted(untried, key=lambda label: untried[label].predicted_ms or math.inf)
    for label in (*sorted(times, key=times.__getitem__), *last):
        standing = {name: p for name, p in rivals.items() if name in times}
        confirming = run("confirming", {COLLAGE: placements[label], **standing}, parts=True)
        comparisons.append(confirming)
        if confirming.records[COLLAGE].ok:
            for reason in reasons:
                progress.note(f"not chosen, {reason}")
            return _Proof(placements[label], label, tuple(comparisons), tuple(reasons))
        reasons.append(f"{label}: {confirming.records[COLLAGE].reason}")
    raise BackendError(f"no placement runs as a whole: {'; '.join(reasons)}")
