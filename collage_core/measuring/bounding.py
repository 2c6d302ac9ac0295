"""The op level's search where not everything is measured: branch and bound, with measurements.

What is unmeasured takes part at a bound below which it will not cost (`Estimates`). What the best placement
at these costs contains is measured, and the search asked again, until its answer contains nothing unmeasured:
no placement is better, as far as the bounds hold.

Bounds are far below what most things cost, so what comes first there is in no order. Before that the same is
done with guesses, with guesses that are a little low, and with bounds that are mostly right: where time is
over early, what is measured is what a good answer is made of. Of kinds of kernels of which little is known a
few are measured at a time: what they tell may rule out all others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from collage_core.backend import BackendKind
from collage_core.candidates import Candidate, CandidateSet
from collage_core.errors import PlacementError
from collage_core.measuring.costing import Converter, Costs
from collage_core.measuring.estimates import Estimates, Hope, as_likely
from collage_core.measuring.in_place import KernelKey, conversion_key, kernel_key
from collage_core.measuring.ledger import Ledger
from collage_core.placement import VIEW, Placement
from collage_core.search.formulate import terms_ms
from collage_core.search.penalties import Penalties
from collage_core.search.searcher import Searcher, SearchResult, SearchTask

__all__ = ["Known", "search_placement"]

_MEASURING = "measuring what the best placements would use"
"""The phase, where nobody says otherwise."""
_AT_A_TIME = 16
"""So many kernels are measured when time is over, before it is looked at whether there is an answer."""
_HOPES = ((0.6, 0.02), (0.6, 0.01), (0.6, 0.005), (0.9, 0.0), (0.8, 0.0))
"""Factors on guesses, one after the other, of kernels that this makes faster by at least such a share of the
whole. Heavy kernels come first: they take no longer to measure, and may bring the most. Then comes what
guesses are mostly off by, before what only a bound does not rule out.
"""
_NEAR = 0.9
"""Only when the bound has come so near to the best that is known, that best is asked for again."""

_Place = tuple[object, ...]
"""See `_place`."""


def search_placement(
    candidates: CandidateSet,
    costs: Costs,
    searcher: Searcher,
    backends: Sequence[str] | None = None,
    penalties: Penalties | None = None,
) -> SearchResult:
    """The best placement of measured candidates, on the backends named or on all. penalties: what rounding
    costs beside its time, which what is predicted then holds; nothing where None.

    PlacementError names a node that none of them can run.
    """
    if backends is not None:
        allowed = {*backends, VIEW}
        candidates = replace(
            candidates, candidates=tuple(c for c in candidates.candidates if c.backend in allowed)
        )
    converters = costs.converters(backends)
    return searcher.search(
        SearchTask(candidates, costs.record_of, converters, costs.transitions, penalties=penalties)
    )


@dataclass(slots=True)
class Known:
    """What the searches of one optimization search with, and learn on the way."""

    ledger: Ledger
    searcher: Searcher
    """The op level's."""
    gap: float = 0.0
    """What the best of what is measured may be above the bound, relative, when measuring ends."""
    estimates: Estimates | None = None
    """Of what is not measured; None where everything is."""
    phase: str = _MEASURING
    """In which people are told that it is measured."""
    rounds: bool = True
    """Whether what stores values rounded takes part."""
    seen_ms: dict[KernelKey, float] = field(default_factory=dict)
    """What a placement took, as a whole and in a few runs, that is one such kernel and nothing else."""
    penalties: Penalties | None = None
    """What that costs beside its time; nothing where None."""
    further: tuple[Candidate, ...] = ()
    """What takes part beside the candidates; all of it has a record."""
    is_answered: Callable[[], bool] = lambda: False
    """Whether there is an answer, and no time to try another: then nothing is measured to have one."""

    @property
    def candidates(self) -> CandidateSet:
        return self.ledger.candidates

    @property
    def costs(self) -> Costs:
        return self.ledger.costs

    @property
    def fallback(self) -> str:
        """Core's reference, which runs what others decline."""
        kinds = self.candidates.kinds.items()
        return next(name for name, kind in kinds if kind is BackendKind.REFERENCE)

    def search(self, backends: Sequence[str] | None = None) -> SearchResult:
        """The best placement, after measuring what it takes to know that; or until no more is to be measured.
        Where time is over before any is measured, one is, whatever it takes; where `is_answered` says that
        this is too late, it is what is most likely the best.

        PlacementError where there is none.
        """
        return self._in_time_alone(self._searched_for(backends))

    def search_seen(self) -> SearchResult:
        """The best placement of kernels that were seen in place and are not the whole graph. Nothing is
        measured.

        PlacementError where they are not enough for one.
        """
        seen, searched = self.costs.in_place.kernels_ms.keys(), self._searched
        every = searched.graph.all_nodes
        others = self._places_of_others(lambda key: (r := self.costs.kernels.get(key)) is not None and r.ok)
        kept = tuple(
            c
            for c in self._without_reference(others)
            if c.backend == VIEW or (c.kernel_key in seen and c.subgraph.node_set != every)
        )
        candidates = replace(searched, candidates=kept)
        return self._in_time_alone(
            search_placement(candidates, self.costs, self.searcher, penalties=self.penalties)
        )

    def _in_time_alone(self, result: SearchResult) -> SearchResult:
        """Without the penalties, where there are any, in what is predicted."""
        if self.penalties is None:
            return result
        found_ms = terms_ms(self.candidates.graph, result.placement, self.costs.transitions)
        takes_ms = math.fsum(found_ms.values())
        # It is the best at a price, and of how far from the best within a limit nothing is known.
        takes = replace(result.placement, predicted_ms=takes_ms, terms_ms=found_ms, optimal=False)
        solution = result.solution
        if solution is not None:
            solution = replace(solution, total_ms=takes_ms, optimal=False, lower_bound_ms=None)
        return replace(result, placement=takes, solution=solution)

    def _searched_for(self, backends: Sequence[str] | None) -> SearchResult:
        """With penalties, where there are any, in what is predicted."""
        if self.estimates is None:
            return self._found(backends)
        self._measure_guesses(backends)
        if not self.ledger.time_is_over:
            self._close_in(self.estimates, backends, hopeful=True)
        return self._close_in(self.estimates, backends)

    def _close_in(
        self, estimates: Estimates, backends: Sequence[str] | None, *, hopeful: bool = False
    ) -> SearchResult:
        """Until no placement can be better than the best of what is measured, as far as the bounds hold."""
        best: SearchResult | None = None
        best_ms = math.inf
        while True:
            estimates.bound(self.costs, self.ledger.unknown_converters, hopeful=hopeful)
            self._put_seen()
            try:
                bound = self._found(backends)
            finally:
                self.costs.forget_bounds()
            kernels, converters = self._unknown(bound.placement)
            if not kernels and not converters:
                return bound
            bound_ms = _bound_ms(bound)
            if bound_ms >= _NEAR * best_ms or self.ledger.time_is_over or best is None:
                best = self._measured(backends)
                best_ms = math.inf if best is None else best.placement.predicted_ms or math.inf
            if best is not None and (best_ms <= bound_ms * (1.0 + self.gap) or self.ledger.time_is_over):
                return _bounded(best, min(bound_ms, best_ms))
            whatever = best is None and self.ledger.time_is_over
            if whatever:  # without any placement that is measured there is nothing to end with
                guess = bound
                with suppress(PlacementError):  # of some nothing is guessed
                    guess = self.guess(backends)
                kernels, converters = self._unknown(guess.placement)
                if not kernels and not converters:
                    return _bounded(self._found(backends), bound_ms)
                if self.is_answered():
                    return _unproven(guess)
                kernels = kernels[:_AT_A_TIME]
            self._measure(kernels, converters, whatever, estimates.enough_ms)

    def guess(
        self,
        backends: Sequence[str] | None = None,
        allowed: Callable[[Candidate], bool] = lambda candidate: True,
        *,
        hoped_ms: Hope = as_likely,
    ) -> SearchResult:
        """What is most likely the best placement, measured or not; parts without a record have no cost.
        hoped_ms: of kernels without a record.
        """
        candidates = self._searched
        candidates = replace(candidates, candidates=tuple(filter(allowed, candidates.candidates)))
        if self.estimates is None:
            return self._in_time_alone(
                search_placement(candidates, self.costs, self.searcher, backends, self.penalties)
            )
        self.estimates.guess(self.costs, self.ledger.unknown_converters, hoped_ms)
        self._put_seen()
        try:
            found = search_placement(candidates, self.costs, self.searcher, backends, self.penalties)
        finally:
            self.costs.forget_bounds()
        guessed_ms = self._in_time_alone(found).placement.predicted_ms
        priced = self.priced(found.placement)
        is_proven = priced.optimal and not self.is_guess(priced)
        return replace(found, placement=replace(priced, predicted_ms=guessed_ms, optimal=is_proven))

    def _measure_guesses(self, backends: Sequence[str] | None) -> None:
        """Until what is most likely the best placement has been measured, or time is over. Then what would be
        the best one, were some of what is unmeasured faster than it is guessed to be.
        """
        with suppress(PlacementError):  # the search itself says which node nobody can run
            whole_ms = self._measure_guessed(backends, as_likely)
            for factor, share in _HOPES:
                self._measure_guessed(backends, partial(_hoped_ms, factor, share * whole_ms))

    def _measure_guessed(self, backends: Sequence[str] | None, hoped_ms: Hope) -> float:
        """Until the best placement at these has been measured, or time is over. It takes so many ms."""
        guessed_ms = 0.0
        while not self.ledger.time_is_over:
            guess = self.guess(backends, hoped_ms=hoped_ms).placement
            guessed_ms = guess.predicted_ms or 0.0
            if not self.measure(guess):
                break
        return guessed_ms

    def measure(
        self, placement: Placement, *, whatever: bool = False, races: bool = True, seen: bool = True
    ) -> bool:
        """What it contains that has no record, or a part of it (`Estimates.first_of`). Whether there was any,
        and time for it. whatever: all of it, even where time is over. seen: also what has been seen as a
        whole.
        races: whether what is clearly slower than another of the same nodes leaves after few runs.
        """
        if self.ledger.time_is_over and not whatever:
            return False
        kernels, converters = self._unknown(placement)
        if not seen:
            kernels = [k for k in kernels if k not in self.seen_ms]
        enough_ms = self.estimates.enough_ms if races and self.estimates is not None else lambda key: math.inf
        self._measure(kernels, converters, whatever, enough_ms)
        return bool(kernels or converters)

    def _measure(
        self,
        kernels: list[KernelKey],
        converters: list[Converter],
        whatever: bool,
        enough_ms: Callable[[KernelKey], float],
    ) -> None:
        """Those to be measured first of them, or, `whatever` the time is, all."""
        if self.estimates is not None and not whatever:
            kernels = self.estimates.first_of(kernels, self.costs)
        self.ledger.measure_kernels(self.phase, kernels, whatever=whatever, enough_ms=enough_ms)
        self.ledger.measure_converters(self.phase, converters, whatever=whatever)

    def may_run(self, placement: Placement) -> bool:
        """Whether none of its kernels is known to fail."""
        graph, records = self.candidates.graph, self.costs.kernels
        found = (records.get(kernel_key(graph, g)) for g in placement.groups if g.backend != VIEW)
        return all(record is None or record.ok for record in found)

    def unknown_kernels(self, placement: Placement) -> int:
        """How many of its kernels nobody has measured."""
        return len(self._unknown(placement)[0])

    def is_guess(self, placement: Placement) -> bool:
        """Whether it contains what nobody has measured, nor seen as a whole."""
        kernels, converters = self._unknown(placement)
        return bool(converters) or not self.seen_ms.keys() >= {*kernels}

    def priced(self, placement: Placement) -> Placement:
        """At the costs that are known now."""
        return self.costs.priced(self.candidates.graph, placement)

    def _found(self, backends: Sequence[str] | None) -> SearchResult:
        return search_placement(self._searched, self.costs, self.searcher, backends, self.penalties)

    @property
    def _searched(self) -> CandidateSet:
        """The candidates that take part."""
        if self.rounds and not self.further:
            return self.candidates
        every = (*self.candidates.candidates, *self.further)
        kept = every if self.rounds else tuple(c for c in every if not c.is_rounded)
        return replace(self.candidates, candidates=kept)

    def _measured(self, backends: Sequence[str] | None) -> SearchResult | None:
        """The best of what has been measured, or was seen to run as a whole; None where that is not enough
        for a placement. Nor is what needs the reference where another backend has not been measured yet.
        """
        others = self._places_of_others(self.ledger.unknown_kernels.__contains__)
        candidates = replace(self._searched, candidates=self._without_reference(others))
        self._put_seen()
        try:
            return search_placement(candidates, self.costs, self.searcher, backends, self.penalties)
        except PlacementError:
            return None
        finally:
            self.costs.forget_bounds()

    def _places_of_others(self, allowed: Callable[[KernelKey], bool]) -> set[_Place]:
        """Where kernels of other backends than the reference may stand, of those that are `allowed`."""
        searched, kinds = self._searched, self.candidates.kinds
        return {
            _place(c)
            for c in searched.candidates
            if c.backend != VIEW and kinds[c.backend] is not BackendKind.REFERENCE and allowed(c.kernel_key)
        }

    def _without_reference(self, places: Collection[_Place]) -> tuple[Candidate, ...]:
        """The candidates that take part, but none of the reference at these places."""
        kinds = self.candidates.kinds
        return tuple(
            c
            for c in self._searched.candidates
            if c.backend == VIEW or kinds[c.backend] is not BackendKind.REFERENCE or _place(c) not in places
        )

    def _put_seen(self) -> None:
        """In place of estimates, what was seen of kernels that have no record."""
        unknown = self.ledger.unknown_kernels
        self.costs.kernel_bounds_ms |= {k: ms for k, ms in self.seen_ms.items() if k in unknown}

    def _unknown(self, placement: Placement) -> tuple[list[KernelKey], list[Converter]]:
        graph = self.candidates.graph
        kernels = [kernel_key(graph, g) for g in placement.groups if g.backend != VIEW]
        converters = [(conversion_key(graph, c), c.backend) for c in placement.conversions]
        unknown_kernels, unknown_converters = self.ledger.unknown_kernels, self.ledger.unknown_converters
        return (
            [k for k in kernels if k in unknown_kernels],
            [c for c in converters if c in unknown_converters],
        )


def _hoped_ms(factor: float, least_gain_ms: float, likely_ms: float) -> float:
    """`factor` times what a kernel most likely costs, where that gains so much."""
    return factor * likely_ms if (1.0 - factor) * likely_ms >= least_gain_ms else likely_ms


def _place(candidate: Candidate) -> _Place:
    """The nodes, and the formats at their border."""
    return candidate.subgraph.node_set, candidate.variant.inputs, candidate.variant.outputs


def _bound_ms(result: SearchResult) -> float:
    """Below which no placement is, at these costs."""
    solution = result.solution
    bound_ms = None if solution is None else solution.lower_bound_ms
    return 0.0 if bound_ms is None else bound_ms


def _unproven(guess: SearchResult) -> SearchResult:
    """What nobody has measured is no proof of anything."""
    solution = guess.solution
    if solution is not None:
        solution = replace(solution, optimal=False, lower_bound_ms=None)
    return replace(guess, placement=replace(guess.placement, optimal=False), solution=solution)


def _bounded(result: SearchResult, bound_ms: float) -> SearchResult:
    """The best that is measured, and how far it may be from the best there is."""
    solution = result.solution
    if solution is None:
        return replace(result, placement=replace(result.placement, optimal=False))
    is_optimal = solution.optimal and bound_ms >= solution.total_ms
    solution = replace(solution, optimal=is_optimal, lower_bound_ms=bound_ms)
    return replace(result, placement=replace(result.placement, optimal=is_optimal), solution=solution)
