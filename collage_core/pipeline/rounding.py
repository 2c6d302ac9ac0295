"""How much is rounded: what pays, within the error that is allowed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Any

from collage_core.costs.contributions import filled_in, spread_out, squared_errors
from collage_core.costs.record import CostKey, CostRecord, Policy
from collage_core.costs.recording import reference_environment, reference_worker
from collage_core.errors import PlacementError, WorkerError
from collage_core.measuring.bounding import Known
from collage_core.pipeline.aim import Aim
from collage_core.pipeline.error_limit import ErrorLimit, Spent
from collage_core.pipeline.proof import Single
from collage_core.pipeline.singles import Looking, single
from collage_core.placement import Placement
from collage_core.rounding import Site, sites_of
from collage_core.search.penalties import Penalties
from collage_core.search.searcher import SearchResult

__all__ = ["ROUNDING", "WithinLimit"]

ROUNDING = "rounding"
"""Kind of the record of what rounding in each place does to a model's outputs."""

_TRIES = 5
"""So often is what was found tried on held-out inputs."""
_MARGIN = 0.9
"""Of the error that is allowed, what is aimed for: what adds up in theory does so about."""
_NEAR = 0.7
"""From so much of it on, no more is to be had."""
_IF_NOTHING_IS_LEFT = 0.1
"""Of what made an answer that cannot be compared at all."""
_FURTHER, _MOST_STEPS = 8.0, 12
"""By so much the price is changed until the limit lies between two, so often at most."""
_RAISED, _RAISES = 2.0, 5
"""By so much it is raised, so often at most, where what is found breaks a limit that what was guessed holds."""
_NEAR_PRICES = 1.3
_SHARE, _LONGEST_S = 0.1, 120.0
"""Of the time, what weighing errors may take."""


class WithinLimit:
    """The op level's searches, where the outputs' error is limited: time + price x squared error is minimised
    exactly, at the lowest price whose answer holds the limit on inputs that nothing was chosen by.

    Until `begin` nothing rounds.
    """

    def __init__(self, aim: Aim, limit: ErrorLimit, known: Known) -> None:
        self._aim, self._limit, self._known = aim, limit, known
        self._machine, self._workspace = aim.machine, aim.workspace
        self._squared: dict[Site, float] | None = None
        self._has_answered = False
        known.rounds = False

    def begin(self) -> None:
        """Let what rounds take part."""
        self._known.rounds = True

    def search(self) -> SearchResult:
        """The fastest that is known to hold the limit."""
        known, most = self._known, self._limit.most
        if not known.rounds:  # nothing was found to hold it, or what was has failed as a whole
            known.penalties = None
            return known.search()
        # What is tried later is what was found at other costs, at the same price.
        result = known.search() if self._has_answered else self._within((_MARGIN * most) ** 2)
        held: tuple[SearchResult, Penalties | None] | None = None
        seen = set()
        for _ in range(_TRIES):
            if result is None or result.placement.digest in seen:
                break
            seen.add(result.placement.digest)
            error = self._error_of(result.placement)
            if error <= most:
                if held is None or _ms(result) < _ms(held[0]):
                    held = result, known.penalties
                if self._has_answered or known.penalties is None or error > _NEAR * most or not error:
                    break
            if self._is_over():
                break
            share = _MARGIN * most / error if error < math.inf else _IF_NOTHING_IS_LEFT
            result = self._within(share**2 * self._squared_error_of(result.placement))
        self._has_answered = True
        if held is None:
            self._machine.progress.note(f"nothing that rounds was found to hold an error of {most:g}")
            known.rounds, known.penalties = False, None
            return known.search()
        result, known.penalties = held
        return result

    def single(self, s: Single) -> Single:
        """A backend alone, without rounding where that would break the limit, or was only guessed at."""
        if s.placement is None or not self._sites_of(s.placement):
            return s
        if not self._known.unknown_kernels(s.placement) and self.holds(s.placement):
            return s
        return single(s.backend, self._known, Looking(rounds=False))

    def holds(self, placement: Placement) -> bool:
        """Whether it holds the limit, as far as there is time to see that."""
        return self._error_of(placement) <= self._limit.most

    def spent(self, placement: Placement) -> Spent:
        """As far as it is known; nothing is run."""
        known, held_out = self._squared, self._limit.held_out
        if known is None and (told := _squared_of(self._machine.database.get(self._key()))):
            known = filled_in(list(self._sites()), told)
        error = held_out.known_error_of(placement)
        return Spent(self._limit.most, error, len(held_out), known or {}, held_out.is_made_up)

    def _is_over(self) -> bool:
        """As where nothing is run any more to learn costs: what follows needs the rest."""
        return self._aim.budget.is_over(self._aim.effort.in_place_share)

    def _sites_of(self, placement: Placement) -> frozenset[Site]:
        return sites_of(self._known.candidates.graph, placement)

    def _error_of(self, placement: Placement) -> float:
        """inf where there is no time to see it."""
        if not self._sites_of(placement):
            return 0.0
        held_out, left_s = self._limit.held_out, self._aim.budget.left_s()
        known = held_out.known_error_of(placement)
        if known is None and left_s > 0.0:
            self._machine.progress.phase("running held-out inputs")
            known = held_out.error_of(placement, left_s)
        return math.inf if known is None else known

    def _within(self, limit: float) -> SearchResult | None:
        """The best at the lowest price at which squared errors add up to no more than the limit; None where
        none was found.

        The price is looked for among guesses, for what is measured at prices that are not taken is wasted.
        """
        known, squared = self._known, self._weighed()
        price_ms = self._guessed_price(limit)
        for _ in range(_RAISES):
            known.penalties = Penalties(squared, price_ms) if price_ms else None
            try:
                found = known.search()
            except PlacementError:  # a beam that finds nothing at these costs
                return None
            if self._squared_error_of(found.placement) <= limit:
                return found
            price_ms = _RAISED * (price_ms or _ms(found) / limit if limit else math.inf)
            if not price_ms < math.inf or self._is_over():
                return None
        return None

    def _guessed_price(self, limit: float) -> float:
        """In ms of a squared error of 1: the lowest at which what is guessed to be best holds the limit, 0
        where that is so without any.
        """
        known, squared = self._known, self._weighed()
        known.penalties = None
        free = known.guess()
        if self._squared_error_of(free.placement) <= limit or not limit:
            return 0.0
        low, high = 0.0, math.inf
        price_ms = _ms(free) / limit
        for _ in range(_MOST_STEPS):
            known.penalties = Penalties(squared, price_ms)
            holds = self._squared_error_of(known.guess().placement) <= limit
            low, high = (low, price_ms) if holds else (price_ms, high)
            bounded = low and high < math.inf
            if bounded and high / low < _NEAR_PRICES:
                break
            price_ms = math.sqrt(low * high) if bounded else low * _FURTHER if low else high / _FURTHER
        return high if high < math.inf else low * _FURTHER

    def _squared_error_of(self, placement: Placement) -> float:
        """As the errors of its places add up."""
        return Penalties(self._weighed(), 0.0).squared_error(self._sites_of(placement))

    def _weighed(self) -> dict[Site, float]:
        """By place, what rounding there does alone: known from before, or measured while there is time."""
        if self._squared is None:
            limit_s = min(_SHARE * (self._aim.budget.limit_s or math.inf), _LONGEST_S)
            sites = list(self._sites())
            record = self._machine.database.get(self._key())
            known = _squared_of(record)
            left = [site for site in spread_out(sites) if site not in known]
            if left and (record is None or limit_s > _limit_of(record)):
                known |= self._measured(left, limit_s)
                told = [[value, dtype, e] for (value, dtype), e in known.items()]
                details: dict[str, object] = {"squared_errors": told, "limit_s": limit_s}
                self._machine.database.put(self._key(), CostRecord("ok", details=details))
            self._squared = filled_in(sites, known)
        return self._squared

    def _measured(self, sites: list[Site], limit_s: float) -> dict[Site, float]:
        self._machine.progress.phase("weighing what rounding does")
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
        return CostKey(ROUNDING, structure, "", "reference", reference_environment(), Policy())


def _squared_of(record: CostRecord | None) -> dict[Site, float]:
    told: Any = () if record is None else record.details.get("squared_errors", ())
    return {(value, dtype): squared_error for value, dtype, squared_error in told}


def _limit_of(record: CostRecord) -> float:
    told: Any = record.details.get("limit_s", 0.0)
    return float(told)


def _ms(result: SearchResult) -> float:
    return math.inf if result.placement.predicted_ms is None else result.placement.predicted_ms
