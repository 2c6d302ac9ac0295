"""Candidates of all backends; graph libraries are first asked, each in a worker, node by node and once per
structure, what they take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from collage_core.backend import Backend, BackendKind
from collage_core.costs.database import CostDatabase
from collage_core.costs.fingerprint import environment_of
from collage_core.costs.limits import candidate_limit_s, worker_memory_bytes
from collage_core.costs.record import UNAVAILABLE, CostKey, CostRecord, Policy
from collage_core.costs.reported import Reported, lost, reported
from collage_core.costs.support import SupportJob, run_support
from collage_core.device import Target
from collage_core.errors import Refusal
from collage_core.ir import Graph, Node, NodeSet, Subgraph
from collage_core.pipeline.progress import Progress
from collage_core.pipeline.workspace import Workspace
from collage_core.search.candidates import (
    Candidate,
    CandidateSet,
    Constraints,
    Taken,
    generate_candidates,
    offers_for,
    require_offers,
)

__all__ = ["SUPPORT", "find_candidates", "is_usable", "offering"]

SUPPORT = "support"
"""Kind of the key under which an answer is kept."""


def find_candidates(
    graph: Graph,
    backends: Mapping[str, Backend],
    target: Target,
    database: CostDatabase,
    workspace: Workspace,
    progress: Progress,
    constraints: Constraints | None = None,
    executor: Executor | None = None,
    plugins: Sequence[str] = (),
) -> tuple[CandidateSet, dict[str, Taken]]:
    """All candidates, and what each graph library takes; the libraries' answers are kept in the database.

    A library that cannot be asked takes nothing; the reason is noted. PlacementError for a node that nobody
    offers to run; see also `generate_candidates`.
    """
    asking = _Asking(graph, target, database, workspace, progress, executor, tuple(plugins))
    taken = {name: asking.taken(b) for name, b in backends.items() if b.info().kind is BackendKind.GRAPH}
    candidates = generate_candidates(graph, backends.values(), target, constraints, taken)
    require_offers(candidates)
    return candidates, taken


def offering(
    graph: Graph,
    backends: Mapping[str, Backend],
    target: Target,
    taken: Mapping[str, Taken],
    constraints: Constraints,
) -> Callable[[str, NodeSet], Sequence[Candidate]]:
    """What a graph library, by name, offers for any nodes of those that it takes."""

    def offer(name: str, nodes: NodeSet) -> Sequence[Candidate]:
        if name not in taken or not nodes <= taken[name].nodes:
            return ()
        offers, _ = offers_for(Subgraph(graph, nodes), "search", backends[name], target)
        return [c for c in offers if constraints.allows(c.subgraph, name)]

    return offer


def is_usable(backend: Backend, target: Target) -> bool:
    """Whether a process for it could be started: of what nobody has measured it is not known yet."""
    try:
        backend.environment(target)
    except Exception:  # a plugin may raise anything; measuring its kernels tells of it
        return False
    return True


_TOLD = ("crashed", "timeout", UNAVAILABLE)


@dataclass(frozen=True, slots=True)
class _Asking:
    graph: Graph
    target: Target
    database: CostDatabase
    workspace: Workspace
    progress: Progress
    executor: Executor | None
    plugins: tuple[str, ...]

    def taken(self, backend: Backend) -> Taken:
        records = self._answers(backend)
        refused = {n.id: r for n in self.graph.nodes if not (r := records[n.id]).ok}
        for reason in sorted({str(r.reason) for r in refused.values() if r.status in _TOLD}):
            self.progress.note(f"{backend.name}: {reason}")
        return Taken(
            NodeSet(n.id for n in self.graph.nodes if n.id not in refused),
            tuple(Refusal(_reason(r), self.graph.node(i).name) for i, r in refused.items()),
        )

    def _answers(self, backend: Backend) -> dict[int, CostRecord]:
        """By node id; nodes of one structure are asked about once."""
        environment = environment_of(backend, self.target)
        structures: dict[str, list[Node]] = {}
        for n in self.graph.nodes:
            structures.setdefault(Subgraph(self.graph, NodeSet([n.id])).key, []).append(n)
        keys = {s: CostKey(SUPPORT, s, "", backend.name, environment, Policy()) for s in structures}
        known = {s: record for s, key in keys.items() if (record := self.database.get(key)) is not None}
        unknown = [s for s in structures if s not in known]
        if unknown:
            self.progress.phase(f"asking {backend.name} what it takes")
            answers = self._ask(backend, environment, [structures[s][0] for s in unknown])
            for s, record in zip(unknown, answers.result, strict=True):
                known[s] = record
                if record.status != UNAVAILABLE:  # the next run asks again
                    self.database.put(replace(keys[s], environment=answers.environment), record)
        return {n.id: known[s] for s, nodes in structures.items() for n in nodes}

    def _ask(
        self, backend: Backend, environment: Mapping[str, str], nodes: Sequence[Node]
    ) -> Reported[list[CostRecord]]:
        job = SupportJob(
            self.workspace.graph_folder,
            backend.name,
            self.target,
            tuple((n.id,) for n in nodes),
            self.plugins,
            candidate_limit_s(),
            worker_memory_bytes(),
        )
        if self.executor is None:
            return Reported(environment, run_support(job, self.progress.note))
        try:
            return self.executor.submit(reported, run_support, job).result()
        except Exception as error:  # an executor may lose a job, and raise anything; it costs this library
            return Reported(environment, [lost(error)] * len(nodes))


def _reason(record: CostRecord) -> str:
    return str(record.reason) if record.status == "declined" else f"{record.status}: {record.reason}"
