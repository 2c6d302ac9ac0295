"""The exact search: dynamic programming over the claimed set and the codes of the values at its border
(section 4.2 of the paper).

Nodes are taken in a fixed order. At the first unclaimed one, every choice is tried whose earliest node it is.
Two partial placements that claim the same nodes differ only in what their border values still owe, which
`codes` turns into numbers, and in which unclaimed nodes they have already forced upstream of which live
value: a group that would have to run both before and after another is refused there. So no placement whose
groups wait for each other is ever completed, and dominance keeps few states.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collage_core.errors import PlacementError
from collage_core.search.exact.moves import moves_at
from collage_core.search.exact.states import Arrivals, History, States, narrow, settle, start
from collage_core.search.exact.walk import Lane, Walk
from collage_core.search.problem import Problem

__all__ = ["Outcome", "run"]

_SET_WEIGHT = 50
"""A claimed set takes as much time as so many states, whatever the number of its own."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """choices: the best placement found, None when the beam lost all of them. dropped_ms: a bound on every
    placement that the beam gave up.

    exact: whether the beam gave up none. states: how many were kept in all.
    """

    choices: tuple[int, ...] | None
    dropped_ms: float
    exact: bool
    states: int


def run(
    problem: Problem, walk: Walk, left_ms: Sequence[float], *, cap: int, budget: int, beam: int
) -> Outcome:
    """Walk the order. Past `cap` states at one node, or `budget` in all, only the `beam` most promising are
    kept at each node, there and from there on. A claimed set counts as 50 states more.

    left_ms[position]: what claiming that node adds to any placement at least. Raises PlacementError where
    there is no legal placement.
    """
    count = len(walk.order)
    todo: list[dict[int, Arrivals]] = [{} for _ in range(count + 1)]
    todo[0][0] = start(walk)
    remaining_ms = np.concatenate([np.cumsum(left_ms[::-1])[::-1], [0.0]])
    history = History()
    dropped_ms, exact, spent = math.inf, True, 0
    by_begin = sorted((lane for lane in walk.lanes if lane.tables.space.bits), key=lambda lane: lane.begin)
    entered = 0
    active: list[Lane] = []
    furthest = 0
    for position in range(count + 1):
        while entered < len(by_begin) and by_begin[entered].begin <= position:
            active.append(by_begin[entered])
            entered += 1
        active = [lane for lane in active if lane.end >= position]
        frontier = []
        for claimed, arrivals in todo[position].items():
            states = settle(claimed, arrivals, active, position)
            if states is not None:
                frontier.append(states)
        todo[position] = {}
        if frontier:
            furthest = position
        found = sum(len(s.cost_ms) + _SET_WEIGHT * len(s.upstreams()) for s in frontier)
        spent += found
        if not exact or found > cap or spent > budget:
            bounds = [remaining_ms[position] - _claimed_ms(left_ms, position, s.claimed) for s in frontier]
            frontier, lost_ms = narrow(frontier, bounds, beam)
            exact = exact and lost_ms == math.inf
            dropped_ms = min(dropped_ms, lost_ms)
        for states in frontier:
            history.add(states)
        if position < count:
            _expand(problem, walk, position, frontier, todo)
    if not frontier:
        if not exact:
            return Outcome(None, dropped_ms, False, history.count)
        raise PlacementError(
            f"no legal placement: whatever is chosen before, node {walk.order[furthest]} cannot be placed "
            "without a conversion that nobody offers or that failed, or groups that wait for each other"
        )
    return Outcome(history.walk_back(frontier[0].first_id), dropped_ms, exact, history.count)


def _expand(
    problem: Problem,
    walk: Walk,
    position: int,
    frontier: Sequence[States],
    todo: list[dict[int, Arrivals]],
) -> None:
    """Send the successors of all states at `position` to where they arrive."""
    moves = moves_at(problem, walk, position) if frontier else []
    for states in frontier:
        parts = list(states.by_upstream())
        for move in moves:
            if move.nodes & states.claimed:
                continue
            claimed = states.claimed | move.nodes
            step = (~claimed & claimed + 1).bit_length() - 1
            for upstream, ids, words, cost_ms in parts:
                after = move.upstream(states.claimed, upstream)
                if after is None:
                    continue
                new_words, new_cost_ms = move.apply(states.claimed, words, cost_ms)
                arrivals = todo[position + step].setdefault(claimed >> step, Arrivals())
                arrivals.words.append(new_words)
                arrivals.cost_ms.append(new_cost_ms)
                arrivals.upstream.append(tuple((v, f >> step) for v, f in after))
                arrivals.parents.append(ids)
                arrivals.choices.append(move.choices)


def _claimed_ms(left_ms: Sequence[float], position: int, claimed: int) -> float:
    return sum(left_ms[position + i] for i in range(claimed.bit_length()) if claimed >> i & 1)
