"""How much is rounded: what pays, within the error that is allowed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from collage_core.costs.contributions import filled_in, spread_out, squared_errors
from collage_core.costs.record import CostKey, CostRecord, Policy
from collage_core.costs.recording import reference_worker
from collage_core.errors import WorkerError
from collage_core.measuring.bounding import Known
from collage_core.measuring.held_out import HeldOut
from collage_core.measuring.machine import Machine
from collage_core.measuring.workspace import Workspace
from collage_core.pipeline.budget import Budget
from collage_core.pipeline.original import original_environment
from collage_core.pipeline.proof import Single
from collage_core.pipeline.singles import Looking, single
from collage_core.placement import Placement
from collage_core.rounding import Site, sites_of
from collage_core.search.penalties import Penalties
from collage_core.search.searcher import SearchResult

__all__ = ["ROUNDING", "ErrorLimit", "Spent", "WithinLimit"]

ROUNDING = "rounding"
"""Kind of the record of what rounding in each place does to a model's outputs."""

_TRIES = 5
"""So often is what was found tried on held-out inputs, and searched for anew."""
_MARGIN = 0.9
"""Of the error that is allowed, what is aimed for: what adds up in theory does so about."""
_NEAR = 0.7
"""From so much of it on, no more is to be had."""
_IF_NOTHING_IS_LEFT = 0.1
"""Of what made an answer that cannot be compared at all."""
_FURTHER, _MOST_STEPS = 8.0, 8
"""By so much the price is changed until the limit lies between two, so often at most."""
_NEAR_PRICES = 1.3
_SHARE, _LONGEST_S = 0.1, 120.0
"""Of the time, what weighing errors may take."""


@dataclass(frozen=True, slots=True)
class ErrorLimit:
    """most: max|difference| / max|expected| of any output, against the reference. held_out: where that is
    looked at.
    """

    most: float
    held_out: HeldOut


@dataclass(frozen=True, slots=True)
class Spent:
    """What is known of a placement's error. most: what was allowed. error: on the worst of the inputs that it
    was chosen by and of `samples` that were held out, None where nothing is rounded or it was not run on
    them. squared_errors: by place, what rounding there does alone; {} where it was not asked.
    """

    most: float
    error: float | None
    samples: int
    squared_errors: Mapping[Site, float]


class WithinLimit:
    """The op level's searches, where the outputs' error is limited: time + price x squared error is minimised
    exactly, at the lowest price whose answer holds the limit on inputs that nothing was chosen by.
    """

    def __init__(
        self, machine: Machine, workspace: Workspace, known: Known, limit: ErrorLimit, budget: Budget
    ) -> None:
        self._machine, self._workspace, self._known = machine, workspace, known
        self._limit, self._budget = limit, budget
        self._squared: dict[Site, float] | None = None
        self._has_answered = False
        known.rounds = False  # until it is known how much may be

    def begin(self) -> None:
        """Let what rounds take part."""
        self._known.rounds = True

    def search(self) -> SearchResult:
        """The fastest that is known to hold the limit."""
        known, most = self._known, self._limit.most
        result = known.search()
        held: tuple[SearchResult, Penalties | None] | None = None
        seen = set()
        for _ in range(_TRIES):
            if not known.rounds or result.placement.digest in seen:
                break
            seen.add(result.placement.digest)
            error = self._error_of(result.placement)
            if error <= most:
                if held is None or _ms(result) < _ms(held[0]):
                    held = result, known.penalties
                # What is tried later is what was found at other costs, at the same price.
                if self._has_answered or known.penalties is None or error > _NEAR * most or not error:
                    break
            share = _MARGIN * most / error if error < math.inf else _IF_NOTHING_IS_LEFT
            result = self._cheapest_within(result, share)
        self._has_answered = True
        if held is None:
            self._machine.progress.note(
                f"nothing that rounds was found to hold an error of {most:g}: nothing does"
            )
            known.rounds, known.penalties = False, None
            return known.search()
        result, known.penalties = held
        return result

    def single(self, s: Single) -> Single:
        """A backend alone, without rounding where that would break the limit, or where it is only guessed."""
        if s.placement is None or (self._is_measured(s.placement) and self.holds(s.placement)):
            return s
        return single(s.backend, self._known, Looking(math.inf, 1, rounds=False))

    def holds(self, placement: Placement) -> bool:
        """Whether it holds the limit."""
        return self._error_of(placement) <= self._limit.most

    def spent(self, placement: Placement) -> Spent:
        """As far as it is known; nothing is run."""
        squared = self._squared
        if squared is None:
            squared = _squared_of(self._machine.database.get(self._key()))
        error = self._limit.held_out.known_error_of(placement)
        return Spent(self._limit.most, error, len(self._limit.held_out), squared)

    def _is_measured(self, placement: Placement) -> bool:
        return not self._known.unknown_kernels(placement)

    def _error_of(self, placement: Placement) -> float:
        if not sites_of(self._known.candidates.graph, placement):
            return 0.0
        known = self._limit.held_out.known_error_of(placement)
        if known is not None:
            return known
        self._machine.progress.phase("running held-out inputs")
        return self._limit.held_out.error_of(placement)

    def _cheapest_within(self, result: SearchResult, share: float) -> SearchResult:
        """The fastest of those whose errors add up to no more than that share of what this one's do."""
        known, squared = self._known, self._weighed()
        graph = known.candidates.graph
        free = Penalties(squared, 0.0)
        limit = share**2 * free.squared_error(sites_of(graph, result.placement))
        low, high = 0.0, math.inf
        best: tuple[SearchResult, Penalties] | None = None
        price_ms = _ms(result) / limit if limit else math.inf
        for _ in range(_MOST_STEPS):
            if not price_ms < math.inf or (low and high / low < _NEAR_PRICES):
                break
            known.penalties = penalties = Penalties(squared, price_ms)
            found = known.search()
            if penalties.squared_error(sites_of(graph, found.placement)) <= limit:
                high, best = price_ms, (found, penalties)
            else:
                low = price_ms
            bounded = low and high < math.inf
            price_ms = math.sqrt(low * high) if bounded else low * _FURTHER if low else high / _FURTHER
        if best is None:
            known.rounds, known.penalties = False, None
            return known.search()
        result, known.penalties = best
        return result

    def _weighed(self) -> dict[Site, float]:
        """By place, what rounding there does alone: known from before, or measured while there is time."""
        if self._squared is None:
            sites = list(self._sites())
            known = _squared_of(self._machine.database.get(self._key()))
            left = [site for site in spread_out(sites) if site not in known]
            if left:
                known |= self._measured(left)
                told = [[value, dtype, e] for (value, dtype), e in known.items()]
                self._machine.database.put(self._key(), CostRecord("ok", details={"squared_errors": told}))
            self._squared = filled_in(sites, known)
        return self._squared

    def _measured(self, sites: list[Site]) -> dict[Site, float]:
        self._machine.progress.phase("weighing what rounding does")
        limit_s = min(_SHARE * (self._budget.limit_s or math.inf), self._budget.left_s(), _LONGEST_S)
        folder, recording = self._workspace.graph_folder, self._workspace.recording
        try:
            with reference_worker() as worker:
                return squared_errors(worker, folder, recording.directory, sites, limit_s)
        except WorkerError as error:
            self._machine.progress.note(f"what rounding does cannot be weighed: {error}")
            return {}

    def _sites(self) -> Iterator[Site]:
        """Where a candidate may round, in the order of the graph."""
        graph = self._known.candidates.graph
        found = frozenset().union(*(c.rounding_sites for c in self._known.candidates.candidates))
        first = {v: i for i, n in reversed(list(enumerate(graph.nodes))) for v in n.inputs if v}
        made = {v: i for i, n in enumerate(graph.nodes) for v in n.outputs if v}
        yield from sorted(found, key=lambda site: (made.get(site[0], first.get(site[0], 0)), site))

    def _key(self) -> CostKey:
        facts = [self._workspace.graph_digest, self._workspace.inputs_digest]
        structure = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]
        return CostKey(ROUNDING, structure, "", "reference", original_environment(), Policy())


def _squared_of(record: CostRecord | None) -> dict[Site, float]:
    told: Any = () if record is None else record.details.get("squared_errors", ())
    return {(value, dtype): squared_error for value, dtype, squared_error in told}


def _ms(result: SearchResult) -> float:
    return math.inf if result.placement.predicted_ms is None else result.placement.predicted_ms
