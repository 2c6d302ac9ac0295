"""What each backend makes of the graph on its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from collage_core.backend import BackendKind
from collage_core.candidates import ALL_TAKEN, Candidate
from collage_core.errors import PlacementError
from collage_core.measuring.bounding import Known
from collage_core.pipeline.proof import Single
from collage_core.placement import Placement

__all__ = ["Looking", "far_of", "measure_singles", "priced", "single", "singles_beside"]

_NEAR = 1.5
"""A library that is guessed to take so many times as long as the mix is not measured any further."""
_NEAR_AT_FIRST = 1.1
"""The same before the search, whose mix has better use for the time."""
_LOOKS = 2
"""So often what is guessed of a library is measured, and guessed anew."""


@dataclass(frozen=True, slots=True)
class Looking:
    """How much is measured of what a backend is guessed to do best alone, and guessed again.

    near_ms: what is guessed to take longer is not measured. looks: how often it is done. time_is_over: asked
    before each look, which then has whatever time it takes; None where the ledger says so. rounds: whether
    what stores values rounded takes part.
    """

    near_ms: float = 0.0
    looks: int = _LOOKS
    time_is_over: Callable[[], bool] | None = None
    rounds: bool = True


def single(name: str, known: Known, looking: Looking | None = None) -> Single:
    """What the backend makes of the graph on its own. A graph library gets it in as few groups as it takes:
    that is how it is used on its own; of what splits gain the op level knows. Only where these cannot be had
    (a whole graph may take too long to compile) it gets what it can be given.

    looking: nothing is measured where None.
    """
    looking = looking or Looking()
    fallback = known.fallback
    ways: list[str | None] = [None]
    if known.candidates.kinds[name] is BackendKind.GRAPH:
        ways.insert(0, ALL_TAKEN)
    reason = None
    for origin in ways:
        try:
            return Single(name, _best(known, [name], origin, looking), alone=True)
        except PlacementError as error:
            reason = str(error)
    if name == fallback:
        return Single(name, None, True, reason)
    found: list[Placement] = []
    for origin in ways:
        try:
            found.append(_best(known, [name, fallback], origin, looking))
        except PlacementError as error:
            nobody = str(error)
    if not found:
        return Single(name, None, False, nobody)
    # As a whole, unless that leaves more to the fallback.
    placement = min(found, key=lambda p: sum(len(g.nodes) for g in p.groups if g.backend == fallback))
    return Single(name, placement, False, reason)


def measure_singles(names: Sequence[str], known: Known) -> None:
    """Before the search: what each that comes near is guessed to do best, while there is time.

    A mix is proven against that, and mostly made of it. Graph libraries come first, where they take the
    whole: that is one kernel. What is guessed of their pieces begins with it.
    """
    if known.estimates is not None and not known.ledger.time_is_over:
        for name in names:
            if known.candidates.kinds[name] is BackendKind.GRAPH:
                with suppress(PlacementError):  # it does not take it all
                    _best(known, [name], ALL_TAKEN, Looking(math.inf, 1))
        with suppress(PlacementError):  # the search itself says which node nobody can run
            singles_beside(known.guess().placement, names, known, looks=1, near=_NEAR_AT_FIRST)


def singles_beside(
    mix: Placement, names: Sequence[str], known: Known, looks: int = _LOOKS, near: float = _NEAR
) -> tuple[Single, ...]:
    """Of each backend. What is guessed to take `near` times as long as the mix is not measured further."""
    near_ms = near * (math.inf if mix.predicted_ms is None else mix.predicted_ms)
    return tuple(single(name, known, Looking(near_ms, looks)) for name in names)


def priced(single: Single, known: Known) -> Single:
    """At the costs that are known now; what was guessed of the whole stays where a part has no record."""
    if single.placement is None:
        return single
    placement = known.priced(single.placement)
    if placement.predicted_ms is None:
        placement = replace(placement, predicted_ms=single.placement.predicted_ms)
    return replace(single, placement=placement)


def far_of(singles: Iterable[Single], mix: Placement, far: float) -> set[str]:
    """Digests of those that are predicted to take `far` times as long as the mix, or more."""
    far_ms = far * (mix.predicted_ms or math.inf)
    placements = [s.placement for s in singles if s.placement is not None]
    return {p.digest for p in placements if (p.predicted_ms or 0.0) >= far_ms}


def _best(known: Known, backends: Sequence[str], origin: str | None, looking: Looking) -> Placement:
    """Of the first of the backends, with the help of the others. origin: of its only candidates that take
    part, None for all.
    """
    name, looks, time_is_over = backends[0], looking.looks, looking.time_is_over

    def allowed(candidate: Candidate) -> bool:
        if candidate.is_rounded and not looking.rounds:
            return False
        return origin is None or candidate.backend != name or candidate.origin == origin

    placement = known.guess(backends, allowed).placement
    while looks:
        guessed_ms = math.inf if placement.predicted_ms is None else placement.predicted_ms
        if guessed_ms > looking.near_ms or (time_is_over and time_is_over()):
            break
        if not known.measure(placement, whatever=time_is_over is not None, seen=False):
            break
        # What holds a kernel that fails was no look, nor is what is measured in part.
        looks -= known.may_run(placement) and not known.unknown_kernels(placement)
        placement = known.guess(backends, allowed).placement
    return placement
