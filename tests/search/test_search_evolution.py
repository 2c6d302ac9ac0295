"""The evolutionary search on made-up latencies: what it finds, what noise may do to it, and that it does the
same again.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_latencies import KEEP, OFFLOAD, measured, run_gains_ms

from collage_core.search import Evolution, Evolved, Fitness, Genome, evolve
from collage_core.search.evolution.variation import Chances, Parent, Variation


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


def test_the_best_is_a_parent_though_it_ties_with_the_slowest_one() -> None:
    """Of which so little is known that nothing is better than it beyond that."""

    def evaluate(genomes: Sequence[Genome]) -> list[Fitness]:
        return [Fitness(90.0 - sum(g), 0.1, 1.0) if any(g) else Fitness(100.0, 50.0, 1.0) for g in genomes]

    pair = Evolution(population=2, patience=20)
    found = evolve(40, 2, [(1, *(0,) * 39), (0,) * 40], evaluate, settings=pair, seed=1)
    assert found.best is not None
    assert sum(found.best) > 20


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
