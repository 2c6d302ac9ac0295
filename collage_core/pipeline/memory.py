"""What an optimization has found, kept so that the next one of the same finds the same and measures nothing.

Where not everything is measured, what was found depends on what was known on the way: a second search knows
more, would draw other bounds, and might measure more. So answers are recalled, in their order.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from collage_core.candidates import CandidateSet
from collage_core.costs.record import CostKey, CostRecord
from collage_core.errors import PlacementError
from collage_core.ir.digests import graph_digest
from collage_core.measuring.calibration import calibration_environment
from collage_core.measuring.costing import Costs
from collage_core.measuring.ledger import default_policy
from collage_core.pipeline.aim import Aim
from collage_core.pipeline.error_limit import Tried
from collage_core.pipeline.proof import Single
from collage_core.placement import VIEW, Placement
from collage_core.search.formulate import needed_conversions
from collage_core.search.problem import Solution
from collage_core.search.searcher import SearchResult
from collage_core.search.transitions import Transitions

__all__ = ["FOUND", "Memory", "costs_digest", "memory_key"]

FOUND = "found"
"""Kind of the key under which it is kept."""


@dataclass(slots=True)
class Memory:
    """What is recalled of an optimization."""

    searches: list[SearchResult | None] = field(default_factory=list)
    """Answers of the op level's searches, in their order; None for one that found nothing."""
    singles: tuple[Single, ...] = ()
    singles_after: tuple[Single, ...] = ()
    """Every backend alone: before anything was run in place, and after that."""
    turns: int = 0
    """How often something was run in place."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Why, by digest, of what had failed as a whole before."""
    left_out: tuple[str, ...] = ()
    """Digests of backends alone that were not compared, whatever the time."""
    out_of_time: tuple[str, ...] | None = None
    """Of others that were not, for want of time; None where it did not come to a comparison."""
    seated: tuple[str, ...] | None = None
    """Of those, and of others, who sat beside the choice in the end; None where it did not come to that."""
    costs_digest: str = ""
    """Of the costs that were known in the end (`costs_digest`); with others, there may be better answers."""
    first: Mapping[str, Placement] = field(default_factory=dict)
    """What ran at once, by label."""
    first_ms: float | None = None
    """What the fastest of that took."""
    tried: tuple[Tried, ...] = ()
    """Where an error was allowed, what was found on the way."""

    def to_record(self) -> CostRecord:
        """As the database keeps it."""
        details: dict[str, object] = {
            "costs": self.costs_digest,
            "searches": [None if s is None else _search_json(s) for s in self.searches],
            "singles": [_single_json(s) for s in self.singles],
            "failed": dict(self.failed),
            "singles_after": [_single_json(s) for s in self.singles_after],
            "turns": self.turns,
            "left_out": list(self.left_out),
            "out_of_time": None if self.out_of_time is None else list(self.out_of_time),
            "seated": None if self.seated is None else list(self.seated),
            "first": {label: p.to_json() for label, p in self.first.items()},
            "first_ms": self.first_ms,
            "tried": [list(t) for t in self.tried],
        }
        return CostRecord("ok", details=details)

    @classmethod
    def of_record(cls, record: CostRecord | None) -> Memory | None:
        """None where there is none, or one that is damaged."""
        if record is None:
            return None
        details: Mapping[str, Any] = record.details
        try:
            return cls(
                [None if told is None else _search(told) for told in details["searches"]],
                tuple(map(_single, details["singles"])),
                tuple(map(_single, details["singles_after"])),
                int(details["turns"]),
                dict(details["failed"]),
                tuple(map(str, details["left_out"])),
                None if details["out_of_time"] is None else tuple(map(str, details["out_of_time"])),
                None if details["seated"] is None else tuple(map(str, details["seated"])),
                str(details["costs"]),
                {label: Placement.from_json(told) for label, told in details["first"].items()},
                None if details["first_ms"] is None else float(details["first_ms"]),
                tuple(Tried(*told) for told in details["tried"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError, PlacementError):
            return None


def _single_json(s: Single) -> dict[str, object]:
    placement = None if s.placement is None else s.placement.to_json()
    return {"backend": s.backend, "placement": placement, "alone": s.alone, "reason": s.reason}


def _single(told: Mapping[str, Any]) -> Single:
    placement = None if told["placement"] is None else Placement.from_json(told["placement"])
    return Single(told["backend"], placement, told["alone"], told["reason"])


def _search_json(s: SearchResult) -> dict[str, object]:
    bound_ms, states = (None, None) if s.solution is None else (s.solution.lower_bound_ms, s.solution.states)
    return {"placement": s.placement.to_json(), "lower_bound_ms": bound_ms, "states": states}


def _search(told: Mapping[str, Any]) -> SearchResult:
    placement = Placement.from_json(told["placement"])
    total_ms = placement.predicted_ms or math.inf
    bound_ms = told["lower_bound_ms"]
    solution = Solution((), total_ms, placement.optimal, bound_ms, placement.method, told["states"] or 0)
    return SearchResult(placement, solution)


def costs_digest(candidates: CandidateSet, costs: Costs) -> str:
    """Of the costs of these candidates that are known, and of the conversions between them."""
    offered = {c.kernel_key for c in candidates.candidates}
    usable = [
        c for c in candidates.candidates if c.backend == VIEW or (r := costs.record_of(c)) is None or r.ok
    ]
    # A kernel that has failed since wants none any more.
    needed = needed_conversions(candidates.graph, usable)
    kernels = sorted(f"{k} {r.status} {r.median_ms}" for k, r in costs.kernels.items() if k in offered)
    conversions = sorted(
        f"{k} {b} {r.status} {r.median_ms}"
        for k, records in costs.conversion_records.items()
        if k in needed
        for b, r in records.items()
    )
    return hashlib.sha256("\n".join([*kernels, *conversions]).encode()).hexdigest()[:32]


def memory_key(aim: Aim, candidates: CandidateSet, transitions: Transitions) -> CostKey:
    """Of the graph, its inputs and all that is offered for it and where, of how much is measured and under
    what load, and of what the search goes by.
    """
    graph, machine, searcher = candidates.graph, aim.machine, aim.op_search
    effort = replace(aim.effort, budget_s=aim.budget.limit_s)  # with more time it goes on
    offered = sorted(
        f"{sorted(n.id for n in c.subgraph.nodes)} {c.kernel_key}" for c in candidates.candidates
    )
    limits = searcher.cap, searcher.beam, searcher.budget
    constants = json.dumps(asdict(transitions), sort_keys=True)
    where = str(candidates.target), aim.workspace.inputs_digest
    told = [graph_digest(graph), *where, constants, repr(limits), *offered]
    if aim.limit is not None:
        told.append(f"within {aim.limit.most} on {aim.limit.held_out.digest}")
    if aim.load is not None:
        told.append(str(aim.load))
    return CostKey(
        FOUND,
        hashlib.sha256("\n".join(told).encode()).hexdigest()[:32],
        repr(effort),
        "+".join(sorted(machine.backends)),
        calibration_environment(machine.backends, machine.target, machine.registry),
        default_policy(graph),
    )
