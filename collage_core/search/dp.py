"""The exact search: dynamic programming over the claimed set and the codes of the values at its border (section 4.2 of the paper).

Nodes are taken in a fixed order. At the first unclaimed one, every choice is tried whose earliest node it is. Two partial placements that
claim the same nodes differ only in what their border values still owe, which `slots` turns into codes, and in which unclaimed
nodes they have already forced upstream of which live value: a group that would have to run both before and after another is
refused there. So no placement whose groups wait for each other is ever completed, and dominance keeps few states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from collage_core.errors import PlacementError
from collage_core.search.dominance import active_slacks, survivors
from collage_core.search.layout import Lane, Layout
from collage_core.search.moves import Upstream, moves_at
from collage_core.search.problem import Problem
from collage_core.search.slots import Costs, Ints

__all__ = ["Outcome", "run"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """choices: the best placement found, None when the beam lost all of them. dropped_ms: a bound on every placement that the beam gave up.

    exact: whether the beam gave up none. states: how many were kept in all.
    """

    choices: tuple[int, ...] | None
    dropped_ms: float
    exact: bool
    states: int


@dataclass
class _Arrivals:
    """Successors that reached one shape, not yet compared: flat blocks of S x C states, one of S parents by one of C choices each."""

    words: list[list[Ints]] = field(default_factory=list)
    cost_ms: list[Costs] = field(default_factory=list)
    upstream: list[Upstream] = field(default_factory=list)
    parents: list[Ints] = field(default_factory=list)
    choices: list[Ints] = field(default_factory=list)


@dataclass
class _Shape:
    """The states [S] of one claimed set, by ascending cost. upstream[S] indexes orders."""

    claimed: int
    words: list[Ints]
    cost_ms: Costs
    upstream: Ints
    orders: list[Upstream]
    parents: Ints
    choices: Ints
    first_id: int = 0

    def take(self, which: Ints) -> _Shape:
        return _Shape(
            self.claimed,
            [w[which] for w in self.words],
            self.cost_ms[which],
            self.upstream[which],
            self.orders,
            self.parents[which],
            self.choices[which],
        )


class _History:
    """Parent and choice of every state that was kept, for the way back."""

    def __init__(self) -> None:
        self._parents: list[Ints] = []
        self._choices: list[Ints] = []
        self.count = 0

    def add(self, shape: _Shape) -> None:
        shape.first_id = self.count
        self._parents.append(shape.parents)
        self._choices.append(shape.choices)
        self.count += len(shape.parents)

    def walk_back(self, state: int) -> tuple[int, ...]:
        parents, choices = np.concatenate(self._parents), np.concatenate(self._choices)
        result = []
        while parents[state] >= 0:
            result.append(int(choices[state]))
            state = int(parents[state])
        return tuple(reversed(result))


def run(problem: Problem, layout: Layout, cap: int, beam: int, left_ms: Sequence[float]) -> Outcome:
    """Walk the order. Past `cap` states at one node, only the `beam` most promising are kept, there and from there on.

    left_ms[position]: what claiming that node adds to any placement at least. Raises PlacementError where no exact step is possible.
    """
    count = len(layout.order)
    todo: list[dict[int, _Arrivals]] = [{} for _ in range(count + 1)]
    todo[0][0] = _start(layout)
    remaining_ms = np.concatenate([np.cumsum(left_ms[::-1])[::-1], [0.0]])
    history = _History()
    dropped_ms, exact = np.inf, True
    by_begin = sorted((lane for lane in layout.lanes if lane.tables.bits), key=lambda lane: lane.begin)
    entered = 0
    active: list[Lane] = []
    furthest = 0
    for position in range(count + 1):
        while entered < len(by_begin) and by_begin[entered].begin <= position:
            active.append(by_begin[entered])
            entered += 1
        active = [lane for lane in active if lane.end >= position]
        shapes = []
        for claimed, arrivals in todo[position].items():
            shape = _settle(claimed, arrivals, active, position)
            if shape is not None:
                shapes.append(shape)
        todo[position] = {}
        if shapes:
            furthest = position
        if not exact or sum(len(s.cost_ms) for s in shapes) > cap:
            bounds = [remaining_ms[position] - _claimed_ms(left_ms, position, s.claimed) for s in shapes]
            shapes, lost_ms = _narrow(shapes, bounds, beam)
            exact = exact and lost_ms == np.inf
            dropped_ms = min(dropped_ms, lost_ms)
        for shape in shapes:
            history.add(shape)
        if position < count:
            _expand(problem, layout, position, shapes, todo)
    if not shapes:
        if not exact:
            return Outcome(None, dropped_ms, False, history.count)
        raise PlacementError(
            f"no legal placement: whatever is chosen before, node {layout.order[min(furthest, count - 1)]} cannot be placed without a "
            "conversion that nobody offers, or groups that wait for each other"
        )
    return Outcome(history.walk_back(shapes[0].first_id), dropped_ms, exact, history.count)


def _start(layout: Layout) -> _Arrivals:
    words = [0] * layout.words
    cost_ms = 0.0
    for lane in layout.lanes:
        if lane.producer < 0:
            words[lane.word] |= lane.tables.arrival << lane.shift
            cost_ms += lane.tables.arrival_ms
    none = np.array([-1])
    return _Arrivals([[np.array([w]) for w in words]], [np.array([cost_ms])], [()], [none], [none])


def _expand(problem: Problem, layout: Layout, position: int, shapes: Sequence[_Shape], todo: list[dict[int, _Arrivals]]) -> None:
    """Send the successors of all states at `position` to where they arrive."""
    moves = moves_at(problem, layout, position) if shapes else []
    for shape in shapes:
        parts = _by_upstream(shape)
        for move in moves:
            if move.nodes & shape.claimed:
                continue
            claimed = shape.claimed | move.nodes
            step = (~claimed & claimed + 1).bit_length() - 1
            for upstream, ids, words, cost_ms in parts:
                after = move.upstream(shape.claimed, upstream)
                if after is None:
                    continue
                new_words, new_cost_ms = move.apply(shape.claimed, words, cost_ms)
                arrivals = todo[position + step].setdefault(claimed >> step, _Arrivals())
                arrivals.words.append(new_words)
                arrivals.cost_ms.append(new_cost_ms)
                arrivals.upstream.append(tuple((v, f >> step) for v, f in after))
                arrivals.parents.append(ids)
                arrivals.choices.append(move.choices)


def _by_upstream(shape: _Shape) -> list[tuple[Upstream, Ints, list[Ints], Costs]]:
    ids = shape.first_id + np.arange(len(shape.cost_ms))
    if len(shape.orders) == 1:
        return [(shape.orders[0], ids, shape.words, shape.cost_ms)]
    parts = []
    for i in np.unique(shape.upstream):
        of = shape.upstream == i
        parts.append((shape.orders[i], ids[of], [w[of] for w in shape.words], shape.cost_ms[of]))
    return parts


def _settle(claimed: int, arrivals: _Arrivals, active: Sequence[Lane], position: int) -> _Shape | None:
    """Merge equal states, keeping the cheapest, and drop the dominated; None if none is possible."""
    orders = list(dict.fromkeys(arrivals.upstream))
    number = {o: i for i, o in enumerate(orders)}
    cost_ms = np.concatenate(arrivals.cost_ms)
    words = [np.concatenate(w) for w in zip(*arrivals.words, strict=True)]
    sizes = np.array([len(c) for c in arrivals.cost_ms])
    block = np.repeat(np.arange(len(sizes)), sizes)
    upstream = np.array([number[o] for o in arrivals.upstream])[block]
    keep = np.lexsort((cost_ms, upstream, *words))
    keep = keep[np.isfinite(cost_ms[keep])]
    if not len(keep):
        return None
    changes = upstream[keep[1:]] != upstream[keep[:-1]]
    for w in words:
        changes |= w[keep[1:]] != w[keep[:-1]]
    keep = keep[np.concatenate([[True], changes])]
    keep = keep[np.argsort(cost_ms[keep], kind="stable")]
    if len(keep) > 1:
        alive = survivors(
            [w[keep] for w in words], cost_ms[keep], upstream[keep], orders, active_slacks(active, position, claimed)
        )
        keep = keep[alive]
    of = block[keep]
    within = keep - (np.cumsum(sizes) - sizes)[of]
    width = np.array([len(c) for c in arrivals.choices])
    parent_base = np.cumsum([0, *(len(p) for p in arrivals.parents)])[:-1]
    choice_base = np.cumsum([0, *width])[:-1]
    return _Shape(
        claimed,
        [w[keep] for w in words],
        cost_ms[keep],
        upstream[keep],
        orders,
        np.concatenate(arrivals.parents)[parent_base[of] + within // width[of]],
        np.concatenate(arrivals.choices)[choice_base[of] + within % width[of]],
    )


def _claimed_ms(left_ms: Sequence[float], position: int, claimed: int) -> float:
    return sum(left_ms[position + i] for i in range(claimed.bit_length()) if claimed >> i & 1)


def _narrow(shapes: list[_Shape], bounds_ms: Sequence[float], beam: int) -> tuple[list[_Shape], float]:
    """The `beam` states whose cost plus bound on the rest is least, and the least such sum among the others (inf if there are none)."""
    if not shapes:
        return [], np.inf
    promise = np.concatenate([s.cost_ms + b for s, b in zip(shapes, bounds_ms, strict=True)])
    if len(promise) <= beam:
        return shapes, np.inf
    best = np.argsort(promise, kind="stable")
    kept = np.zeros(len(promise), bool)
    kept[best[:beam]] = True
    result, start = [], 0
    for s in shapes:
        which = np.flatnonzero(kept[start : start + len(s.cost_ms)])
        start += len(s.cost_ms)
        if len(which):
            result.append(s.take(which))
    return result, float(promise[best[beam]])
