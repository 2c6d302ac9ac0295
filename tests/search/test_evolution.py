"""The evolutionary search on made-up latencies: what it finds, what noise may do to it, and that it does the
same again.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage_core.search import Evolution, Evolved, Fitness, Genome, evolve
from collage_core.search.evolution.variation import Chances, Parent, Variation

Latency = Callable[[Genome], float]


def measured(
    latency_ms: Latency, uncertainty_ms: float = 0.01, seconds: float = 1.0
) -> Callable[[Sequence[Genome]], list[Fitness]]:
    return lambda genomes: [Fitness(latency_ms(g), uncertainty_ms, seconds) for g in genomes]


def run_gains_ms(genome: Genome) -> float:
    """20 ms, where a library costs 0.5 for every run of groups that it gets. It gains 0.2 on each of groups 4
    to 9 and loses 0.3 on every other: no group alone is worth it, nor is the whole.
    """
    starts = sum(a and a != b for a, b in zip(genome, (0, *genome), strict=False))
    gains = sum(0.2 if 4 <= i <= 9 else -0.3 for i, digit in enumerate(genome) if digit)
    return 20.0 + 0.5 * starts - gains


KEEP, OFFLOAD = (0,) * 14, (1,) * 14


@pytest.mark.parametrize("seed", range(8))
def test_a_gain_across_groups_is_found(seed: int) -> None:
    for i in range(14):
        assert run_gains_ms((*KEEP[:i], 1, *KEEP[i + 1 :])) > run_gains_ms(KEEP) < run_gains_ms(OFFLOAD)
    found = evolve(14, 2, [KEEP, OFFLOAD], measured(run_gains_ms), seed=seed)
    assert found.fitness is not None
    assert found.best is not None
    assert found.fitness.median_ms == run_gains_ms(found.best) < 20.0
    assert found.stopped_by == "saturated"


def test_given_time_the_best_of_all_is_found() -> None:
    best = (0,) * 4 + (1,) * 6 + (0,) * 4
    patient = Evolution(patience=20)
    for seed in range(4):
        found = evolve(14, 2, [KEEP, OFFLOAD], measured(run_gains_ms), settings=patient, seed=seed)
        assert found.best == best


def test_two_libraries_share_the_work() -> None:
    """Library 1 is good at the first half, library 2 at the second, and neither at the other."""

    def latency_ms(genome: Genome) -> float:
        changes = sum(a != b for a, b in itertools.pairwise(genome))
        good = sum(digit == (1 if i < 10 else 2) for i, digit in enumerate(genome))
        bad = sum(digit == (2 if i < 10 else 1) for i, digit in enumerate(genome))
        return 30.0 - 0.2 * good + 0.5 * bad + 0.3 * changes

    seeds = [(v,) * 20 for v in range(3)]
    for seed in range(4):
        found = evolve(20, 3, seeds, measured(latency_ms), settings=Evolution(patience=8), seed=seed)
        assert found.best is not None
        assert set(found.best) >= {1, 2}
        assert latency_ms(found.best) < 29.0


def test_groups_come_back() -> None:
    """Where everything was offloaded at first, what is better kept returns."""

    def latency_ms(genome: Genome) -> float:
        return 30.0 - sum(digit == (i not in (3, 7)) for i, digit in enumerate(genome))

    found = evolve(
        12, 2, [(1,) * 12], measured(latency_ms), settings=Evolution(patience=30, mutation=0.1), seed=3
    )
    assert found.best == tuple(int(i not in (3, 7)) for i in range(12))


@pytest.mark.parametrize(("latency_ms", "replaces"), [(9.4, False), (9.3, False), (9.2, True)])
def test_only_what_is_better_beyond_the_noise_replaces(latency_ms: float, replaces: bool) -> None:
    found = evolve(
        12, 2, [(0,) * 12], lambda gs: [Fitness(latency_ms if any(g) else 10.0, 0.5, 1.0) for g in gs]
    )
    assert (found.best != (0,) * 12) == replaces
    assert [e.is_best for e in found.history[:3]] == [True, replaces, False]
    assert sum(e.is_best for e in found.history) == 1 + replaces


def test_gains_within_the_noise_add_up() -> None:
    """Each step is too small to see, four together are not."""
    found = evolve(
        30, 2, [(0,) * 30], measured(lambda g: 30.0 - 0.3 * sum(g), 0.5), settings=Evolution(patience=20)
    )
    bests = [e.median_ms for e in found.history if e.is_best]
    assert len(bests) > 2
    for before, after in itertools.pairwise(bests):
        assert before is not None
        assert after is not None
        assert after < before - 0.7


def noisy(seed: int) -> Callable[[Sequence[Genome]], list[Fitness]]:
    """Latencies, noise, failures and seconds by chance."""
    rng = random.Random(seed)

    def evaluate(genomes: Sequence[Genome]) -> list[Fitness]:
        found = []
        for genome in genomes:
            seconds = rng.uniform(0.5, 4.0)
            if rng.random() < 0.2:
                found.append(Fitness(None, 0.0, seconds, "refused"))
            else:
                latency_ms = 10.0 - 0.1 * sum(d == 1 for d in genome) + rng.gauss(0.0, 0.2)
                found.append(Fitness(latency_ms, rng.uniform(0.0, 0.3), seconds))
        return found

    return evaluate


small = {
    "digits": st.integers(0, 12),
    "values": st.integers(1, 4),
    "seed": st.integers(0, 2**32),
    "population": st.integers(1, 12),
    "patience": st.integers(1, 4),
    "budget_s": st.none() | st.floats(0.0, 150.0),
}
many = settings(max_examples=500, deadline=None)


@many
@given(**small)
def test_what_holds_of_every_run(
    digits: int, values: int, seed: int, population: int, patience: int, budget_s: float | None
) -> None:
    evaluate = noisy(seed)
    asked: list[Genome] = []
    chosen = Evolution(population=population, patience=patience, together=1 + seed % 5)

    def remember(genomes: Sequence[Genome]) -> list[Fitness]:
        assert 0 < len(genomes) <= chosen.together
        asked.extend(genomes)
        return evaluate(genomes)

    seeds = [(v,) * digits for v in (*range(values), 0)]
    found = evolve(
        digits,
        values,
        seeds,
        remember,
        settings=chosen,
        seed=seed,
        budget_s=budget_s,
    )
    assert len(set(asked)) == len(asked)
    assert all(len(g) == digits and all(0 <= d < values for d in g) for g in asked)
    taken = [e.genome for e in found.history]
    assert taken == asked
    assert asked[: len(set(seeds))] == list(dict.fromkeys(seeds))
    assert (found.settings, found.seed) == (chosen, seed)

    fitnesses = [Fitness(e.median_ms, e.uncertainty_ms, e.seconds, e.reason) for e in found.history]
    best = None
    for evaluation, fitness in zip(found.history, fitnesses, strict=True):
        assert evaluation.is_best == (fitness.median_ms is not None and (not best or fitness.beats(best)))
        if evaluation.is_best:
            best = fitness
    assert found.fitness == best
    assert found.best == next((e.genome for e in reversed(found.history) if e.is_best), None)
    assert not any(best and f.beats(best) for f in fitnesses)

    generations = [e.generation for e in found.history]
    assert generations == sorted(generations)

    everything = len(taken) == values**digits
    if found.stopped_by == "saturated":
        assert not any(e.is_best for e in found.history if e.generation > generations[-1] - patience)
    elif found.stopped_by == "budget":
        assert budget_s is not None
    else:
        assert found.stopped_by == "exhausted"
        assert everything


@many
@given(**small)
def test_the_same_answers_give_the_same_run(
    digits: int, values: int, seed: int, population: int, patience: int, budget_s: float | None
) -> None:
    """As when the costs come from the database: it answers by genome, and whatever else is at hand."""

    def once(evaluate: Callable[[Sequence[Genome]], Iterable[Fitness]]) -> Evolved:
        chosen = Evolution(population=population, patience=patience)
        return evolve(
            digits, values, [(0,) * digits], evaluate, settings=chosen, seed=seed, budget_s=budget_s
        )

    first = once(noisy(seed))
    records = {e.genome: Fitness(e.median_ms, e.uncertainty_ms, e.seconds, e.reason) for e in first.history}
    random.seed(digits)
    assert once(lambda genomes: (records[g] for g in genomes)) == first


def test_the_seed_decides() -> None:
    runs = [evolve(14, 2, [KEEP, OFFLOAD], measured(run_gains_ms), seed=seed) for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert runs[0].history != runs[2].history


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


def test_the_best_is_a_parent_though_it_ties_with_the_slowest_one() -> None:
    """Of which so little is known that nothing is better than it beyond that."""

    def evaluate(genomes: Sequence[Genome]) -> list[Fitness]:
        return [Fitness(90.0 - sum(g), 0.1, 1.0) if any(g) else Fitness(100.0, 50.0, 1.0) for g in genomes]

    pair = Evolution(population=2, patience=20)
    found = evolve(40, 2, [(1, *(0,) * 39), (0,) * 40], evaluate, settings=pair, seed=1)
    assert found.best is not None
    assert sum(found.best) > 20


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


def chance(digits: int, values: int, founders: Sequence[Genome] = (), **changed: float) -> Variation:
    usual = Chances(mutation=0.05, crossover=0.0, founding=0.0, tournament=1)
    chances = dataclasses.replace(usual, **changed)  # type: ignore[arg-type]  # one is an int
    return Variation(digits, values, founders, 0, chances)


def test_children_of_two_parents_share_their_runs() -> None:
    """Two-point crossover: a stretch of one parent within the other, and not always the same."""
    parents = [Parent(KEEP, Fitness(1.0)), Parent(OFFLOAD, Fitness(1.0))]
    children = chance(14, 2, crossover=1.0).children(parents, None, 41, {KEEP, OFFLOAD})
    assert len(set(children)) == len(children) == 41
    assert all(1 <= sum(a != b for a, b in itertools.pairwise(c)) <= 2 for c in children)
    assert {c[0] for c in children} == {0, 1}


def test_mutants_differ_in_few_digits() -> None:
    children = chance(100, 3).children([Parent((0,) * 100, Fitness(1.0))], None, 200, set())
    changed = [sum(map(bool, c)) for c in children]
    assert 2.5 < sum(changed) / 200 < 4.5  # 5 digits are drawn anew, a third of them as they were.
    assert {d for c in children for d in c} == {0, 1, 2}


def test_chance_goes_on() -> None:
    variation, parents = chance(100, 3), [Parent((0,) * 100, Fitness(1.0))]
    first = variation.children(parents, None, 20, set())
    assert not set(first) & set(variation.children(parents, None, 20, set()))


@pytest.mark.parametrize(
    ("fitnesses", "best", "share"),
    [
        ((Fitness(1.0, 0.1), Fitness(2.0, 0.1)), None, 7 / 8),
        ((Fitness(2.0, 0.1), Fitness(1.0, 0.1)), 0, 1 / 8),
        ((Fitness(1.0, 0.1), Fitness(None)), None, 7 / 8),
        ((Fitness(2.0, 0.8), Fitness(1.0, 0.7)), None, 1 / 2),
        ((Fitness(2.0, 0.8), Fitness(1.0, 0.7)), 0, 7 / 8),
        ((Fitness(2.0, 0.8), Fitness(1.0, 0.7)), 1, 1 / 8),
    ],
)
def test_who_has_the_more_children(fitnesses: Sequence[Fitness], best: int | None, share: float) -> None:
    """The better one, or of two that tie the best so far, wins all tournaments of three that it takes part
    in: 7 of 8.
    """
    parents = [Parent((v,) * 300, fitness) for v, fitness in enumerate(fitnesses)]
    leader = None if best is None else parents[best]
    children = chance(300, 2, tournament=3).children(parents, leader, 400, set())
    assert sum(sum(c) < 150 for c in children) / 400 == pytest.approx(share, abs=0.07)


def test_founders_go_on_giving_their_digits() -> None:
    """Library 2 is in none of the parents, but in the founder."""
    parents = [Parent((0,) * 50, Fitness(1.0)), Parent((1,) * 50, Fitness(1.0))]
    founder = (2,) * 50
    for founding in (0.0, 0.2):
        variation = chance(50, 3, [founder], crossover=1.0, founding=founding)
        children = variation.children(parents, None, 200, {founder})
        assert 40 * founding <= sum(2 in c for c in children) <= 400 * founding


def test_where_all_tie_the_seeds_remain_the_parents() -> None:
    """And the first of them wins the tournaments: whatever comes is one mutation away from it."""
    rng = random.Random(0)
    seeds = [tuple(rng.randrange(2) for _ in range(300)) for _ in range(5)]
    chosen = Evolution(population=5, patience=20, mutation=0.01, crossover=0.0, tournament=60)
    found = evolve(300, 2, seeds, noisy_ties, settings=chosen)
    assert len(found.history) == 105
    for evaluation in found.history[5:]:
        assert sum(a != b for a, b in zip(evaluation.genome, seeds[0], strict=True)) < 12


def noisy_ties(genomes: Sequence[Genome]) -> list[Fitness]:
    return [Fitness(10.0 + sum(g) % 7, 5.0, 1.0) for g in genomes]


def test_nobody_elses_chance_is_touched() -> None:
    """The module `random` goes on as if nothing had been, also within the evaluations, and has no say."""
    random.seed(5)
    expected = [random.random() for _ in range(60)]
    seen: list[float] = []

    def evaluate(genomes: Sequence[Genome]) -> list[Fitness]:
        seen.extend(random.random() for _ in genomes)
        return [Fitness(run_gains_ms(g), 0.01, 1.0) for g in genomes]

    random.seed(5)
    first = evolve(14, 2, [KEEP, OFFLOAD], evaluate, settings=Evolution(patience=2), budget_s=40.0)
    assert 20 < len(seen) <= 40
    assert [*seen, random.random()] == expected[: len(seen) + 1]
    random.seed(6)
    assert evolve(14, 2, [KEEP, OFFLOAD], evaluate, settings=Evolution(patience=2), budget_s=40.0) == first


def test_chance_is_given_back_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    variation = chance(14, 2)
    monkeypatch.setattr(variation, "_offspring", lambda parents: 1 / 0)
    before = random.getstate()
    with pytest.raises(ZeroDivisionError):
        variation.children([Parent(KEEP, Fitness(1.0))], None, 1, {KEEP})
    assert random.getstate() == before


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
