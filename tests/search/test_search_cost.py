"""The cost of a placement: against a second, naive computation, and what it refuses."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage_core.errors import PlacementError
from collage_core.search import NO_BACKEND, Choice, ConversionStep, Problem, ProblemValue, breakdown, total_ms
from collage_core.search.cost import check_problem

# Node 0 reads the input, 1 and 2 read 0's value, 3 joins them; the values of 0 and 3 are returned.
DIAMOND = (
    ProblemValue(None, (0,), 0, None),
    ProblemValue(0, (1, 2), None, 1),
    ProblemValue(1, (3,)),
    ProblemValue(2, (3,)),
    ProblemValue(3, (), None, 0),
)


def diamond_choice(nodes: int, backend: int, read: int, written: int, cost_ms: float) -> Choice:
    reads, writes = {}, {}
    for v, value in enumerate(DIAMOND):
        inside = value.producer is not None and bool(nodes >> value.producer & 1)
        if not inside and any(nodes >> n & 1 for n in value.consumers):
            reads[v] = read
        if inside and (value.output_format is not None or any(not nodes >> n & 1 for n in value.consumers)):
            writes[v] = written
    return Choice(nodes, backend, reads, writes, cost_ms)


def conversions(seed: int) -> dict[tuple[int, int, int], float]:
    rng = random.Random(seed)
    return {
        (v, p, q): rng.random() for v in range(len(DIAMOND)) for p in range(3) for q in range(3) if p != q
    }


def naive_ms(problem: Problem, choices: list[Choice]) -> float:
    """Walk over pairs of choices and collect what must be paid in sets."""
    paid: set[tuple[int, int, int]] = set()
    crossed: dict[int, int] = {}
    total = 0.0
    for c in choices:
        total += c.cost_ms + (problem.group_ms.get(c.backend, 0.0) if c.backend >= 0 else 0.0)
        for v, p in c.writes.items():
            out = problem.values[v].output_format
            if out is not None and out != p:
                paid.add((v, p, out))
            for d in choices:
                if v in d.reads and d.reads[v] != p:
                    paid.add((v, p, d.reads[v]))
                if v in d.reads and min(c.backend, d.backend) >= 0 and c.backend != d.backend:
                    crossed[v] = c.backend
        for v, q in c.reads.items():
            arrival = problem.values[v].input_format
            if arrival is not None and arrival != q:
                paid.add((v, arrival, q))
    crossing_ms = sum(problem.crossing_ms[home] for home in crossed.values())
    return total + sum(problem.conversion_ms[k] for k in paid) + crossing_ms


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    cover=st.sampled_from([(1, 2, 4, 8), (3, 4, 8), (1, 2, 12), (7, 8), (9, 2, 4), (15,), (1, 6, 8)]),
)
def test_equals_naive(seed: int, cover: tuple[int, ...]) -> None:
    rng = random.Random(seed)
    choices = [
        diamond_choice(m, rng.randint(-1, 2), rng.randrange(3), rng.randrange(3), rng.random()) for m in cover
    ]
    rng.shuffle(choices)
    problem = Problem(
        4, DIAMOND, tuple(choices), conversions(seed), {0: 0.1, 1: 0.2}, {0: 0.5, 1: 0.7, 2: 0.2}
    )
    which = list(range(len(choices)))
    if 9 in cover:
        with pytest.raises(PlacementError, match="circle"):
            total_ms(problem, which)
        return
    terms = breakdown(problem, which)
    assert terms.total_ms == pytest.approx(naive_ms(problem, choices))
    assert total_ms(problem, which[::-1]) == terms.total_ms
    made: set[int] = set()
    for c in terms.order:
        assert all(problem.values[v].producer is None or v in made for v in choices[c].reads)
        made |= set(choices[c].writes)


def test_terms() -> None:
    choices = (
        diamond_choice(1, 0, 0, 0, 1.0),
        diamond_choice(2, 1, 1, 0, 2.0),
        diamond_choice(4, 1, 1, 0, 4.0),
        diamond_choice(8, NO_BACKEND, 0, 0, 0.0),
    )
    problem = Problem(4, DIAMOND, choices, {(1, 0, 1): 0.25}, {0: 10.0, 1: 20.0}, {0: 100.0, 1: 1000.0})
    terms = breakdown(problem, [3, 2, 1, 0])
    assert terms.conversions == (ConversionStep(1, 0, 1, 0.25),), (
        "two readers and the model's output share it"
    )
    assert terms.crossings == (1,)
    assert (terms.kernels_ms, terms.group_ms, terms.crossing_ms) == (7.0, 50.0, 100.0)
    assert terms.order == (0, 1, 2, 3)
    assert terms.total_ms == 157.25


SINGLES = tuple(diamond_choice(1 << n, 0, 0, 0, 1.0) for n in range(4))


@pytest.mark.parametrize(
    ("choices", "which", "reason"),
    [
        (SINGLES, [0, 1, 2], "no choice covers node 3"),
        (
            (*SINGLES, diamond_choice(3, 0, 0, 0, 1.0)),
            [0, 4, 2, 3],
            "node 0 is covered by choice [04] and by choice [04]",
        ),
        (SINGLES, [0, 1, 2, 4], "there is no choice 4"),
        ((diamond_choice(1, 0, 2, 0, 1.0), *SINGLES[1:]), [0, 1, 2, 3], "value 0 from format 0 to format 2"),
        ((*SINGLES[:3], replace(SINGLES[3], reads={2: 0})), [0, 1, 2, 3], "choice 3 reads value 3"),
        ((replace(SINGLES[0], writes={}), *SINGLES[1:]), [0, 1, 2, 3], "choice 0 writes value 1"),
    ],
)
def test_refusals(choices: tuple[Choice, ...], which: list[int], reason: str) -> None:
    problem = Problem(4, DIAMOND, choices, {(1, 0, 1): 0.25})
    for order in permutations(which):
        with pytest.raises(PlacementError, match=reason):
            total_ms(problem, order)


def _chain(ways: dict[tuple[int, int, int], int]) -> Problem:
    """One value in format 0, read in formats 2 and 3 and returned in 1."""
    values = (ProblemValue(0, (1, 2), None, 1), ProblemValue(None, (0,), 0))
    choices = (
        Choice(0b001, 0, {1: 0}, {0: 0}, 1.0),
        Choice(0b010, 0, {0: 2}, {}, 1.0),
        Choice(0b100, 0, {0: 3}, {}, 1.0),
    )
    conversion_ms = {(0, 0, 1): 0.5, (0, 0, 2): 0.25, (0, 0, 3): 0.125}
    return Problem(3, values, choices, conversion_ms, {}, {}, ways)


@pytest.mark.parametrize(
    ("ways", "hops"),
    [
        ({}, [(0, 1), (0, 2), (0, 3)]),
        ({(0, 0, 3): 2}, [(0, 1), (0, 2), (2, 3)]),
        ({(0, 0, 2): 3, (0, 0, 1): 2}, [(0, 3), (3, 2), (2, 1)]),
    ],
)
def test_hops_that_ways_share_are_made_once(
    ways: dict[tuple[int, int, int], int], hops: list[tuple[int, int]]
) -> None:
    problem = _chain(ways)
    check_problem(problem)
    parts = breakdown(problem, (0, 1, 2))
    assert [(c.source, c.destination) for c in parts.conversions] == hops
    assert parts.conversions_ms == 0.875


@pytest.mark.parametrize(
    ("ways", "said"),
    [
        ({(0, 0, 3): 2, (0, 0, 2): 3}, "is a circle"),
        ({(0, 0, 3): 4}, "goes by format 4, to which none leads"),
    ],
)
def test_a_way_that_does_not_arrive_is_told(ways: dict[tuple[int, int, int], int], said: str) -> None:
    with pytest.raises(PlacementError, match=said):
        check_problem(_chain(ways))
