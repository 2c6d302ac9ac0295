"""The graph-level search of the paper (section 4.3): which groups are better handed to a library that
optimises across kernels, found by evolution, with the machine itself as the judge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from collage_core.backend import BackendKind
from collage_core.candidates import Candidate, connected_groups
from collage_core.costs.record import CostRecord
from collage_core.errors import PlacementError, Refusal
from collage_core.ir import NodeSet
from collage_core.ir.views import is_view
from collage_core.placement import VIEW, Placement
from collage_core.search.evolution import Evolution, Evolved, Fitness, Genome, evolve
from collage_core.search.op_level import OpLevelSearch
from collage_core.search.searcher import SearchResult, SearchTask

__all__ = ["GraphLevelSearch"]

_HOPELESS = 20.0
"""What is predicted to be this many times slower than the op level is not run: kept groups alone say enough.
"""


class GraphLevelSearch:
    """One digit for each group that the op level makes without graph libraries: 0 keeps it, k hands it to the
    k-th graph library, which gets neighbouring groups as one as far as that is legal. Seeded with
    what the op level found with all backends and with everything on each of the libraries.

    What a genome stands for is placed exactly: formats, conversions and order are the op level's answer for
    the groups kept and handed over.
    """

    name = "graph"

    def __init__(self, settings: Evolution | None = None) -> None:
        self.settings = settings or Evolution()

    def search(self, task: SearchTask) -> SearchResult:
        """The fastest placement measured; the op level's where none is faster beyond the spread, or where
        nothing else can be tried, which the history then says. PlacementError where the op level finds none.
        """
        op_level = task.op_level or OpLevelSearch().search(task)
        kinds = task.candidates.kinds
        libraries = [name for name, kind in kinds.items() if kind is BackendKind.GRAPH]
        if task.measure is None or not libraries:
            why = "no graph library takes part" if task.measure else "nothing may be measured"
            return replace(op_level, history={"stopped_by": why})
        try:
            start = _fitness(task.measure([op_level.placement])[0])
            space = _Space(task, libraries, op_level.placement)
        except KeyboardInterrupt:  # as in the middle of it: what there is, is kept
            return replace(op_level, history={"stopped_by": "interrupted"})
        evolved = evolve(
            len(space.units),
            len(libraries) + 1,
            space.seeds(),
            _Judge(task, space, start).evaluate,
            settings=self.settings,
            seed=task.seed,
            budget_s=task.budget_s,
        )
        history = _history(evolved, space, start)
        if evolved.best is None or evolved.fitness is None or not evolved.fitness.beats(start):
            return replace(op_level, history=history)
        return SearchResult(space.placed(evolved.best), None, history)


class _Space:
    """What genomes stand for. units: node ids of the groups that digits are about, in an executable order, so
    that neighbouring digits are mostly neighbouring groups.
    """

    def __init__(self, task: SearchTask, libraries: Sequence[str], op_level: Placement) -> None:
        self.libraries = libraries
        self._task = task
        self._graph = graph = task.candidates.graph
        self._op_level = op_level
        base = self._without_libraries() or op_level
        self.units = [g.nodes for g in base.groups if g.backend != VIEW]
        unit_of = {i: NodeSet(unit) for unit in self.units for i in unit}
        self._kept = [
            c
            for c in task.candidates.candidates
            if c.backend == VIEW
            or (
                (base is op_level or c.backend not in libraries)
                and c.subgraph.node_set <= unit_of.get(c.subgraph.nodes[0].id, NodeSet())
            )
        ]
        self._offers: dict[tuple[str, NodeSet], Sequence[Candidate]] = {}
        self._takes = [
            NodeSet(n.id for n in graph.nodes if self._offered(name, NodeSet([n.id]))) for name in libraries
        ]
        self._placed: dict[Genome, Placement | Refusal] = {}

    def _without_libraries(self) -> Placement | None:
        rest = tuple(c for c in self._task.candidates.candidates if c.backend not in self.libraries)
        candidates = replace(self._task.candidates, candidates=rest)
        try:
            return OpLevelSearch().search(replace(self._task, candidates=candidates)).placement
        except PlacementError:  # some operator runs on a graph library only
            return None

    def seeds(self) -> list[Genome]:
        """The op level's choice, everything kept, and everything on each library."""
        label = {name: k for k, name in enumerate(self.libraries, 1)}
        chosen = {i: label.get(g.backend, 0) for g in self._op_level.groups for i in g.nodes}
        op_level = tuple(Counter(chosen[i] for i in unit).most_common(1)[0][0] for unit in self.units)
        uniform = [(k,) * len(self.units) for k in range(len(self.libraries) + 1)]
        return list(dict.fromkeys([op_level, *uniform]))

    def placed(self, genome: Genome) -> Placement:
        """The placement of a genome that has one."""
        placement = self.place(genome)
        if isinstance(placement, Refusal):
            raise PlacementError(str(placement))
        return placement

    def place(self, genome: Genome) -> Placement | Refusal:
        """The placement that a genome stands for, or why there is none."""
        if genome not in self._placed:
            self._placed[genome] = self._place(genome)
        return self._placed[genome]

    def _place(self, genome: Genome) -> Placement | Refusal:
        handed_over = NodeSet()
        offered: list[Candidate] = []
        for label, groups in connected_groups(self._graph, self._labels(genome)).items():
            for nodes in groups:
                offers = self._offered(self.libraries[label - 1], nodes)
                if not offers:
                    return Refusal(f"{self.libraries[label - 1]} declines a group of {len(nodes)} operators")
                offered += offers
                handed_over = handed_over | nodes
        kept = [c for c in self._kept if c.subgraph.node_set.isdisjoint(handed_over)]
        candidates = replace(self._task.candidates, candidates=(*kept, *offered))
        task = replace(self._task, candidates=candidates, cost_of=self._cost_of)
        try:
            placement = OpLevelSearch().search(task).placement
        except PlacementError as error:
            return Refusal(str(error))
        limit_ms = _HOPELESS * (self._op_level.predicted_ms or 0.0)
        if (kept_ms := placement.predicted_ms or 0.0) > limit_ms:
            return Refusal(f"what it keeps is predicted to take {kept_ms:.3g} ms")
        return replace(placement, method="evolution", optimal=False)

    def _labels(self, genome: Genome) -> dict[int, int]:
        """By node id, of the nodes that go to a library. Views go along where they stand between others that
        do, or between them and the model's inputs and outputs: anywhere else they are free.
        """
        graph = self._graph
        labels = {
            i: label
            for unit, label in zip(self.units, genome, strict=True)
            for i in unit
            if label and i in self._takes[label - 1]
        }
        computed = {i for unit in self.units for i in unit}
        views = [n for n in graph.nodes if n.id not in computed and is_view(graph, n)]
        sources: dict[int, int | None] = {}
        for n in views:
            producer = graph.producer(n.inputs[0])
            if producer is None:
                sources[n.id] = None  # a model input, which goes with whoever reads it
            else:
                sources[n.id] = sources.get(producer.id, labels.get(producer.id, 0))
        sinks: dict[int, set[int]] = {}
        for n in reversed(views):
            readers = graph.successors(n.id)
            sinks[n.id] = set().union(*(sinks.get(r.id, {labels.get(r.id, 0)}) for r in readers))
        for n in views:
            source, ends = sources[n.id], sinks[n.id]
            fits = ends if source is None else {source} & ends if ends else {source}
            if len(fits) == 1 and (label := min(fits)) and n.id in self._takes[label - 1]:
                labels[n.id] = label
        return labels

    def _offered(self, library: str, nodes: NodeSet) -> Sequence[Candidate]:
        if (library, nodes) not in self._offers:
            self._offers[library, nodes] = self._task.offer(library, nodes)
        return self._offers[library, nodes]

    def _cost_of(self, candidate: Candidate) -> CostRecord | None:
        """Of groups handed over what is known, and else nothing: they are measured with all the rest."""
        known = self._task.cost_of(candidate)
        if known is None and candidate.backend in self.libraries:
            return CostRecord("ok", 0.0, 0.0)
        return known


class _Judge:
    """Genomes' fitness: each placement is measured once, whichever genomes stand for it."""

    def __init__(self, task: SearchTask, space: _Space, op_level: Fitness) -> None:
        self._task = task
        self._space = space
        self._known: dict[str, Fitness] = {}
        self._best_ms = op_level.median_ms

    def evaluate(self, genomes: Sequence[Genome]) -> Iterator[Fitness]:
        assert self._task.measure is not None
        placements = [self._space.place(g) for g in genomes]
        new = {p.digest: p for p in placements if isinstance(p, Placement) and p.digest not in self._known}
        for digest, record in zip(new, self._task.measure(list(new.values())), strict=True):
            self._known[digest] = _fitness(record)
            self._tell(record)
        for placement in placements:
            if isinstance(placement, Refusal):
                yield Fitness(None, reason=str(placement))
            else:
                known = self._known[placement.digest]
                yield known if new.pop(placement.digest, None) else replace(known, seconds=0.0)

    def _tell(self, record: CostRecord) -> None:
        if record.ok and record.median_ms is not None:
            self._best_ms = min(self._best_ms or record.median_ms, record.median_ms)
        if self._best_ms is not None:
            self._task.on_best(self._best_ms)


def _fitness(record: CostRecord) -> Fitness:
    if not record.ok or record.median_ms is None:
        return Fitness(None, 0.0, record.seconds, f"{record.status}: {record.reason}")
    return Fitness(record.median_ms, record.uncertainty_ms, record.seconds)


def _history(evolved: Evolved, space: _Space, op_level: Fitness) -> Mapping[str, Any]:
    """Everything that the paper's Figure 10 needs: what was tried when, and how fast it was."""
    return {
        "op_level_ms": op_level.median_ms,
        "best_ms": evolved.fitness.median_ms if evolved.fitness else None,
        "stopped_by": evolved.stopped_by,
        "seed": evolved.seed,
        "settings": asdict(evolved.settings),
        "libraries": list(space.libraries),
        "units": [list(unit) for unit in space.units],
        "evaluations": [{**asdict(e), "genome": "".join(map(str, e.genome))} for e in evolved.history],
    }
