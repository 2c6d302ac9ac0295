"""The order in which the dynamic program takes the nodes.

Every order gives the same answer; it decides how many states there are. What counts is how many values are at
the border of the claimed part at once, so a branch is finished before the next one begins. A join of many
operands goes in front of the branches that lead to it: once it is claimed, each branch ends where its last
value is produced, whereas behind them all their values stay at the border together.
"""

from __future__ import annotations

from collections.abc import Sequence

from collage_core.search.problem import Problem

__all__ = ["choose_order", "depth_first", "joins_first"]

_JOIN_OPERANDS = 3
_WEIGHT = 3.0
_LARGEST_EXPONENT = 200


def choose_order(problem: Problem) -> tuple[int, ...]:
    """The given order or depth first, with joins moved to the front or not: whichever keeps the border
    small.
    """
    given = tuple(range(problem.node_count))
    searched = depth_first(problem)
    orders = dict.fromkeys((given, searched, joins_first(problem, given), joins_first(problem, searched)))
    return min(orders, key=lambda order: _estimate(problem, order))


def depth_first(problem: Problem) -> tuple[int, ...]:
    """Post-order from the last nodes: each node after its operands, in the order in which they are read."""
    operands = _operands(problem)
    is_read = {o for reads in operands for o in reads}
    done = [False] * problem.node_count
    order: list[int] = []
    for end in (n for n in range(problem.node_count) if n not in is_read):
        stack = [(end, iter(operands[end]))]
        done[end] = True
        while stack:
            node, rest = stack[-1]
            following = next((o for o in rest if not done[o]), None)
            if following is None:
                order.append(node)
                stack.pop()
            else:
                done[following] = True
                stack.append((following, iter(operands[following])))
    return tuple(order)


def joins_first(problem: Problem, order: Sequence[int]) -> tuple[int, ...]:
    """`order` with each join of three or more operands moved in front of its region.

    The region are the nodes that lead to it without another join between, all of whose paths to an output run
    through it, as far as the last node through which all paths to it run.
    """
    operands = _operands(problem)
    joins = [n for n in range(problem.node_count) if len(operands[n]) >= _JOIN_OPERANDS]
    if not joins:
        return tuple(order)
    readers: list[list[int]] = [[] for _ in operands]
    for n, reads in enumerate(operands):
        for o in reads:
            readers[o].append(n)
    leaves = {value.producer for value in problem.values if value.output_format is not None}
    behind = _dominators(range(problem.node_count), operands, set())
    ahead = _dominators(range(problem.node_count - 1, -1, -1), readers, {n for n in leaves if n is not None})
    place = {n: float(i) for i, n in enumerate(order)}
    for join in joins:
        fork = (behind[join] & ~(1 << join)).bit_length() - 1
        region: set[int] = set()
        stack = list(operands[join])
        while stack:
            n = stack.pop()
            # Another join ends the region even where this one post-dominates it: it has a region of its own.
            if n > fork and n not in region and ahead[n] >> join & 1 and len(operands[n]) < _JOIN_OPERANDS:
                region.add(n)
                stack.extend(operands[n])
        if region:
            place[join] = min(place[n] for n in region) - 0.5
    return tuple(sorted(place, key=place.__getitem__))


def _dominators(nodes: Sequence[int], before: Sequence[Sequence[int]], ends: set[int]) -> list[int]:
    """Bitmask per node of the nodes on each of its paths against the given (topological) direction, itself
    included.

    A path also ends at any of `ends`.
    """
    result = [0] * len(before)
    for n in nodes:
        common = -1 if before[n] and n not in ends else 0
        for b in before[n]:
            common &= result[b]
        result[n] = common | 1 << n
    return result


def _operands(problem: Problem) -> list[list[int]]:
    """The nodes whose values each node reads, without repetition."""
    operands: list[dict[int, None]] = [{} for _ in range(problem.node_count)]
    for value in problem.values:
        if value.producer is not None:
            for n in value.consumers:
                operands[n][value.producer] = None
    return [list(o) for o in operands]


def _estimate(problem: Problem, order: Sequence[int]) -> float:
    """Roughly how many states there are if nodes are claimed one by one: exponential in the border's width at
    each step.

    A live value counts on its own; the pending values of one node count once, since one choice made them all.
    """
    place = [0] * problem.node_count
    for i, n in enumerate(order):
        place[n] = i
    change = [0] * (problem.node_count + 1)
    pending_until: dict[int, int] = {}
    for value in problem.values:
        if value.producer is None or not value.consumers:
            continue
        produced, last = place[value.producer], max(place[n] for n in value.consumers)
        if last > produced:
            change[produced] += 1
            change[last] -= 1
        for n in value.consumers:
            if place[n] < produced:
                pending_until[n] = max(produced, pending_until.get(n, 0))
    for n, until in pending_until.items():
        change[place[n]] += 1
        change[until] -= 1
    width, total = 0, 0.0
    for step in change:
        width += step
        total += _WEIGHT ** min(width, _LARGEST_EXPONENT)
    return total
