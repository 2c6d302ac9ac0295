"""The search against an integer program: on random problems, and on networks at costs recorded on a real
machine.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from collage_benchmarks.problems import RECORDED, load_problem
from hypothesis import given, settings
from hypothesis import strategies as st
from integer_program import UNITS_PER_MS, solve
from search_problems import random_problem

from collage_core.errors import PlacementError
from collage_core.search import OpLevelSearch, total_ms
from collage_core.search.problem import NO_BACKEND

PROBLEMS = Path(__file__).parent / "problems"
ROUNDING_MS = 1.0 / UNITS_PER_MS


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_equals_integer_program_on_recorded_costs(name: str) -> None:
    problem = load_problem(PROBLEMS / f"{name}.json")
    found = OpLevelSearch().solve(problem)
    assert found.optimal
    assert found.method == "dp"
    assert found.states < 40 * problem.node_count, "small, as real costs have it"
    chosen, objective_ms = solve(problem)
    assert total_ms(problem, chosen) == pytest.approx(objective_ms, abs=len(chosen) * ROUNDING_MS)
    assert found.total_ms == pytest.approx(total_ms(problem, chosen), abs=len(chosen) * ROUNDING_MS)


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_the_answer_is_what_it_was_before_there_were_devices_and_formats(name: str) -> None:
    """answers.json: the choices that commit c7a0bb9 makes of the same problems."""
    before = json.loads((PROBLEMS.parent / "answers.json").read_text())
    found = OpLevelSearch().solve(load_problem(PROBLEMS / f"{name}.json"))
    assert sorted(found.choices) == before[name]


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_equals_integer_program_where_crossings_cost(name: str) -> None:
    """The same kernels, at prices like those of a Xeon (docs/adr/0030)."""
    problem = load_problem(PROBLEMS / f"{name}.json")
    backends = sorted({c.backend for c in problem.choices} - {NO_BACKEND})
    problem = replace(problem, crossing_ms={b: 0.008 * (i + 1) ** 2 for i, b in enumerate(backends)})
    found = OpLevelSearch().solve(problem)
    assert found.optimal
    chosen, _ = solve(problem)
    assert found.total_ms == pytest.approx(total_ms(problem, chosen), abs=len(chosen) * ROUNDING_MS)


@pytest.mark.ci
@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    nodes=st.integers(2, 14),
    formats=st.integers(1, 3),
    backends=st.integers(1, 3),
)
def test_equals_integer_program_on_random_problems(
    seed: int, nodes: int, formats: int, backends: int
) -> None:
    problem = random_problem(seed, nodes, formats, backends)
    try:
        objective_ms = solve(problem)[1]
    except PlacementError:
        with pytest.raises(PlacementError):
            OpLevelSearch().solve(problem)
        return
    found = OpLevelSearch().solve(problem)
    assert found.optimal
    assert found.total_ms == pytest.approx(objective_ms, abs=100 * ROUNDING_MS)
