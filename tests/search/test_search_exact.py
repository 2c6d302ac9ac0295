"""The dynamic program against brute force, on small random problems with everything that makes the problem
hard.
"""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from exhaustive_search import ExhaustiveSearch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from search_problems import random_problem

from collage_core.errors import PlacementError
from collage_core.search import (
    NO_BACKEND,
    OpLevelSearch,
    Problem,
    ProblemValue,
    Solution,
    total_ms,
)
from collage_core.search.exact import dominance
from collage_core.search.exact.bound import node_shares_ms
from collage_core.search.exact.dp import run
from collage_core.search.exact.order import depth_first, joins_first
from collage_core.search.exact.walk import plan_walk


def answer(solve: OpLevelSearch | ExhaustiveSearch, problem: Problem) -> Solution | None:
    try:
        return solve.solve(problem)
    except PlacementError:
        return None


def in_order(problem: Problem, order: list[int]) -> float | None:
    try:
        outcome = run(problem, plan_walk(problem, order), [0.0] * len(order), cap=10**9, budget=10**9, beam=1)
    except PlacementError:
        return None
    assert outcome.exact
    assert outcome.choices is not None
    return total_ms(problem, outcome.choices)


sizes = {"nodes": st.integers(1, 6), "formats": st.integers(1, 4), "backends": st.integers(1, 3)}
many = settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@many
@given(seed=st.integers(0, 2**32), **sizes)
def test_equals_exhaustive(seed: int, nodes: int, formats: int, backends: int) -> None:
    problem = random_problem(seed, nodes, formats, backends)
    expected = answer(ExhaustiveSearch(), problem)
    found = answer(OpLevelSearch(), problem)
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert found.total_ms == pytest.approx(expected.total_ms, abs=1e-9)
        assert found.optimal
        assert found.lower_bound_ms == found.total_ms == total_ms(problem, found.choices)


@many
@given(seed=st.integers(0, 2**32), beam=st.integers(1, 4), **sizes)
def test_beam_is_legal_and_bounded(seed: int, beam: int, nodes: int, formats: int, backends: int) -> None:
    problem = random_problem(seed, nodes, formats, backends)
    expected = answer(ExhaustiveSearch(), problem)
    found = answer(OpLevelSearch(cap=1, beam=beam), problem)
    assert found is None or expected is not None
    if found is not None and expected is not None:
        assert found.lower_bound_ms is not None
        assert found.total_ms == total_ms(problem, found.choices)
        assert found.lower_bound_ms - 1e-9 <= expected.total_ms <= found.total_ms + 1e-9
        assert found.optimal == (found.lower_bound_ms == found.total_ms)


@many
@given(seed=st.integers(0, 2**32), **sizes)
def test_shares_never_exceed_what_a_choice_costs(seed: int, nodes: int, formats: int, backends: int) -> None:
    problem = random_problem(seed, nodes, formats, backends)
    if any(not any(c.nodes >> n & 1 for c in problem.choices) for n in range(nodes)):
        return
    shares_ms = node_shares_ms(problem)
    for choice in problem.choices:
        group_ms = 0.0 if choice.backend == NO_BACKEND else problem.group_ms[choice.backend]
        carried_ms = math.fsum(shares_ms[n] for n in range(nodes) if choice.nodes >> n & 1)
        assert carried_ms <= choice.cost_ms + group_ms + 1e-9


@many
@given(seed=st.integers(0, 2**32), **sizes)
def test_every_order_of_the_nodes_gives_the_same_cost(
    seed: int, nodes: int, formats: int, backends: int
) -> None:
    problem = random_problem(seed, nodes, formats, backends)
    order = random.Random(seed).sample(range(nodes), nodes)
    expected = answer(ExhaustiveSearch(), problem)
    found = in_order(problem, order)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dominance, "_PAIRWISE", 1)
        on_a_grid = in_order(problem, order)
        patch.setattr(dominance, "_LARGEST_GRID", 0)
        hardly_compared = in_order(problem, order)
    cost_ms = None if expected is None else pytest.approx(expected.total_ms, abs=1e-9)
    assert [found, on_a_grid, hardly_compared] == [cost_ms] * 3


@many
@given(seed=st.integers(0, 2**32), **sizes)
def test_orders_are_permutations(seed: int, nodes: int, formats: int, backends: int) -> None:
    problem = random_problem(seed, nodes, formats, backends)
    order = depth_first(problem)
    place = {n: i for i, n in enumerate(order)}
    assert sorted(order) == list(range(nodes))
    for value in problem.values:
        if value.producer is not None:
            assert all(place[value.producer] < place[n] for n in value.consumers)
    assert sorted(joins_first(problem, order)) == list(range(nodes))


def test_a_join_goes_in_front_of_its_branches_and_no_further() -> None:
    """0 -> 1 -> {2 -> 3, 4, 5} -> 6 -> 7: the region of 6 begins behind 1."""
    edges = [(0, 1), (1, 2), (2, 3), (1, 4), (1, 5), (3, 6), (4, 6), (5, 6), (6, 7)]
    values = tuple(
        ProblemValue(n, tuple(b for a, b in edges if a == n), None, 0 if n == 7 else None) for n in range(8)
    )
    problem = Problem(8, values, (), {})
    assert joins_first(problem, range(8)) == (0, 1, 6, 2, 3, 4, 5, 7)


@many
@given(seed=st.integers(0, 2**32), count=st.integers(1, 40), axes=st.integers(0, 3))
def test_dominance_on_a_grid_equals_one_by_one(seed: int, count: int, axes: int) -> None:
    rng = np.random.default_rng(seed)
    codes = np.unique(rng.integers(0, 4, (count, max(axes, 1))), axis=0)
    count = len(codes)
    cost_ms = np.sort(rng.random(count) * rng.choice([0.1, 1.0, 4.0]))
    rng.shuffle(codes)
    made = []
    for a in range(codes.shape[1]):
        # Differences of costs obey the triangle inequality, as slacks do.
        owed = rng.random((4, 2)) * (rng.random((4, 2)) < 0.8)
        slack_ms = np.maximum(owed[:, None] - owed[None], 0.0).sum(axis=2)
        made.append(dominance._Axis(codes[:, a], slack_ms))
    replaced = {
        t
        for s in range(count)
        for t in range(count)
        if s != t and cost_ms[s] + sum(a.slack_ms[a.codes[s], a.codes[t]] for a in made) < cost_ms[t] - 1e-12
    }
    compact = dominance._joined([dominance._compact(a) for a in made])
    assert replaced == set(np.flatnonzero(~dominance._undercut_nowhere(cost_ms, compact)))
    assert replaced <= set(np.flatnonzero(~dominance._against_the_cheapest(cost_ms, made)))
