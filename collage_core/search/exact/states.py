"""States of the dynamic program by claimed set: arriving, compared, narrowed, remembered."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from collage_core.errors import PlacementError
from collage_core.search.exact.charges import Floats
from collage_core.search.exact.codes import Ints
from collage_core.search.exact.dominance import active_slacks, survivors
from collage_core.search.exact.moves import Upstream
from collage_core.search.exact.walk import Lane, Walk

__all__ = ["Arrivals", "History", "States", "narrow", "settle", "start"]

_Number = TypeVar("_Number", np.int64, np.float64)


@dataclass
class Arrivals:
    """Successors that reached one claimed set, not yet compared: flat blocks of S x C states, one of S
    parents by one of C choices each.
    """

    words: list[list[Ints]] = field(default_factory=list)
    cost_ms: list[Floats] = field(default_factory=list)
    upstream: list[Upstream] = field(default_factory=list)
    parents: list[Ints] = field(default_factory=list)
    choices: list[Ints] = field(default_factory=list)


@dataclass
class States:
    """The states [S] of one claimed set, by ascending cost. upstream[S] indexes orders."""

    claimed: int
    words: list[Ints]
    cost_ms: Floats
    upstream: Ints
    orders: list[Upstream]
    parents: Ints
    choices: Ints
    first_id: int = 0

    def take(self, which: Ints) -> States:
        return States(
            self.claimed,
            [w[which] for w in self.words],
            self.cost_ms[which],
            self.upstream[which],
            self.orders,
            self.parents[which],
            self.choices[which],
        )

    def upstreams(self) -> list[int]:
        """The numbers in `upstream`, each once, ascending."""
        return [0] if len(self.orders) == 1 else sorted(set(self.upstream.tolist()))

    def by_upstream(self) -> Iterator[tuple[Upstream, Ints, list[Ints], Floats]]:
        """The states that share an upstream: it, their ids, words and costs."""
        ids = self.first_id + np.arange(len(self.cost_ms))
        several = self.upstreams()
        if len(several) == 1:
            yield self.orders[several[0]], ids, self.words, self.cost_ms
            return
        for i in several:
            of = np.flatnonzero(self.upstream == i)
            yield self.orders[i], ids[of], [w[of] for w in self.words], self.cost_ms[of]


class History:
    """Parent and choice of every state that was kept, for the way back."""

    def __init__(self) -> None:
        self._parents: list[Ints] = []
        self._choices: list[Ints] = []
        self.count = 0

    def add(self, states: States) -> None:
        states.first_id = self.count
        self._parents.append(states.parents)
        self._choices.append(states.choices)
        self.count += len(states.parents)

    def walk_back(self, state: int) -> tuple[int, ...]:
        parents, choices = np.concatenate(self._parents), np.concatenate(self._choices)
        result = []
        while parents[state] >= 0:
            result.append(int(choices[state]))
            state = int(parents[state])
        return tuple(reversed(result))


def start(walk: Walk) -> Arrivals:
    """Nothing is claimed; the model inputs have arrived."""
    words = [0] * walk.words
    cost_ms = 0.0
    for v, lane in enumerate(walk.lanes):
        if lane.producer < 0:
            words[lane.word] |= lane.tables.space.arrival << lane.shift
            cost_ms += float(lane.tables.produce_ms[0, 0])
            if math.isinf(cost_ms):
                raise PlacementError(
                    f"nobody converts model input {v} into the format in which it is returned"
                )
    none = np.array([-1])
    return Arrivals([[np.array([w]) for w in words]], [np.array([cost_ms])], [()], [none], [none])


def settle(claimed: int, arrivals: Arrivals, active: Sequence[Lane], position: int) -> States | None:
    """Merge equal states, keeping the cheapest, and drop the dominated; None if none is possible."""
    orders = list(dict.fromkeys(arrivals.upstream))
    number = {o: i for i, o in enumerate(orders)}
    cost_ms = _joined(arrivals.cost_ms)
    words = [_joined(w) for w in zip(*arrivals.words, strict=True)]
    sizes = np.array([len(c) for c in arrivals.cost_ms])
    block = np.arange(len(sizes)).repeat(sizes)
    upstream = np.array([number[o] for o in arrivals.upstream])[block]
    keep = np.isfinite(cost_ms).nonzero()[0]
    if not len(keep):
        return None
    if len(keep) > 1:
        keep = _cheapest(keep, cost_ms, [upstream, *words] if len(orders) > 1 else words)
    if len(keep) > 1:
        alive = survivors(
            [w[keep] for w in words],
            cost_ms[keep],
            upstream[keep],
            orders,
            active_slacks(active, position, claimed),
        )
        keep = keep[alive]
    of = block[keep]
    within = keep - (sizes.cumsum() - sizes)[of]
    width = np.array([len(c) for c in arrivals.choices])
    height = np.array([len(p) for p in arrivals.parents])
    return States(
        claimed,
        [w[keep] for w in words],
        cost_ms[keep],
        upstream[keep],
        orders,
        _joined(arrivals.parents)[(height.cumsum() - height)[of] + within // width[of]],
        _joined(arrivals.choices)[(width.cumsum() - width)[of] + within % width[of]],
    )


def _cheapest(which: Ints, cost_ms: Floats, keys: Sequence[Ints]) -> Ints:
    """Of those `which` have equal keys the cheapest, by ascending cost."""
    keys = [k[which] for k in keys]
    order = np.lexsort((cost_ms[which], *keys))
    is_first = np.zeros(len(order), bool)
    is_first[0] = True
    for k in keys:
        ordered = k[order]
        is_first[1:] |= ordered[1:] != ordered[:-1]
    found = which[order[is_first]]
    return found[cost_ms[found].argsort(kind="stable")]


def _joined(blocks: Sequence[npt.NDArray[_Number]]) -> npt.NDArray[_Number]:
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


def narrow(frontier: list[States], bounds_ms: Sequence[float], beam: int) -> tuple[list[States], float]:
    """The `beam` states whose cost plus bound on the rest is least, and the least such sum among the others
    (inf if there are none).
    """
    if not frontier:
        return [], math.inf
    promise = np.concatenate([s.cost_ms + b for s, b in zip(frontier, bounds_ms, strict=True)])
    if len(promise) <= beam:
        return frontier, math.inf
    best = np.argsort(promise, kind="stable")
    kept = np.zeros(len(promise), bool)
    kept[best[:beam]] = True
    result, start = [], 0
    for s in frontier:
        which = np.flatnonzero(kept[start : start + len(s.cost_ms)])
        start += len(s.cost_ms)
        if len(which):
            result.append(s.take(which))
    return result, float(promise[best[beam]])
