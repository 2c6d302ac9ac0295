"""How much is rounded: what pays, within the error that is allowed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from collage_core.backend import BackendKind
from collage_core.candidates import ALL_TAKEN, Candidate
from collage_core.costs.contributions import filled_in, spread_out, squared_errors
from collage_core.costs.record import CostKey, CostRecord, Policy
from collage_core.costs.recording import reference_environment, reference_worker
from collage_core.errors import PlacementError, WorkerError
from collage_core.ir import NodeSet, Subgraph
from collage_core.measuring.bounding import Known
from collage_core.measuring.held_out import Off
from collage_core.measuring.in_place import kernel_key
from collage_core.pipeline.aim import Aim
from collage_core.pipeline.error_limit import ErrorLimit, Spent, Tried
from collage_core.pipeline.proof import Single
from collage_core.pipeline.singles import Looking, single
from collage_core.pipeline.splits import split_at
from collage_core.placement import VIEW, Placement
from collage_core.rounding import Site, sites_of
from collage_core.search.formulate import needed_conversions
from collage_core.search.penalties import Penalties
from collage_core.search.searcher import SearchResult

__all__ = ["ROUNDING", "WithinLimit"]

_SPLIT = "rounded from a place on"
"""Where such candidates come from."""

ROUNDING = "rounding"
"""Kind of the record of what rounding in each place does to a model's outputs."""

_TRIES = 5
"""So often is what was found tried on held-out inputs."""
_FIRST, _MARGIN = 0.5, 0.9
"""Of the error that is allowed, what is aimed for at first, by what was weighed on one input, where the worst
of many counts; and once it was seen what that comes to on them.
"""
_NEAR = 0.7
"""From so much of it on, no more is to be had."""
_BETWEEN, _TOLD_APART = 0.5, 1.4
"""Of what broke the limit, as it was weighed and squared, what is tried where nothing that rounds has held;
and between what held and what broke nothing is looked for that is nearer than so.
"""
_IN_A_JUMP = 0.25
"""Of the rounding that breaks a metric's limit, what is aimed for at least."""
_IF_NOTHING_IS_LEFT = 0.1
"""Of what made an answer that cannot be compared at all."""
_FURTHER, _MOST_STEPS = 8.0, 8
"""By so much the price is changed until the limit lies between two, so often at most."""
_NEAR_PRICES = 1.3
_SHARE, _LONGEST_S = 0.1, 120.0
"""Of the time, what weighing errors may take."""


class WithinLimit:
    """The op level's searches, where the outputs' error is limited: time + price x squared error is minimised
    exactly, at the lowest price whose answer holds the limit on inputs that nothing was chosen by.

    Until `begin` nothing rounds. offer: what a graph library, by name, offers for any nodes.
    """

    def __init__(
        self,
        aim: Aim,
        limit: ErrorLimit,
        known: Known,
        offer: Callable[[str, NodeSet], Sequence[Candidate]],
    ) -> None:
        self._aim, self._limit, self._known, self._offer = aim, limit, known, offer
        self._machine, self._workspace = aim.machine, aim.workspace
        self._squared: dict[Site, float] | None = None
        self._has_answered = False
        self.tried: dict[str, Tried] = {}
        """What was found on the way, by digest."""
        known.rounds = False

    def begin(self, *, is_recalled: bool) -> None:
        """Let what rounds take part. is_recalled: whether all answers are there already."""
        self._known.rounds = True
        if not is_recalled:
            # What a metric of somebody's makes of errors nobody knows: of all that might be rounded, a share.
            metric = self._limit.held_out.metric
            whole = math.sqrt(self._added_up(self._sites())) if metric else self._limit.most
            self._split((_FIRST * whole) ** 2)

    def search(self) -> SearchResult:
        """The fastest that is known to hold the limit."""
        known, most = self._known, self._limit.most
        if not known.rounds:  # nothing was found to hold it, or what was has failed as a whole
            known.penalties = None
            return self._found()
        # What is tried later is what was found at other costs, at the same price.
        metric = self._limit.held_out.metric
        aims = not self._has_answered and metric is None
        limit = (_FIRST * most) ** 2 if aims else 0.0
        result = self._within(limit) if aims else self._found()
        held: tuple[SearchResult, Penalties | None] | None = None
        weighed_held, weighed_broke = 0.0, math.inf
        for tries_left in reversed(range(_TRIES)):
            if result is None:
                break
            off, weighed = self._off(result.placement), self._squared_error_of(result.placement)
            if (tried := self.tried.get(result.placement.digest)) is not None and off.worst < math.inf:
                self.tried[result.placement.digest] = tried._replace(held_out_error=off.worst)
            error = off.of_others
            if error <= most:
                # It is what is found within all of the limit.
                weighed_held = weighed = max(weighed_held, weighed, limit)
                if held is None or _ms(result) < _ms(held[0]):
                    held = result, known.penalties
                if self._has_answered or known.penalties is None or error > _NEAR * most:
                    break
            elif error < math.inf:
                weighed_broke = min(weighed_broke, weighed)
            if not tries_left or (self._is_over() and tries_left < _TRIES - 1):
                break
            limit = self._next_limit(weighed, error)
            # Weights are off by other factors in each placement.
            if weighed_held < weighed_broke < math.inf and not weighed_held < limit < weighed_broke:
                limit = math.sqrt(weighed_held * weighed_broke) or _BETWEEN * weighed_broke
            if not limit < math.inf or weighed_held < weighed_broke < _TOLD_APART * weighed_held:
                break
            if not self._is_over():
                self._split(limit)
            result = self._within(limit)
        self._has_answered = True
        if held is None:
            allowed = f"{self._limit.most:g}"
            self._machine.progress.note(f"nothing that rounds was found to hold an error of {allowed}")
            known.rounds, known.penalties = False, None
            return self._found()
        result, known.penalties = held
        return result

    def _next_limit(self, weighed: float, error: float) -> float:
        """What is to be aimed for, a squared error as it is weighed, once that much came to this error; inf
        where nothing says so.
        """
        metric = self._limit.held_out.metric
        if not error:  # nothing that rounds was within what was aimed for
            most = (_MARGIN * self._limit.most) ** 2
            return most if metric is None and weighed < most else math.inf
        share = _MARGIN * self._limit.most / error if error < math.inf else _IF_NOTHING_IS_LEFT
        if metric is not None:  # it may jump: one sample more, or one less
            share = max(share, _IN_A_JUMP)
        return share**2 * weighed

    def _found(self) -> SearchResult:
        """The fastest at the price that is set, all of its costs measured."""
        result = self._known.search()
        if self._known.rounds and result.placement.predicted_ms is not None:
            error = math.sqrt(self._squared_error_of(result.placement))
            self.tried.setdefault(result.placement.digest, Tried(result.placement.predicted_ms, error))
        return result

    def recall(self, placement: Placement) -> None:
        """Know what the groups of an earlier answer cost, that are no candidates."""
        graph, known = self._known.candidates.graph, self._known.costs.kernels
        groups = [g for g in placement.groups if g.backend != VIEW and kernel_key(graph, g) not in known]
        self._known.ledger.cost(
            Candidate(Subgraph(graph, g.nodes), g.backend, g.variant, _SPLIT) for g in groups
        )

    def _split(self, limit: float) -> None:
        """Measure what a graph library makes of a graph that is rounded from some place on, or up to there.

        In one group it rounds everything, and group by group it is slow.
        """
        known = self._known
        for name in self._machine.of_kind(BackendKind.GRAPH):
            wholes = [c for c in known.candidates.candidates if c.backend == name and c.origin == ALL_TAKEN]
            nodes = known.candidates.graph.all_nodes
            if not any(c.is_rounded and c.subgraph.node_set == nodes for c in wholes):
                continue
            if any(self._holds(c, limit) for c in wholes if c.is_rounded):
                continue  # nothing need be exact
            ways = [
                split_at(
                    known.candidates.graph,
                    lambda nodes, name=name: self._offer(name, nodes),  # type: ignore[misc]
                    lambda c: self._holds(c, limit),
                    last=last,
                )
                for last in (True, False)
            ]
            best = max(ways, key=_most_rounded)
            if best:
                known.ledger.cost(best)
                ends = needed_conversions(known.candidates.graph, best)
                converters = [c for c in known.ledger.unknown_converters if c[0] in ends]
                known.ledger.measure_converters(known.phase, converters, whatever=True)
                there = {(c.subgraph.node_set, c.variant) for c in known.further if c.backend == name}
                known.further += tuple(c for c in best if (c.subgraph.node_set, c.variant) not in there)

    def _holds(self, candidate: Candidate, limit: float) -> bool:
        return self._added_up(candidate.rounding_sites) <= limit

    def single(self, s: Single) -> Single:
        """A backend alone, without rounding where that would break the limit, or was only guessed at."""
        if s.placement is None or not self._sites_of(s.placement):
            return s
        if not self._known.unknown_kernels(s.placement) and self.holds(s.placement):
            return s
        return single(s.backend, self._known, Looking(rounds=False))

    def holds(self, placement: Placement) -> bool:
        """Whether it holds the limit, as far as there is time to see that."""
        return self._off(placement).of_others <= self._limit.most

    def spent(self, placement: Placement) -> Spent:
        """As far as it is known; nothing is run."""
        known, held_out = self._squared, self._limit.held_out
        if known is None and (told := _squared_of(self._machine.database.get(self._key()))):
            known = filled_in(list(self._sites()), told)
        off = held_out.known_error_of(placement)
        error = None if off is None else off.worst
        metric = None if held_out.metric is None else held_out.metric.name
        tried = tuple(sorted(self.tried.values(), key=lambda t: t[:2]))
        return Spent(self._limit.most, error, len(held_out), known or {}, held_out.is_made_up, metric, tried)

    def _is_over(self) -> bool:
        """As where nothing is run any more to learn costs: what follows needs the rest."""
        return self._aim.budget.is_over(self._aim.effort.in_place_share)

    def _sites_of(self, placement: Placement) -> frozenset[Site]:
        return sites_of(self._known.candidates.graph, placement)

    def _off(self, placement: Placement) -> Off:
        """inf where there is no time to see it."""
        if not self._sites_of(placement):
            return Off(0.0, 0.0)
        return self._limit.held_out.error_of(placement, self._aim.budget.left_s())

    def _within(self, limit: float) -> SearchResult | None:
        """The best at the lowest price at which squared errors add up to no more than the limit; None where
        none was found.

        The price is looked for among guesses first: what is measured at prices that are not taken is wasted.
        """
        known = self._known
        known.penalties = None
        free = known.guess()
        price_ms = _ms(free) / limit if limit else math.inf
        if self._squared_error_of(free.placement) > limit:
            guessed = self._at_lowest_price(known.guess, limit, price_ms)
            price_ms = price_ms if guessed is None else guessed[1]
        else:
            found = self._found()
            if self._squared_error_of(found.placement) <= limit:
                return found
        best = self._at_lowest_price(self._found, limit, price_ms)
        known.penalties = None if best is None else Penalties(self._weighed(), best[1])
        return None if best is None else best[0]

    def _at_lowest_price(
        self, find: Callable[[], SearchResult], limit: float, price_ms: float
    ) -> tuple[SearchResult, float] | None:
        """What holds the limit at the lowest price, in ms of a squared error of 1, and that. price_ms: to
        begin with.
        """
        known, squared = self._known, self._weighed()
        low, high = 0.0, math.inf
        best: tuple[SearchResult, float] | None = None
        for _ in range(_MOST_STEPS):
            if not price_ms < math.inf or (low and high / low < _NEAR_PRICES):
                break
            known.penalties = Penalties(squared, price_ms)
            try:
                found = find()
            except PlacementError:  # a beam that finds nothing at these costs
                break
            if self._squared_error_of(found.placement) <= limit:
                high, best = price_ms, (found, price_ms)
            else:
                low = price_ms
            bounded = low and high < math.inf
            price_ms = math.sqrt(low * high) if bounded else low * _FURTHER if low else high / _FURTHER
        return best

    def _squared_error_of(self, placement: Placement) -> float:
        return self._added_up(self._sites_of(placement))

    def _added_up(self, sites: Iterable[Site]) -> float:
        """The squared error of all these places together."""
        return Penalties(self._weighed(), 0.0).squared_error(sites)

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


def _most_rounded(way: Sequence[Candidate]) -> int:
    """Nodes."""
    return max((len(c.subgraph.nodes) for c in way if c.is_rounded), default=0)
