"""What the database knows of a graph's candidates, looked up: nothing is built, asked or measured."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from collage_core.backend import BackendKind
from collage_core.candidates import CandidateSet, Constraints, Taken, generate_candidates
from collage_core.costs.record import CostKey, CostRecord, Policy
from collage_core.formats import device_of
from collage_core.ir import Graph, NodeSet, Subgraph
from collage_core.measuring.costing import Costs
from collage_core.measuring.in_place import KernelKey
from collage_core.measuring.ledger import default_policy, policy_for
from collage_core.measuring.libraries import SUPPORT
from collage_core.measuring.machine import Machine
from collage_core.placement import VIEW
from collage_core.search.formulate import needed_conversions

__all__ = ["KnownCosts", "look_up"]


@dataclass(frozen=True, slots=True)
class KnownCosts:
    """Candidates, and the costs of those that have any. newer: how many were measured after a given time."""

    candidates: CandidateSet
    costs: Costs
    newer: int


def look_up(
    machine: Machine, graph: Graph, constraints: Constraints | None = None, since: float = 0.0
) -> KnownCosts:
    """Of what backends offer, here and in these versions, the costs that `collect_costs` would not measure.

    A graph library takes what the database has it take. since: seconds since 1970 (`KnownCosts.newer`).
    PlacementError for a pin that nobody can keep.
    """
    looking = _LookingUp(machine, since)
    taken = {name: looking.taken(graph, name) for name in machine.of_kind(BackendKind.GRAPH)}
    candidates = generate_candidates(graph, machine.backends.values(), machine.target, constraints, taken)
    return KnownCosts(candidates, looking.costs(candidates), looking.newer)


class _LookingUp:
    def __init__(self, machine: Machine, since: float) -> None:
        self.newer = 0
        self._machine = machine
        self._since = since
        self._owners = machine.converters
        self._environment = cache(machine.environment)

    def taken(self, graph: Graph, name: str) -> Taken:
        """See `measuring.libraries`."""
        environment = self._environment(name)
        nodes = []
        for n in graph.nodes:
            structure = Subgraph(graph, NodeSet([n.id])).key
            record = self._machine.database.get(CostKey(SUPPORT, structure, "", name, environment, Policy()))
            if record is not None and record.ok:
                nodes.append(n.id)
        return Taken(NodeSet(nodes))

    def costs(self, candidates: CandidateSet) -> Costs:
        graph = candidates.graph
        costs = Costs({}, {})
        policies = {name: policy_for(b, default_policy(graph)) for name, b in self._owners.items()}

        def look_up(kind: str, what: KernelKey, device: str) -> CostRecord | None:
            structure, variant, name = what
            environment = self._environment(name, device)
            key = CostKey(kind, structure, variant, name, environment, policies[name])
            stored = self._machine.database.stored(key)
            if stored is None:
                return None
            self.newer += stored.created_at > self._since
            return stored.record

        offered = [c for c in candidates.candidates if c.backend != VIEW]
        devices = {c.kernel_key: c.variant.device for c in offered}
        for key, device in devices.items():
            if (record := look_up("kernel", key, device)) is not None:
                costs.kernels[key] = record
        usable = [
            c
            for c in candidates.candidates
            if c.backend == VIEW or ((r := costs.record_of(c)) is not None and r.ok)
        ]
        for conversion in needed_conversions(graph, usable):
            type, source, destination = conversion
            device = device_of((source, destination))
            for name in self._owners:
                what = str(type), f"{source} -> {destination}", name
                record = look_up("conversion", what, device)
                if record is not None:
                    costs.conversion_records.setdefault(conversion, {})[name] = record
        return costs
