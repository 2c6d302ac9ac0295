"""From a graph to the fastest placement of it that is known here, with the proof."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

from collage_core.backend import Backend, BackendKind
from collage_core.costs.database import CostDatabase
from collage_core.device import Target
from collage_core.errors import PlacementError
from collage_core.formats import Array
from collage_core.ir import Graph, NodeSet, Subgraph
from collage_core.ir.randomness import drawing_nodes, random_values, seed_of
from collage_core.ir.verify import require_static
from collage_core.pipeline.calibration import calibrate
from collage_core.pipeline.comparison import Comparison, compare, placement_entrant
from collage_core.pipeline.costing import Costs, collect_costs, default_policy
from collage_core.pipeline.libraries import find_candidates
from collage_core.pipeline.original import OriginalCheck, checked_workspace
from collage_core.pipeline.progress import Progress, Silent
from collage_core.pipeline.proof import COLLAGE, MIX, Compare, Proof, Single, label_of, prove
from collage_core.pipeline.reading import read_model
from collage_core.pipeline.refinement import ROUNDS as REFINING_ROUNDS
from collage_core.pipeline.refinement import Refined, anchor_of, refine
from collage_core.pipeline.second_opinion import SecondOpinion, second_opinion
from collage_core.pipeline.trials import Trials
from collage_core.pipeline.workspace import Workspace
from collage_core.placement import VIEW, Placement
from collage_core.plugins import Registry, default_registry
from collage_core.search.candidates import Candidate, CandidateSet, Constraints, Taken, offers_for
from collage_core.search.library_groups import ALL_TAKEN
from collage_core.search.op_level import OpLevelSearch
from collage_core.search.searcher import Searcher, SearchResult, SearchTask
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


@dataclass(frozen=True, slots=True)
class Optimization:
    """What `optimize_graph` found.

    placement: the fastest in the choosing runs: what a search found, or a single backend's, which also wins
    where no difference can be told. chosen: "mix" (the op level's), the name of the further search, or, where
    one backend runs it all, that single's label. op_level: what the search of measured costs found, with what
    was run to learn costs in place in its history. second_level: what the further search found that was asked
    for, None where none was.
    comparisons: the end-to-end runs, in order: those that teach costs in place, those that choose, and last
    the one that confirms. rejected: what failed or was wrong as a whole, with the reason. beaten_by: what was
    faster when the placement was confirmed, and may be (`Proof`). search_s: the op level's searches alone;
    total_s: everything. constraints: what the search was asked to keep to. original: how the graph compares
    with the model as it was given, None where a graph was. opinion: of the peer that was asked for one.
    """

    graph: Graph
    placement: Placement
    chosen: str
    singles: tuple[Single, ...]
    candidates: CandidateSet
    costs: Costs
    transitions: Transitions
    op_level: SearchResult
    second_level: SearchResult | None
    comparisons: tuple[Comparison, ...]
    rejected: tuple[str, ...]
    beaten_by: tuple[str, ...]
    search_s: float
    total_s: float
    constraints: Constraints = field(default_factory=Constraints)
    original: OriginalCheck | None = None
    opinion: SecondOpinion | None = None

    @property
    def mix(self) -> Placement:
        """What the search of measured costs found."""
        return self.op_level.placement

    @property
    def mix_contender(self) -> str:
        """Name in `comparison` of what ran `mix`, which may be what was chosen, or one backend's."""
        if self.mix.digest == self.placement.digest:
            return COLLAGE
        return label_of(self.mix, self.singles, MIX)

    @property
    def comparison(self) -> Comparison | None:
        """The confirmation run, in which `placement` goes by the name "collage"; None when not asked for."""
        return self.comparisons[-1] if self.comparisons else None

    @property
    def rivals(self) -> dict[str, Placement]:
        """What other backends made of the graph on their own and ran in `comparison`, by label."""
        ran = {} if self.comparison is None else self.comparison.records
        return {
            s.label: s.placement
            for s in self.singles
            if s.placement is not None and s.label in ran and ran[s.label].ok
        }


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
    rounds: int | None = None,
    budget_s: float | None = None,
    seed: int = 0,
    verify: str | None = None,
) -> Optimization:
    """Read, normalise and place a model in one call; see `optimize_graph` for what is not said here.

    model: an ONNX file, a model in memory, or a graph (normalised already, taken as it is). backends: names
    of those that may take part, all available ones where None. shapes: of inputs with open dimensions. costs:
    the cost database's file, the user's own where None. verify: a peer that is asked what the model answers;
    DisagreementError where that is something else than the reference says.

    The model as it was given is run beside what the passes made of it; a pass that changes an answer is left
    out, and `Optimization.original` says so.
    """
    registry = registry or default_registry()
    progress = progress or Silent()
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
            rounds=rounds,
            budget_s=budget_s,
            seed=seed,
        )
        return replace(found, original=check, opinion=opinion)


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
    workspace: Workspace | None = None,
    progress: Progress | None = None,
    executor: Executor | None = None,
    rounds: int | None = None,
    budget_s: float | None = None,
    seed: int = 0,
) -> Optimization:
    """Place a normalised graph: measure what is not known yet, search, then let the result prove itself end
    to end.

    backends: those that may take part; core's reference is added, so that every model places. inputs: what to
    record values with, by name (made up where None). workspace: an open one of this graph, with inputs of its
    own. transitions: constants per group and crossing; where
    None, calibrated, or those known if `executor` measures or `rounds` is 0. rounds: of each end-to-end
    comparison (at most 10 of those that teach costs in place), 0 for none; see `compare` for None. searcher:
    a further search after the op level, or the op level's own with other limits; budget_s and seed: see
    `SearchTask`.

    ModelError for an open dimension, PlacementError where no backend, not even the reference, runs a node.
    """
    start = time.monotonic()
    registry = registry or default_registry()
    progress = progress or Silent()
    require_static(graph)
    _tell_randomness(graph, progress)
    chosen = {b.name: b for b in backends}
    fallback = next(b for b in registry.backends.values() if b.info().kind is BackendKind.REFERENCE)
    chosen.setdefault(fallback.name, fallback)
    constraints = constraints or Constraints()
    op_search = searcher if isinstance(searcher, OpLevelSearch) else OpLevelSearch()
    with nullcontext(workspace) if workspace is not None else Workspace(graph, inputs) as workspace:
        run = _Run(chosen, target, database, workspace, registry, progress, executor)
        known = run.known(constraints, transitions, here=executor is None and rounds != 0)
        progress.phase("searching")
        search_start = time.monotonic()
        op_level = known.search(op_search)
        singles = tuple(_single(name, fallback.name, known, op_search) for name in chosen)
        search_s = time.monotonic() - search_start
        refined = Refined(op_level)
        if rounds != 0 and len(chosen) > 1:
            refined = run.refine(op_level, singles, known, op_search, rounds)
            op_level = refined.result
            search_s += refined.search_s
            for reason in refined.failed.values():
                progress.note(
                    f"failed as a whole, {reason} (`collage costs prune --failed`: to try it again)"
                )
            singles = tuple(known.priced(s) for s in singles)
        found = {MIX: op_level.placement}
        second_level = None
        if searcher is not None and searcher is not op_search:
            task = replace(run.task(known, constraints), op_level=op_level, budget_s=budget_s, seed=seed)
            anchor = anchor_of(op_level.placement, singles, refined.failed) if rounds != 0 else None
            second_level = run.second_level(searcher, task, known, anchor)
            simpler = [op_level.placement, *(s.placement for s in singles if s.placement is not None)]
            if all(second_level.placement.digest != p.digest for p in simpler):
                found[searcher.name] = second_level.placement
        proof = Proof(op_level.placement, MIX)
        if rounds != 0:
            proof = prove(found, singles, run.comparing(rounds), progress.note)
    return Optimization(
        graph,
        proof.placement,
        proof.label,
        singles,
        known.candidates,
        known.costs,
        known.transitions,
        op_level,
        second_level,
        (*refined.comparisons, *proof.comparisons),
        proof.rejected,
        proof.beaten_by,
        search_s,
        time.monotonic() - start,
        constraints,
    )


def _tell_randomness(graph: Graph, progress: Progress) -> None:
    drawn = [f"{n} with seed {seed_of(n)}" for n in drawing_nodes(graph)]
    if drawn:
        random = random_values(graph)
        outputs = ", ".join(v for v in graph.outputs if v in random) or "none"
        progress.note(
            f"random numbers are drawn by {', '.join(drawn)}; outputs that depend on them, "
            f"which are compared by shape, element type and range: {outputs}"
        )


@dataclass(frozen=True, slots=True)
class _Known:
    """What the searches of one optimization search with. taken: what graph libraries take of the graph."""

    candidates: CandidateSet
    taken: Mapping[str, Taken]
    costs: Costs
    transitions: Transitions

    def search(self, searcher: Searcher, backends: Sequence[str] | None = None) -> SearchResult:
        return search_placement(self.candidates, self.costs, searcher, backends, self.transitions)

    def priced(self, single: Single) -> Single:
        """At the costs that are known now."""
        if single.placement is None:
            return single
        placement = self.costs.priced(self.candidates.graph, single.placement, self.transitions)
        return replace(single, placement=placement)


@dataclass(frozen=True, slots=True)
class _Run:
    """What the steps of one optimization share."""

    backends: Mapping[str, Backend]
    target: Target
    database: CostDatabase
    workspace: Workspace
    registry: Registry
    progress: Progress
    executor: Executor | None

    def known(self, constraints: Constraints, transitions: Transitions | None, *, here: bool) -> _Known:
        """here: whether this machine may be measured on. Else what is known of its constants has to do."""
        self.progress.phase("finding candidates")
        candidates, taken = find_candidates(
            self.workspace.graph,
            self.backends,
            self.target,
            self.database,
            self.workspace,
            self.progress,
            constraints,
            self.executor,
            self.registry.modules(),
        )
        costs = self.costs(candidates)
        if transitions is None:
            transitions, measured = calibrate(
                self.backends, self.target, self.database, self.registry, self.progress, measure=here
            )
            costs.measured += measured
        return _Known(candidates, taken, costs, transitions)

    def costs(self, candidates: CandidateSet) -> Costs:
        policy, modules = default_policy(self.workspace.graph), self.registry.modules()
        return collect_costs(
            candidates,
            self.backends,
            self.database,
            self.workspace,
            policy,
            self.progress,
            self.executor,
            modules,
        )

    def refine(
        self,
        op_level: SearchResult,
        singles: Sequence[Single],
        known: _Known,
        searcher: Searcher,
        rounds: int | None,
    ) -> Refined:
        return refine(
            self.workspace.graph,
            op_level,
            singles,
            known.costs,
            known.transitions,
            lambda: known.search(searcher),
            self.comparing(REFINING_ROUNDS if rounds is None else min(rounds, REFINING_ROUNDS)),
        )

    def second_level(
        self, searcher: Searcher, task: SearchTask, known: _Known, anchor: Placement | None
    ) -> SearchResult:
        """What a further search finds, with its groups' costs. anchor: what the placements that it runs are
        measured beside; None where it may run none.
        """
        op_level = task.op_level
        assert op_level is not None
        trials = None
        if anchor is not None:
            trials = Trials(anchor, self.database, self.workspace, self.registry, self.progress)
            task = replace(task, measure=trials.measure)
        self.progress.phase(f"searching, level {searcher.name}")
        found = searcher.search(task)
        if trials is not None:
            known.costs.measured += trials.measured
            known.costs.cached += trials.cached
        same = found.placement.digest == op_level.placement.digest
        return found if same else self._costed(found, known)

    def task(self, known: _Known, constraints: Constraints) -> SearchTask:
        graph = known.candidates.graph

        def offer(name: str, nodes: NodeSet) -> Sequence[Candidate]:
            if name not in known.taken or not nodes <= known.taken[name].nodes:
                return ()
            offers, _ = offers_for(Subgraph(graph, nodes), "search", self.backends[name], self.target)
            return [c for c in offers if constraints.allows(c.subgraph, name)]

        return SearchTask(
            known.candidates,
            known.costs.record_of,
            known.costs.converters(None, known.transitions),
            known.transitions,
            offer=offer,
            on_best=lambda ms: self.progress.step(f"best {ms:.3f} ms"),
        )

    def _costed(self, result: SearchResult, known: _Known) -> SearchResult:
        """The result with every group's cost: the search may have made groups that nobody had measured."""
        graph = known.candidates.graph
        groups = tuple(
            Candidate(Subgraph(graph, g.nodes), g.backend, g.variant, "search")
            for g in result.placement.groups
        )
        known.costs.add(self.costs(replace(known.candidates, candidates=groups)))
        return replace(result, placement=known.costs.priced(graph, result.placement, known.transitions))

    def comparing(self, rounds: int | None) -> Compare:
        def run(
            title: str,
            placements: Mapping[str, Placement],
            timed: Collection[str],
            *,
            thorough: bool = False,
        ) -> Comparison:
            entrants = [
                placement_entrant(name, p, self.registry, parts=name in timed)
                for name, p in placements.items()
            ]
            return compare(
                self.workspace.graph,
                entrants,
                self.target,
                self.database,
                self.workspace,
                self.progress,
                title=title,
                rounds=rounds,
                thorough=thorough,
                expected=self.workspace.expected_outputs,
            )

        return run


def _single(name: str, fallback: str, known: _Known, searcher: Searcher) -> Single:
    """What the backend makes of the graph on its own. A graph library gets it in as few groups as it takes:
    that is how it is used on its own; of what splits gain the op level knows. Only where these cannot be had
    (a whole graph may take too long to compile) it gets what it can be given.
    """
    candidates = known.candidates
    ways = [known]
    if candidates.kinds[name] is BackendKind.GRAPH:
        whole = [c for c in candidates.candidates if c.backend != name or c.origin == ALL_TAKEN]
        ways.insert(0, replace(known, candidates=replace(candidates, candidates=tuple(whole))))
    reason = None
    for way in ways:
        try:
            return Single(name, way.search(searcher, [name]).placement, alone=True)
        except PlacementError as error:
            reason = str(error)
    if name == fallback:
        return Single(name, None, True, reason)
    found: list[Placement] = []
    for way in ways:
        try:
            found.append(way.search(searcher, [name, fallback]).placement)
        except PlacementError as error:
            nobody = str(error)
    if not found:
        return Single(name, None, False, nobody)
    # As a whole, unless that leaves more to the fallback.
    placement = min(found, key=lambda p: sum(len(g.nodes) for g in p.groups if g.backend == fallback))
    return Single(name, placement, False, reason)
