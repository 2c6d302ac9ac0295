"""How an evolutionary search ends: budgets, interruptions, errors, small spaces, and what is refused."""

from __future__ import annotations

import dataclasses
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest
from made_up_latencies import KEEP, OFFLOAD, measured, run_gains_ms

from collage_core.search import Evolution, Fitness, Genome, evolve


def test_the_budget_is_in_the_seconds_of_the_evaluations() -> None:
    found = evolve(14, 2, [KEEP, OFFLOAD], measured(run_gains_ms, seconds=2.0), budget_s=31.0)
    assert found.stopped_by == "budget"
    assert len(found.history) == 15
    # The last generation was cut: 2 seeds, 10 and 3 of 10.
    assert [sum(e.generation == n for e in found.history) for n in range(4)] == [2, 10, 3, 0]


def test_evaluations_that_grow_slower_overrun_by_those_together_at_most_and_all_count() -> None:
    durations = itertools.chain([1.0] * 12, itertools.repeat(10.0))
    found = evolve(
        14,
        2,
        [KEEP, OFFLOAD],
        lambda gs: [Fitness(run_gains_ms(g), 0.01, next(durations)) for g in gs],
        budget_s=40.0,
    )
    assert found.stopped_by == "budget"
    assert [e.generation for e in found.history] == [0] * 2 + [1] * 10 + [2] * 4


@pytest.mark.parametrize("digits", [3, 14])
def test_the_seeds_are_evaluated_whatever_the_budget(digits: int) -> None:
    seeds = [(1,) * digits, (0,) * digits]
    found = evolve(digits, 2, seeds, measured(lambda g: 1.0), budget_s=0.0)
    assert [e.genome for e in found.history] == seeds
    assert found.best == seeds[0]
    assert found.stopped_by == "budget"


def test_interrupted_within_a_generation_keeps_what_came_back() -> None:
    finished: list[Genome] = []

    def one_by_one(genomes: Sequence[Genome]) -> Iterator[Fitness]:
        for genome in genomes:
            if len(finished) == 17:
                raise KeyboardInterrupt
            finished.append(genome)
            yield Fitness(20.0 - len(finished), 0.1, 1.0)

    found = evolve(14, 2, [KEEP, OFFLOAD], one_by_one)
    assert found.stopped_by == "interrupted"
    assert [e.genome for e in found.history] == finished
    assert found.best == finished[-1]
    assert found.fitness == Fitness(3.0, 0.1, 1.0)


def test_interrupted_in_a_batch_keeps_those_before() -> None:
    batches = 0

    def in_batches(genomes: Sequence[Genome]) -> list[Fitness]:
        nonlocal batches
        batches += 1
        if batches == 3:
            raise KeyboardInterrupt
        return [Fitness(run_gains_ms(g), 0.01, 1.0) for g in genomes]

    found = evolve(14, 2, [KEEP, OFFLOAD], in_batches)
    assert found.stopped_by == "interrupted"
    assert len(found.history) == 6
    assert found.best is not None


def test_interrupted_before_anything_came_back() -> None:
    def evaluate(genomes: Sequence[Genome]) -> list[Fitness]:
        raise KeyboardInterrupt

    found = evolve(14, 2, [KEEP], evaluate)
    assert (found.best, found.fitness, found.history) == (None, None, ())
    assert found.stopped_by == "interrupted"


def test_other_errors_are_the_callers() -> None:
    def evaluate(genomes: Sequence[Genome]) -> list[Fitness]:
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        evolve(14, 2, [KEEP], evaluate)


def test_what_cannot_be_built_is_kept_with_its_reason_and_never_best() -> None:
    """Group 5 cannot be offloaded; the rest gains all the same."""

    def evaluate(genomes: Sequence[Genome]) -> list[Fitness]:
        return [
            Fitness(None, seconds=1.0, reason="group 5: no such operator")
            if g[5]
            else Fitness(20.0 - 0.2 * sum(g), 0.01, 1.0)
            for g in genomes
        ]

    found = evolve(14, 2, [OFFLOAD, KEEP], evaluate, settings=Evolution(patience=10))
    assert found.best is not None
    assert not found.best[5]
    assert sum(found.best) > 8
    assert not found.history[0].is_best
    for evaluation in found.history:
        assert (evaluation.reason == "group 5: no such operator") == bool(evaluation.genome[5])
        assert (evaluation.median_ms is None) == bool(evaluation.genome[5])


def test_nothing_can_be_built() -> None:
    found = evolve(14, 2, [KEEP], lambda gs: [Fitness(None, reason="no") for _ in gs])
    assert (found.best, found.fitness, found.stopped_by) == (None, None, "saturated")
    assert len(found.history) == 41


@pytest.mark.parametrize(("digits", "values"), [(0, 3), (1, 10), (2, 3), (3, 2), (5, 1)])
def test_small_spaces_are_gone_through(digits: int, values: int) -> None:
    last = (values - 1,) * digits
    found = evolve(digits, values, [last], measured(lambda g: 10.0 - sum(g)))
    everything = list(itertools.product(range(values), repeat=digits))
    assert [e.genome for e in found.history] == [last, *everything[:-1]]
    assert found.stopped_by == "exhausted"
    assert found.best == last


@pytest.mark.parametrize(("digits", "values"), [(1, 25), (4, 3), (7, 2)])
def test_every_genome_can_be_reached(digits: int, values: int) -> None:
    impatient = Evolution(patience=10**6)
    found = evolve(digits, values, [(0,) * digits], measured(lambda g: 1.0), settings=impatient)
    assert len({e.genome for e in found.history}) == values**digits
    assert found.stopped_by == "exhausted"


def test_the_library_is_loaded_when_needed_and_leaves_nothing_behind() -> None:
    code = """
import importlib, sys
import collage_core, collage_core.search
assert "deap" not in sys.modules
from deap import creator
before = set(vars(creator))
from importlib import import_module as m
names = "evolve", "fitness", "variation"
evolve, fitness, variation = (m(f"collage_core.search.evolution.{n}") for n in names)
for _ in range(2):
    evolve.evolve(9, 2, [(0,) * 9], lambda gs: [fitness.Fitness(1.0)] * len(gs))
    importlib.reload(variation)
    importlib.reload(evolve)
assert set(vars(creator)) == before
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_the_history_draws_the_best_latency_over_time() -> None:
    found = evolve(14, 2, [KEEP, OFFLOAD], measured(run_gains_ms, seconds=2.0), seed=1)
    rows = json.loads(json.dumps(dataclasses.asdict(found)))["history"]
    times_s = list(itertools.accumulate(row["seconds"] for row in rows))
    curve = [(time_s, row["median_ms"]) for time_s, row in zip(times_s, rows, strict=True) if row["is_best"]]
    assert curve[0] == (2.0, 20.0)
    assert len(curve) > 2
    assert curve == sorted(curve, key=lambda point: -point[1])
    assert found.fitness is not None
    assert curve[-1][1] == found.fitness.median_ms


@pytest.mark.parametrize(
    ("digits", "values", "seeds", "budget_s", "message"),
    [
        (-1, 2, [()], None, "no genomes"),
        (2, 0, [(0, 0)], None, "no genomes"),
        (2, 2, [], None, "needs a seed"),
        (2, 2, [(0,)], None, "2 digits below 2"),
        (2, 2, [(0, 2)], None, "2 digits below 2"),
        (2, 2, [(0, 0)], -1.0, "a budget"),
        (2, 2, [(0, 0)], float("nan"), "a budget"),
    ],
)
def test_what_makes_no_sense_is_refused(
    digits: int, values: int, seeds: list[Genome], budget_s: float | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        evolve(digits, values, seeds, measured(lambda g: 1.0), budget_s=budget_s)


@pytest.mark.parametrize(
    "wrong",
    [
        {"population": 0},
        {"patience": 0},
        {"tournament": 0},
        {"mutation": 0.0},
        {"crossover": 1.1},
        {"founding": -0.1},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Evolution(**wrong)  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize("wrong", [(-1.0, 0.0, 0.0), (1.0, float("nan"), 0.0), (1.0, 0.0, float("inf"))])
def test_times_that_make_no_sense_are_refused(wrong: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        Fitness(*wrong)


@pytest.mark.parametrize("answers", [0, 1, 3])
def test_an_answer_for_each_question(answers: int) -> None:
    with pytest.raises(ValueError, match="argument"):
        evolve(14, 2, [KEEP, OFFLOAD], lambda gs: [Fitness(1.0)] * answers)
