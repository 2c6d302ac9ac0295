"""What every placement must pay at least, shared out over the nodes: a feasible solution of the covering
program's dual.
"""

from __future__ import annotations

import math

import numpy as np

from collage_core.search.cost import group_constant_ms, node_indices
from collage_core.search.exact.charges import Floats
from collage_core.search.problem import Problem

__all__ = ["node_shares_ms"]


def node_shares_ms(problem: Problem) -> Floats:
    """[node_count] shares such that the nodes of no choice carry more than the choice costs.

    So the shares of any set of nodes add up to no more than what covering exactly that set costs, conversions
    and crossings apart. Each node starts with the smallest share that a choice could give it and then takes
    what its choices leave.
    """
    cheapest: dict[int, float] = {}
    for choice in problem.choices:
        cost = choice.cost_ms + group_constant_ms(problem, choice)
        cheapest[choice.nodes] = min(cost, cheapest.get(choice.nodes, math.inf))
    sets = [(list(node_indices(mask)), cost) for mask, cost in cheapest.items()]
    shares = np.full(problem.node_count, math.inf)
    for nodes, cost in sets:
        shares[nodes] = np.minimum(shares[nodes], cost / len(nodes))
    containing: list[list[int]] = [[] for _ in range(problem.node_count)]
    slack = np.empty(len(sets))
    for i, (nodes, cost) in enumerate(sets):
        slack[i] = cost - shares[nodes].sum()
        for n in nodes:
            containing[n].append(i)
    for n, within in enumerate(containing):
        more = max(0.0, float(slack[within].min()))
        shares[n] += more
        slack[within] -= more
    return shares
