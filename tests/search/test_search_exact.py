"""The dynamic program against brute force, on small random problems with everything that makes the problem hard."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collage_core.errors import PlacementError
from collage_core.search import (
    NO_BACKEND,
    Choice,
    ExhaustiveSearch,
    OpLevelSearch,
    Problem,
    ProblemValue,
    Solution,
    total_ms,
)
from collage_core.search.bound import node_shares_ms
from collage_core.search.dp import run
from collage_core.search.layout import lay_out


def random_problem(seed: int, nodes: int, formats: int, backends: int) -> Problem:
    """Branches, several and shared inputs and outputs, outputs read inside, inputs returned as they are, groups of any shape
    (knotted, not convex, not connected), missing conversions, views, ties in cost."""
    rng = random.Random(seed)
    coarse = rng.random() < 0.5

    def cost(scale: float) -> float:
        return float(rng.randint(0, 4)) if coarse else rng.random() * scale

    producers: list[int | None] = [None] * rng.randint(1, 2)
    readers: list[list[int]] = [[] for _ in producers]
    for n in range(nodes):
        for v in rng.sample(range(len(producers)), min(len(producers), rng.choice((1, 1, 2, 2, 3)))):
            readers[v].append(n)
        for _ in range(rng.choice((1, 1, 1, 2))):
            producers.append(n)
            readers.append([])
    values = [
        ProblemValue(
            producer,
            tuple(reads),
            rng.randrange(formats) if producer is None else None,
            rng.randrange(formats) if not reads or rng.random() < 0.15 else None,
        )
        for producer, reads in zip(producers, readers, strict=True)
    ]
    convertible = rng.choice((0.6, 0.9, 1.0))
    conversion_ms = {
        (v, p, q): cost(3.0)
        for v in range(len(values))
        for p in range(formats)
        for q in range(formats)
        if p != q and rng.random() < convertible
    }
    masks = [1 << n for n in range(nodes) if rng.random() < 0.98]
    for _ in range(rng.randint(0, 2 * nodes)):
        picked = rng.sample(range(nodes), min(nodes, rng.choice((2, 2, 3, 4))))
        masks.append(sum(1 << n for n in picked))
    choices = []
    for mask in masks:
        for _ in range(rng.choice((1, 2, 2, 3))):
            backend = rng.choice((NO_BACKEND, *range(backends), *range(backends)))
            reads, writes = {}, {}
            for v, value in enumerate(values):
                inside = value.producer is not None and bool(mask >> value.producer & 1)
                if not inside and any(mask >> n & 1 for n in value.consumers):
                    reads[v] = rng.randrange(formats)
                if inside and (value.output_format is not None or any(not mask >> n & 1 for n in value.consumers)):
                    writes[v] = rng.randrange(formats)
            size = mask.bit_count()
            choices.append(Choice(mask, backend, reads, writes, cost(4.0 * size)))
    return Problem(
        nodes,
        tuple(values),
        tuple(choices),
        conversion_ms,
        {b: cost(1.0) for b in range(backends)},
        rng.choice((0.0, cost(2.0))),
    )


def answer(solve: OpLevelSearch | ExhaustiveSearch, problem: Problem) -> Solution | None:
    try:
        return solve.solve(problem)
    except PlacementError:
        return None


def in_order(problem: Problem, order: list[int]) -> float | None:
    try:
        outcome = run(problem, lay_out(problem, order), 10**9, 1, [0.0] * len(order))
    except PlacementError:
        return None
    assert outcome.exact
    assert outcome.choices is not None
    return total_ms(problem, outcome.choices)


sizes = {"nodes": st.integers(1, 7), "formats": st.integers(1, 3), "backends": st.integers(1, 3)}
many = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])


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
@given(seed=st.integers(0, 2**32), **sizes)
def test_every_order_of_the_nodes_gives_the_same_cost(seed: int, nodes: int, formats: int, backends: int) -> None:
    problem = random_problem(seed, nodes, formats, backends)
    order = random.Random(seed).sample(range(nodes), nodes)
    expected = answer(ExhaustiveSearch(), problem)
    found = None if expected is None else in_order(problem, order)
    if expected is None:
        if all(any(c.nodes >> n & 1 for c in problem.choices) for n in range(nodes)):
            assert in_order(problem, order) is None
    else:
        assert found == pytest.approx(expected.total_ms, abs=1e-9)
