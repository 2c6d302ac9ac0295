"""One step of the dynamic program: what it costs, in every state at once, to claim a set of nodes by any of
its choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collage_core.search.cost import group_constant_ms
from collage_core.search.exact.charges import Floats
from collage_core.search.exact.codes import Ints
from collage_core.search.exact.walk import Lane, Walk
from collage_core.search.problem import Choice, Problem

__all__ = ["Move", "Upstream", "moves_at"]

Upstream = tuple[tuple[int, int], ...]
"""Per live value (ascending) the unclaimed positions known to lie upstream of it, as a bitmask; values
without any are left out.
"""


@dataclass(frozen=True, slots=True)
class _Touch:
    """A value at the border of a move, relative to the position of the move: bit i of a mask is that position
    + i.

    signature[C]: index of each choice's signature in the value's tables. earlier: whether positions before
    this one read it.
    """

    value: int
    lane: Lane
    signature: Ints
    producer: int
    consumers: int
    earlier: bool

    def untouched(self, claimed: int) -> bool:
        """Whether no reader is claimed yet; the code of a value that is not live is then 0."""
        return not self.earlier and not self.consumers & claimed

    def codes(self, words: Sequence[Ints]) -> Ints:
        return (words[self.lane.word] >> self.lane.shift) & self.lane.mask


class Move:
    """A node set (bitmask relative to its first position) and the choices [C] for it that are worth
    trying.
    """

    def __init__(
        self,
        nodes: int,
        choices: Ints,
        cost_ms: Floats,
        reads: Sequence[_Touch],
        writes: Sequence[_Touch],
        words: int,
    ) -> None:
        self.nodes = nodes
        self.choices = choices
        self._cost_ms = cost_ms
        self._reads = reads
        self._writes = writes
        self._keep = [-1] * words
        for touch in (*reads, *writes):
            self._keep[touch.lane.word] &= ~(touch.lane.mask << touch.lane.shift)
        self._tables: dict[tuple[int, bool], tuple[Floats | None, Ints]] = {}

    def upstream(self, claimed: int, upstream: Upstream) -> Upstream | None:
        """What lies upstream of the live values once the move is made (still relative to its position), or
        None if it closes a knot.
        """
        before = dict(upstream)
        above = unclaimed = 0
        for touch in self._reads:
            above |= before.get(touch.value, 0)
            unclaimed |= touch.producer & ~claimed
        if above & self.nodes:
            return None
        above |= unclaimed
        if not (above or before):
            return ()
        after = {v: (f & ~self.nodes) | above if f & self.nodes else f for v, f in before.items()}
        claimed |= self.nodes
        for touch in self._reads:
            if not touch.consumers & ~claimed:
                after.pop(touch.value, None)
        for touch in self._writes:
            if above and touch.consumers & ~claimed:
                after[touch.value] = above
        return tuple(sorted((v, f) for v, f in after.items() if f))

    def apply(self, claimed: int, words: Sequence[Ints], cost_ms: Floats) -> tuple[list[Ints], Floats]:
        """words: per word [S]; cost_ms [S]. Returns the same for all S x C successors, flat; cost inf where
        one is impossible.
        """
        cost = cost_ms[:, None] + self._cost_ms
        after = [
            np.repeat((w & k)[:, None], len(self.choices), axis=1)
            for w, k in zip(words, self._keep, strict=True)
        ]
        claimed_after = claimed | self.nodes
        for i, touch in enumerate(self._reads):
            live = not touch.producer & ~claimed
            charge, code = self._reading(i, live)
            row = 0 if not live and touch.untouched(claimed) else touch.codes(words)
            if charge is not None:
                cost += charge[row]
            if not live or touch.consumers & ~claimed_after:
                after[touch.lane.word] |= code[row]
        for i, touch in enumerate(self._writes):
            charge, code = self._writing(i)
            row = 0 if touch.untouched(claimed) else touch.codes(words)
            cost += charge[row]
            if touch.consumers & ~claimed_after:
                after[touch.lane.word] |= code[row]
        return [w.ravel() for w in after], cost.ravel()

    def _reading(self, i: int, live: bool) -> tuple[Floats | None, Ints]:
        """[codes, C] charge and shifted successor for the reader of value i; a pending value charges nothing
        yet.
        """
        found = self._tables.get((i, live))
        if found is None:
            touch = self._reads[i]
            tables = touch.lane.tables
            charge = tables.consume_ms[:, touch.signature] if live else None
            code = (tables.space.consumed if live else tables.space.needed)[:, touch.signature]
            found = self._tables[i, live] = charge, code << touch.lane.shift
        return found

    def _writing(self, i: int) -> tuple[Floats, Ints]:
        key = len(self._reads) + i, True
        found = self._tables.get(key)
        if found is None:
            touch = self._writes[i]
            tables = touch.lane.tables
            found = self._tables[key] = (
                tables.produce_ms[:, touch.signature],
                tables.space.produced[:, touch.signature] << touch.lane.shift,
            )
        charge, code = found
        assert charge is not None
        return charge, code


def moves_at(problem: Problem, walk: Walk, position: int) -> list[Move]:
    """The moves whose earliest node is at `position`."""
    return [
        _move(problem, walk, position, nodes, choices) for nodes, choices in walk.groups[position].items()
    ]


def _move(problem: Problem, walk: Walk, position: int, nodes: int, indices: list[int]) -> Move:
    choices = [problem.choices[c] for c in indices]
    cost_ms = np.array([c.cost_ms + group_constant_ms(problem, c) for c in choices])
    reads: list[tuple[int, Ints]] = []
    writes: list[tuple[int, Ints]] = []
    for v in choices[0].reads:
        index = walk.lanes[v].readings
        reads.append((v, np.array([index[c.reads[v], c.backend] for c in choices])))
    for v in _wanted(problem, choices[0]):
        index = walk.lanes[v].writings
        writes.append((v, np.array([index[c.writes[v], c.backend] for c in choices])))
    if len(choices) > 1:
        worth = _worth_trying(walk, cost_ms, reads, writes)
        cost_ms = cost_ms[worth]
        indices = [indices[i] for i in worth]
        reads = [(v, s[worth]) for v, s in reads]
        writes = [(v, s[worth]) for v, s in writes]
    return Move(
        nodes,
        np.array(indices),
        cost_ms,
        [_touch(walk, position, v, s) for v, s in reads],
        [_touch(walk, position, v, s) for v, s in writes],
        walk.words,
    )


def _wanted(problem: Problem, choice: Choice) -> list[int]:
    """What a choice writes, without the values that nobody outside it reads."""
    return [
        v
        for v in choice.writes
        if problem.values[v].output_format is not None
        or any(not choice.nodes >> n & 1 for n in problem.values[v].consumers)
    ]


def _worth_trying(
    walk: Walk, cost_ms: Floats, reads: list[tuple[int, Ints]], writes: list[tuple[int, Ints]]
) -> Ints:
    """Leave out the choices that another one of the same nodes replaces at no loss, whatever surrounds
    them.
    """
    order = cost_ms.argsort(kind="stable")
    cost_ms = cost_ms[order]
    bound = cost_ms[:, None].repeat(len(order), axis=1)
    for v, s in reads:
        signature = s[order]
        bound += walk.lanes[v].tables.reading_slack_ms.take(signature, axis=0).take(signature, axis=1)
    for v, s in writes:
        signature = s[order]
        bound += walk.lanes[v].tables.writing_slack_ms.take(signature, axis=0).take(signature, axis=1)
    later = np.arange(len(order))[:, None] < np.arange(len(order))
    replaced = ((bound <= cost_ms) & later).any(axis=0)
    return order[~replaced]


def _touch(walk: Walk, position: int, v: int, signature: Ints) -> _Touch:
    lane = walk.lanes[v]
    producer = 1 << lane.producer - position if lane.producer >= position else 0
    earlier = lane.consumers & (1 << position) - 1 != 0
    return _Touch(v, lane, signature, producer, lane.consumers >> position, earlier)
