"""Candidates of all backends; graph libraries are first asked, each in a worker, node by node and once per
structure, what they take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from collage_core.backend import BackendKind
from collage_core.candidates import (
    Candidate,
    CandidateSet,
    Constraints,
    Taken,
    generate_candidates,
    offers_for,
    require_offers,
)
from collage_core.costs.record import UNAVAILABLE, CostKey, CostRecord, Policy
from collage_core.errors import Refusal
from collage_core.ir import Graph, Node, NodeSet, Subgraph
from collage_core.measuring.machine import Machine
from collage_core.measuring.workspace import Workspace

__all__ = ["SUPPORT", "find_candidates", "offering"]

SUPPORT = "support"
"""Kind of the key under which an answer is kept."""


def find_candidates(
    machine: Machine,
    workspace: Workspace,
    constraints: Constraints | None = None,
    *,
    tells: bool = True,
) -> tuple[CandidateSet, dict[str, Taken]]:
    """All candidates for the workspace's graph, and what each graph library takes of it; the libraries'
    answers are kept.

    A library that cannot be asked takes nothing; the reason is noted. tells: whether it is noted, too, who
    failed to say what it offers. PlacementError for a node that nobody offers to run; see also
    `generate_candidates`.
    """
    asking = _Asking(machine, workspace)
    taken = {name: asking.taken(name) for name in machine.of_kind(BackendKind.GRAPH)}
    backends = machine.backends.values()
    machine.progress.phase("finding candidates")
    candidates = generate_candidates(workspace.graph, backends, machine.target, constraints, taken)
    for name, refusals in candidates.refusals.items() if tells else ():
        if faults := [str(r) for r in refusals if r.is_fault]:
            more = f", and {len(faults) - 1} more" if faults[1:] else ""
            machine.progress.note(f"{faults[0]}{more} {machine.remedy(name)}")
    require_offers(candidates)
    return candidates, taken


def offering(
    machine: Machine, graph: Graph, taken: Mapping[str, Taken], constraints: Constraints
) -> Callable[[str, NodeSet], Sequence[Candidate]]:
    """What a graph library, by name, offers for any nodes of those that it takes."""

    kept = constraints.on(graph)

    def offer(name: str, nodes: NodeSet) -> Sequence[Candidate]:
        if name not in taken or not nodes <= taken[name].nodes:
            return ()
        offers, _ = offers_for(Subgraph(graph, nodes), "search", machine.backends[name], machine.target)
        return [c for c in offers if kept.allows(c.subgraph, name, c.variant)]

    return offer


_TOLD = ("crashed", "failed", "timeout", UNAVAILABLE)


@dataclass(frozen=True, slots=True)
class _Asking:
    machine: Machine
    workspace: Workspace

    def taken(self, name: str) -> Taken:
        graph = self.workspace.graph
        records = self._answers(name)
        refused = {n.id: r for n in graph.nodes if not (r := records[n.id]).ok}
        for reason in sorted({str(r.reason) for r in refused.values() if r.status in _TOLD}):
            self.machine.progress.note(f"{name}: {reason} {self.machine.remedy(name)}")
        return Taken(
            NodeSet(n.id for n in graph.nodes if n.id not in refused),
            tuple(Refusal(_reason(r), graph.node(i).name) for i, r in refused.items()),
        )

    def _answers(self, name: str) -> dict[int, CostRecord]:
        """By node id; nodes of one structure are asked about once."""
        graph, machine = self.workspace.graph, self.machine
        environment = machine.environment(name)
        structures: dict[str, list[Node]] = {}
        for n in graph.nodes:
            structures.setdefault(Subgraph(graph, NodeSet([n.id])).key, []).append(n)
        keys = {s: CostKey(SUPPORT, s, "", name, environment, Policy()) for s in structures}
        known = {s: record for s, key in keys.items() if (record := machine.database.get(key)) is not None}
        unknown = [s for s in structures if s not in known]
        if unknown:
            machine.progress.phase(f"asking {name} what it takes")
            answers = machine.ask(name, self.workspace, [structures[s][0] for s in unknown])
            for s, record in zip(unknown, answers.result, strict=True):
                known[s] = record
                if record.status != UNAVAILABLE:  # the next run asks again
                    machine.database.put(replace(keys[s], environment=answers.environment), record)
        return {n.id: known[s] for s, nodes in structures.items() for n in nodes}


def _reason(record: CostRecord) -> str:
    return str(record.reason) if record.status == "declined" else f"{record.status}: {record.reason}"
