"""The search by hand: knots, groups whose operands come later, views, the beam, and what is said when there
is no placement.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from exhaustive_search import ExhaustiveSearch

from collage_core.errors import PlacementError
from collage_core.search import (
    NO_BACKEND,
    Choice,
    OpLevelSearch,
    Problem,
    ProblemValue,
    total_ms,
)


def chain(length: int, seed: int, formats: int = 3) -> Problem:
    """A chain whose conversions cost as much as kernels, so that the formats of all nodes hang together."""
    rng = random.Random(seed)
    values = [ProblemValue(None, (0,), 0, None)]
    values += [ProblemValue(n, (n + 1,)) for n in range(length - 1)]
    values.append(ProblemValue(length - 1, (), None, 0))
    choices = [
        Choice(1 << n, b, {n: p}, {n + 1: q}, rng.random())
        for n in range(length)
        for b in range(2)
        for p in range(formats)
        for q in range(formats)
    ]
    conversion_ms = {
        (v, p, q): rng.random() for v in range(length + 1) for p in range(formats) for q in range(formats)
    }
    return Problem(length, tuple(values), tuple(choices), conversion_ms, {}, {0: 0.2, 1: 0.1})


def knot() -> Problem:
    """a1 -> b2 and b1 -> a2: the pairs {a1, a2} and {b1, b2} are convex and cheap, and wait for each
    other.
    """
    a1, b1, a2, b2 = (1 << n for n in range(4))
    values = (
        ProblemValue(None, (0, 1), 0, None),
        ProblemValue(0, (3,)),
        ProblemValue(1, (2,)),
        ProblemValue(2, (), None, 0),
        ProblemValue(3, (), None, 0),
    )
    choices = (
        Choice(a1, 0, {0: 0}, {1: 0}, 5.0),
        Choice(b1, 0, {0: 0}, {2: 0}, 5.0),
        Choice(a2, 0, {2: 0}, {3: 0}, 5.0),
        Choice(b2, 0, {1: 0}, {4: 0}, 6.0),
        Choice(a1 | a2, 0, {0: 0, 2: 0}, {1: 0, 3: 0}, 1.0),
        Choice(b1 | b2, 0, {0: 0, 1: 0}, {2: 0, 4: 0}, 1.0),
    )
    return Problem(4, values, choices, {})


def test_knot_is_refused() -> None:
    found = OpLevelSearch().solve(knot())
    assert set(found.choices) == {0, 2, 5}
    assert found.total_ms == 11.0
    assert found.choices == (0, 5, 2)


def test_only_a_knot_is_no_placement() -> None:
    problem = replace(knot(), choices=knot().choices[4:])
    with pytest.raises(PlacementError, match="groups that wait for each other"):
        OpLevelSearch().solve(problem)
    with pytest.raises(PlacementError, match="circle"):
        ExhaustiveSearch().solve(problem)


def test_knot_through_a_third_group() -> None:
    """{0, 4} waits for {1, 3} through 2, and {1, 3} for {0, 4} directly."""
    values = (
        ProblemValue(None, (0, 1), 0, None),
        ProblemValue(0, (3,)),
        ProblemValue(1, (2,)),
        ProblemValue(2, (4,)),
        ProblemValue(3, (), None, 0),
        ProblemValue(4, (), None, 0),
    )
    choices = (
        Choice(0b10001, 0, {0: 0, 3: 0}, {1: 0, 5: 0}, 1.0),
        Choice(0b01010, 0, {0: 0, 1: 0}, {2: 0, 4: 0}, 1.0),
        Choice(0b00100, 0, {2: 0}, {3: 0}, 1.0),
    )
    with pytest.raises(PlacementError, match="wait for each other"):
        OpLevelSearch().solve(Problem(5, values, choices, {}))


def test_group_whose_other_operand_is_produced_later() -> None:
    """conv1 -> add <- conv2: {conv1, add} is claimed before conv2, which then owes the conversion."""
    values = (
        ProblemValue(None, (0, 1), 0, None),
        ProblemValue(0, (2,)),
        ProblemValue(1, (2,)),
        ProblemValue(2, (), None, 0),
    )
    choices = (
        Choice(0b101, 0, {0: 0, 2: 1}, {3: 0}, 1.0),
        Choice(0b010, 0, {0: 0}, {2: 0}, 1.0),
        Choice(0b010, 1, {0: 0}, {2: 1}, 1.75),
        Choice(0b001, 0, {0: 0}, {1: 0}, 5.0),
        Choice(0b100, 0, {1: 0, 2: 0}, {3: 0}, 5.0),
    )
    problem = Problem(3, values, choices, {(2, 0, 1): 1.0}, {}, {0: 9.0, 1: 0.125})
    found = OpLevelSearch().solve(problem)
    assert found.choices == (2, 0)
    assert found.total_ms == 1.0 + 1.75 + 0.125


def test_views_cross_for_free() -> None:
    values = (
        ProblemValue(None, (0,), 0, None),
        ProblemValue(0, (1,)),
        ProblemValue(1, (2,)),
        ProblemValue(2, (), None, 0),
    )
    choices = (
        Choice(1, 0, {0: 0}, {1: 0}, 1.0),
        Choice(2, NO_BACKEND, {1: 0}, {2: 0}, 0.0),
        Choice(4, 1, {2: 0}, {3: 0}, 1.0),
    )
    group_ms, crossing_ms = {0: 0.25, 1: 0.5, NO_BACKEND: 9.0}, {0: 100.0, 1: 100.0, NO_BACKEND: 9.0}
    found = OpLevelSearch().solve(Problem(3, values, choices, {}, group_ms, crossing_ms))
    assert found.total_ms == 2.75


def test_beam_says_what_it_does_not_know() -> None:
    problem = chain(40, seed=3)
    exact = OpLevelSearch().solve(problem)
    assert (exact.method, exact.optimal) == ("dp", True)
    for searcher in (OpLevelSearch(cap=1, beam=1), OpLevelSearch(budget=10, beam=1)):
        beam = searcher.solve(problem)
        assert (beam.method, beam.optimal) == ("beam", False)
        assert beam.lower_bound_ms is not None
        assert 0.0 < beam.lower_bound_ms <= exact.total_ms < beam.total_ms
        assert total_ms(problem, beam.choices) == beam.total_ms


def test_beam_widens_rather_than_give_up() -> None:
    """The cheap start leads into a format that nobody leaves."""
    values = (ProblemValue(None, (0,), 0, None), ProblemValue(0, (1,)), ProblemValue(1, (), None, 0))
    choices = (
        Choice(1, 0, {0: 0}, {1: 1}, 1.0),
        Choice(1, 0, {0: 0}, {1: 0}, 2.0),
        Choice(2, 0, {1: 0}, {2: 0}, 1.0),
    )
    assert OpLevelSearch(cap=1, beam=1).solve(Problem(2, values, choices, {})).choices == (1, 2)


def test_beam_falls_back_to_groups_that_can_always_run() -> None:
    """Twenty cheap ways to start, each in another format that nobody reads; the only way out is dear and
    promises little.
    """
    values = (
        ProblemValue(None, (0, 2), 0, None),
        ProblemValue(0, (1,)),
        ProblemValue(1, (), None, 0),
        ProblemValue(2, (), None, 0),
    )
    traps = [Choice(0b101, 0, {0: 0}, {1: f, 3: 0}, 1.0) for f in range(1, 21)]
    ways_out = [
        Choice(1, 0, {0: 0}, {1: 0}, 5.0),
        Choice(2, 0, {1: 0}, {2: 0}, 5.0),
        Choice(4, 0, {0: 0}, {3: 0}, 5.0),
    ]
    traps += [Choice(0b010, 0, {1: f}, {2: f}, 1.0) for f in range(1, 21)]
    problem = Problem(3, values, (*traps, *ways_out), {})
    found = OpLevelSearch(cap=1, beam=1).solve(problem)
    assert (found.choices, found.total_ms, found.method, found.optimal) == ((40, 41, 42), 15.0, "beam", False)
    assert found.lower_bound_ms is not None
    assert 0.0 < found.lower_bound_ms < 15.0
    stuck = replace(problem, choices=(*traps, Choice(0b101, 0, {0: 0}, {1: 0, 3: 0}, 5.0), ways_out[1]))
    with pytest.raises(PlacementError, match="a beam of 8 states found no legal placement"):
        OpLevelSearch(cap=1, beam=1).solve(stuck)
    assert OpLevelSearch().solve(stuck).total_ms == 10.0


def test_states_grow_with_depth_only_linearly() -> None:
    short, long = (OpLevelSearch().solve(chain(n, seed=1)) for n in (50, 400))
    assert long.states <= 10 * short.states


def test_more_live_values_than_bits_in_a_word() -> None:
    """Forty values, each with several formats, all read by the last node."""
    rng = random.Random(0)
    count = 41
    values = [ProblemValue(None, tuple(range(count - 1)), 0, None)]
    values += [ProblemValue(n, (count - 1,)) for n in range(count - 1)]
    values.append(ProblemValue(count - 1, (), None, 0))
    choices = [
        Choice(1 << n, 0, {0: 0}, {n + 1: f}, rng.random()) for n in range(count - 1) for f in range(3)
    ]
    choices += [
        Choice(1 << count - 1, 0, dict.fromkeys(range(1, count), f), {count: 0}, rng.random())
        for f in range(3)
    ]
    conversion_ms = {
        (v, p, q): rng.random() for v in range(count + 1) for p in range(3) for q in range(3) if p != q
    }
    problem = Problem(count, tuple(values), tuple(choices), conversion_ms)
    expected = min(
        join.cost_ms
        + math.fsum(
            min(
                c.cost_ms + (conversion_ms[n + 1, c.writes[n + 1], f] if c.writes[n + 1] != f else 0.0)
                for c in choices[3 * n : 3 * n + 3]
            )
            for n in range(count - 1)
        )
        for f, join in enumerate(choices[-3:])
    )
    found = OpLevelSearch().solve(problem)
    assert found.optimal
    assert found.total_ms == pytest.approx(expected)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"choices": knot().choices[1:2]}, "no choice covers node 0"),
        (
            {"choices": (*knot().choices, Choice(1 << 4, 0, {}, {}, 1.0))},
            "choice 6 covers no node, or one that is not",
        ),
        (
            {"choices": (replace(knot().choices[0], cost_ms=math.inf), *knot().choices[1:])},
            "choice 0 costs inf",
        ),
        (
            {"choices": (replace(knot().choices[0], reads={}), *knot().choices[1:])},
            r"choice 0 must read the values \[0\]",
        ),
        (
            {"choices": (replace(knot().choices[0], writes={}), *knot().choices[1:])},
            r"choice 0 must write the values \[1\]",
        ),
        (
            {"values": (ProblemValue(None, (0, 1)), *knot().values[1:])},
            "value 0 must have either a producer or",
        ),
        ({"values": (*knot().values[:4], ProblemValue(3, (2,), None, 0))}, "value 4 is read before node 3"),
    ],
)
def test_malformed_problems_name_the_culprit(change: dict[str, object], reason: str) -> None:
    problem = replace(knot(), **change)  # type: ignore[arg-type]  # the parameters are fields of Problem
    for searcher in (OpLevelSearch(), ExhaustiveSearch()):
        with pytest.raises(PlacementError, match=reason):
            searcher.solve(problem)


def test_nothing_to_place() -> None:
    value = ProblemValue(None, (), 0, 1)
    found = OpLevelSearch().solve(Problem(0, (value,), (), {(0, 0, 1): 0.5}))
    assert (found.choices, found.total_ms, found.optimal) == ((), 0.5, True)
    with pytest.raises(PlacementError, match="nobody converts model input 0"):
        OpLevelSearch().solve(Problem(0, (value,), (), {}))


def test_too_many_covers_for_brute_force() -> None:
    with pytest.raises(PlacementError, match="more than 100 covers"):
        ExhaustiveSearch(max_covers=100).solve(chain(4, seed=0))
