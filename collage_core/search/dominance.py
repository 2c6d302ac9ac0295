"""Which states can be forgotten because another one of the same shape is at least as good, whatever comes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from collage_core.search.layout import Lane
from collage_core.search.moves import Upstream
from collage_core.search.slots import Costs, Ints

__all__ = ["active_slacks", "survivors"]

_BLOCK = 128
"""Killers compared with all others at a time: bounds the memory of a comparison."""

Slack = tuple[Lane, Costs]


def active_slacks(lanes: Sequence[Lane], position: int, claimed: int) -> list[Slack]:
    """For each value of `lanes` that has a code in states of this shape, its lane and what one code can cost beyond another."""
    result = []
    for lane in lanes:
        readers = lane.consumers >> position
        left = (readers & ~claimed).bit_count()
        if lane.producer < position or claimed >> lane.producer - position & 1:
            if left and lane.tables.bits:
                result.append((lane, lane.tables.live_slack_ms(left)))
        elif readers & claimed or lane.consumers & (1 << position) - 1:
            result.append((lane, lane.tables.pending_slack_ms))
    return result


def survivors(
    words: Sequence[Ints], cost_ms: Costs, upstream: Ints, orders: Sequence[Upstream], slacks: Sequence[Slack]
) -> npt.NDArray[np.bool_]:
    """Mask [S] of the states that no other state replaces.

    State s replaces t if its cost and all that it may cost beyond t are together no more than t's cost, and if it forbids nothing that
    t allows: its `orders[upstream[s]]` must be contained in t's, value by value. Costs ascend; ties go to the first.
    """
    count = len(cost_ms)
    alive = np.ones(count, bool)
    varying = []
    for lane, slack_ms in slacks:
        codes = (words[lane.word] >> lane.shift) & lane.mask
        if (codes != codes[0]).any():
            varying.append((codes, slack_ms))
    contained = _containment(orders)
    start = 0
    while start < count:
        killers = start + np.flatnonzero(alive[start : start + 4 * _BLOCK])[:_BLOCK]
        if not len(killers):
            start += 4 * _BLOCK
            continue
        victims = killers[0] + np.flatnonzero(alive[killers[0] :])
        bound = np.repeat(cost_ms[killers][:, None], len(victims), axis=1)
        for codes, slack_ms in varying:
            bound += slack_ms[codes[killers][:, None], codes[victims]]
        kills = (bound <= cost_ms[victims]) & (killers[:, None] < victims)
        if len(orders) > 1:
            kills &= contained[upstream[killers][:, None], upstream[victims]]
        alive[victims[kills.any(axis=0)]] = False
        start = int(killers[-1]) + 1
    return alive


def _containment(orders: Sequence[Upstream]) -> npt.NDArray[np.bool_]:
    """[i, j]: whether each value's set in orders[i] is contained in its set in orders[j]."""
    maps = [dict(o) for o in orders]
    return np.array([[all(not f & ~b.get(v, 0) for v, f in a.items()) for b in maps] for a in maps])
