"""Which states can be forgotten: another one of the same claimed set is at least as good, whatever comes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collage_core.search.exact.charges import Floats
from collage_core.search.exact.codes import Bools, Ints
from collage_core.search.exact.moves import Upstream
from collage_core.search.exact.walk import Lane

__all__ = ["active_slacks", "survivors"]

_PAIRWISE = 192
"""Up to so many states are compared with each other; more are compared on a grid."""
_LARGEST_GRID = 1 << 22
_LARGEST_JOINT_AXIS = 96

Slack = tuple[Lane, Floats]


@dataclass(frozen=True, slots=True)
class _Axis:
    """One thing in which states differ: code [S] of 0..K-1, and slack_ms [K, K], what code s can still cost
    beyond code t.
    """

    codes: Ints
    slack_ms: Floats


def active_slacks(lanes: Sequence[Lane], position: int, claimed: int) -> list[Slack]:
    """For each value of `lanes` that has a code in states of this claimed set: its lane, and what one code
    can cost beyond another.
    """
    result = []
    for lane in lanes:
        readers = lane.consumers >> position
        left = (readers & ~claimed).bit_count()
        if lane.producer < position or claimed >> lane.producer - position & 1:
            if left:
                result.append((lane, lane.tables.live_slack_ms(left)))
        elif readers & claimed or lane.consumers & (1 << position) - 1:
            result.append((lane, lane.tables.pending_slack_ms))
    return result


def survivors(
    words: Sequence[Ints],
    cost_ms: Floats,
    upstream: Ints,
    orders: Sequence[Upstream],
    slacks: Sequence[Slack],
) -> Bools:
    """Mask [S] of the states that no other state replaces.

    State s replaces t if its cost and all that it may cost beyond t are together no more than t's cost, and
    if it forbids nothing that t allows: its `orders[upstream[s]]` must be contained in t's, value by value.
    The states are distinct; costs ascend.
    """
    axes = []
    for lane, slack_ms in slacks:
        codes = (words[lane.word] >> lane.shift) & lane.mask
        if (codes != codes[0]).any():
            axes.append(_Axis(codes, slack_ms))
    if len(orders) > 1:
        axes.append(_Axis(upstream, np.where(_containment(orders), 0.0, math.inf)))
    alive = np.ones(len(cost_ms), bool)
    if len(cost_ms) > _PAIRWISE:
        joint = _joined([_compact(axis) for axis in axes])
        if math.prod(len(a.slack_ms) for a in joint) <= _LARGEST_GRID:
            alive = _undercut_nowhere(cost_ms, joint)
        else:
            alive = _against_the_cheapest(cost_ms, axes)
    left = np.flatnonzero(alive)
    if len(left) <= _PAIRWISE:
        alive[left] = _against_the_cheapest(cost_ms[left], [_Axis(a.codes[left], a.slack_ms) for a in axes])
    return alive


def _against_the_cheapest(cost_ms: Floats, axes: Sequence[_Axis]) -> Bools:
    """Compare all states with the first, cheapest ones. Of two that replace each other the first stays."""
    count = len(cost_ms)
    killers = min(count, _PAIRWISE)
    bound = cost_ms[:killers, None].repeat(count, axis=1)
    for axis in axes:
        # Row by row, then column by column: several times as fast as both at once.
        bound += axis.slack_ms.take(axis.codes[:killers], axis=0).take(axis.codes, axis=1)
    later = np.arange(killers)[:, None] < np.arange(count)
    return ~np.asarray(((bound <= cost_ms) & later).any(axis=0))


def _undercut_nowhere(cost_ms: Floats, axes: Sequence[_Axis]) -> Bools:
    """Compare all states with all. Slack adds up over the axes, so the least cost + slack is found axis by
    axis.

    States that replace each other at equal cost all stay.
    """
    sizes = [len(axis.slack_ms) for axis in axes]
    where = np.ravel_multi_index([axis.codes for axis in axes], sizes)
    least = np.full(math.prod(sizes), math.inf)
    least[where] = cost_ms
    outer = 1
    for axis, size in zip(axes, sizes, strict=True):
        before = least.reshape(outer, size, -1)
        after = before.copy()
        for s in range(size):
            np.minimum(after, before[:, s : s + 1] + axis.slack_ms[s][:, None], out=after)
        least = after.ravel()
        outer *= size
    return np.asarray(least[where] >= cost_ms)


def _compact(axis: _Axis) -> _Axis:
    """The same with only the codes that occur."""
    present, codes = _renumbered(axis.codes)
    return _Axis(codes, axis.slack_ms[present[:, None], present])


def _renumbered(codes: Ints) -> tuple[Ints, Ints]:
    """The codes that occur, ascending, and the place of each code among them: as `np.unique`, without
    sorting, for codes are small.
    """
    occurs = np.bincount(codes) > 0
    return occurs.nonzero()[0], (occurs.cumsum() - 1)[codes]


def _joined(axes: Sequence[_Axis]) -> list[_Axis]:
    """Make one axis of those whose codes go together (the pending operands of a join), so that the grid is
    not mostly empty.
    """
    result: list[_Axis] = []
    for axis in axes:
        for i, other in enumerate(result):
            size = len(axis.slack_ms)
            together, codes = _renumbered(other.codes * size + axis.codes)
            if 2 * len(together) <= size * len(other.slack_ms) and len(together) <= _LARGEST_JOINT_AXIS:
                first, second = np.divmod(together, size)
                slack_ms = other.slack_ms[first[:, None], first] + axis.slack_ms[second[:, None], second]
                result[i] = _Axis(codes, slack_ms)
                break
        else:
            result.append(axis)
    return result


def _containment(orders: Sequence[Upstream]) -> Bools:
    """[i, j]: whether each value's set in orders[i] is contained in its set in orders[j]."""
    maps = [dict(o) for o in orders]
    return np.array([[all(not f & ~b.get(v, 0) for v, f in a.items()) for b in maps] for a in maps])
