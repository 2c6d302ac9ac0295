"""Evolutionary search over which library runs each group, judged by measurements that are dear and noisy: the
graph level of the Collage paper (section 4.3), for any number of libraries.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from collage_core.search.evolution.fitness import Fitness, Genome
from collage_core.search.evolution.variation import Chances, Parent, Variation

__all__ = ["Evaluation", "Evolution", "Evolved", "StoppedBy", "evolve"]

StoppedBy = Literal["saturated", "budget", "exhausted", "interrupted"]
"""Why an evolution ended: no improvement for long enough; no seconds left; no genome left; Ctrl-C."""


@dataclass(frozen=True, slots=True)
class Evolution:
    """How to evolve. With the defaults 40 genomes besides the seeds are evaluated where none is better, and
    as many after the last that is: two minutes at 2 or 3 s each.

    population: parents that are kept, and new genomes per generation. patience: generations without a better
    genome until it counts as saturated. mutation: probability of each digit of a mutant to be drawn anew.
    crossover: probability that children come from two parents by two-point crossover rather than from one by
    mutation; high, since what gains are long runs of neighbouring groups in one library, which mutants break.
    founding: probability that the second of two parents is a seed: a seed that is slow as a whole is no
    parent for long, and the digits that it alone has would be lost with it. tournament: how many draws
    compete to be a parent. together: genomes that are evaluated in one go, so that they compare; by so many
    the budget may be overrun, and so many an interruption may lose.
    """

    population: int = 10
    patience: int = 4
    mutation: float = 0.05
    crossover: float = 0.9
    founding: float = 0.2
    tournament: int = 3
    together: int = 4

    def __post_init__(self) -> None:
        if min(self.population, self.patience, self.tournament, self.together) < 1:
            raise ValueError(f"population, patience, tournament and together must be at least 1: {self}")
        if not (0.0 < self.mutation <= 1.0 and 0.0 <= self.crossover <= 1.0 and 0.0 <= self.founding <= 1.0):
            raise ValueError(f"mutation, crossover and founding are probabilities, mutation not 0: {self}")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One line of the history: what a genome has shown (see `Fitness`), and whether it became the best.

    generation: 0 for the seeds.
    """

    generation: int
    genome: Genome
    median_ms: float | None
    uncertainty_ms: float
    seconds: float
    reason: str | None
    is_best: bool


@dataclass(frozen=True, slots=True)
class Evolved:
    """The best genome with its fitness (None where none could be run), and how it was found.

    history: all evaluations in their order; the latency of the best so far over their summed seconds is the
    paper's Figure 10.
    """

    best: Genome | None
    fitness: Fitness | None
    history: tuple[Evaluation, ...]
    settings: Evolution
    seed: int
    stopped_by: StoppedBy


def evolve(
    digits: int,
    values: int,
    seeds: Sequence[Genome],
    evaluate: Callable[[Sequence[Genome]], Iterable[Fitness]],
    *,
    settings: Evolution | None = None,
    seed: int = 0,
    budget_s: float | None = None,
) -> Evolved:
    """The fastest genome of `digits` digits 0..values-1 that `evaluate` finds for the children of `seeds`.

    evaluate: given up to `settings.together` genomes, none of them for the second time, it returns or yields
    their fitness in the same order. The first seed is the best until another one beats it; ties never replace
    it (`Fitness.beats`). Spaces no larger than a population are gone through from end to end. seed: of all
    chance.

    budget_s: how many seconds the evaluations may take in all, by their own account, so that the same answers
    give the same run. No more are evaluated than will fit if it goes on as before; the seeds always are, and
    whatever was evaluated counts, beyond the budget too. KeyboardInterrupt ends the search; what was returned
    or yielded before counts.

    Raises ValueError where seeds are no such genomes or `evaluate` answers for more or fewer than it was
    asked.
    """
    settings = settings or Evolution()
    _check(digits, values, seeds, budget_s)
    search = _Search(evaluate, settings, budget_s)
    try:
        stopped_by = search.run(digits, values, seeds, seed)
    except KeyboardInterrupt:
        stopped_by = "interrupted"
    best = search.best
    return Evolved(
        best=best.genome if best else None,
        fitness=best.fitness if best else None,
        history=tuple(search.history),
        settings=settings,
        seed=seed,
        stopped_by=stopped_by,
    )


class _Search:
    """What is known at a time: all that was evaluated, the parents among it, and the best."""

    def __init__(
        self,
        evaluate: Callable[[Sequence[Genome]], Iterable[Fitness]],
        settings: Evolution,
        budget_s: float | None,
    ) -> None:
        self.best: Parent | None = None
        self.history: list[Evaluation] = []
        self._evaluate = evaluate
        self._settings = settings
        self._budget_s = budget_s
        self._known: set[Genome] = set()
        self._parents: list[Parent] = []
        self._seconds = 0.0
        self._generation = 0

    def run(self, digits: int, values: int, seeds: Sequence[Genome], seed: int) -> StoppedBy:
        settings = self._settings
        founders = list(dict.fromkeys(seeds))
        self._measure(founders)
        if values**digits <= settings.population:
            everything = itertools.product(range(values), repeat=digits)
            fits = self._measure([g for g in everything if g not in self._known], self._budget_s)
            return "exhausted" if fits else "budget"
        chances = Chances(settings.mutation, settings.crossover, settings.founding, settings.tournament)
        variation = Variation(digits, values, founders, seed, chances)
        in_vain = 0
        while in_vain < settings.patience:
            children = variation.children(self._parents, self.best, settings.population, self._known)
            if not children:
                return "exhausted"
            best = self.best
            if not self._measure(children, self._budget_s):
                return "budget"
            in_vain = in_vain + 1 if self.best is best else 0
        return "saturated"

    def _measure(self, genomes: Sequence[Genome], budget_s: float | None = None) -> bool:
        """Evaluate them, or as many as the budget is likely to allow; say whether those are all."""
        done = 0
        while done < len(genomes) and (size := self._fitting(budget_s)) > 0:
            batch = genomes[done : done + size]
            for genome, fitness in zip(batch, self._evaluate(batch), strict=True):
                self._take(Parent(genome, fitness))
            done += len(batch)
        self._generation += done > 0
        return done == len(genomes)

    def _fitting(self, budget_s: float | None) -> int:
        """How many of a batch the budget has room for, if they take as long as those before."""
        together = self._settings.together
        if budget_s is None:
            return together
        left_s = max(0.0, budget_s - self._seconds)
        if self._seconds == 0.0:  # nothing is known yet
            return together if left_s else 0
        return int(min(together, left_s * len(self.history) / self._seconds))

    def _take(self, new: Parent) -> None:
        fitness = new.fitness
        best = self.best.fitness if self.best else Fitness(None)
        is_best = fitness.beats(best)
        if is_best:
            self.best = new
        self._known.add(new.genome)
        self._seconds += fitness.seconds
        self.history.append(
            Evaluation(
                generation=self._generation,
                genome=new.genome,
                median_ms=fitness.median_ms,
                uncertainty_ms=fitness.uncertainty_ms,
                seconds=fitness.seconds,
                reason=fitness.reason,
                is_best=is_best,
            )
        )
        if len(self._parents) < self._settings.population:
            self._parents.append(new)
            return
        slowest = max(range(len(self._parents)), key=lambda i: _median_ms(self._parents[i]))
        if is_best or fitness.beats(self._parents[slowest].fitness):
            self._parents[slowest] = new


def _median_ms(parent: Parent) -> float:
    return math.inf if parent.fitness.median_ms is None else parent.fitness.median_ms


def _check(digits: int, values: int, seeds: Sequence[Genome], budget_s: float | None) -> None:
    if digits < 0 or values < 1:
        raise ValueError(f"there are no genomes of {digits} digits with {values} values each")
    if not seeds:
        raise ValueError("an evolution needs a seed to start from")
    for genome in seeds:
        if len(genome) != digits or not all(0 <= digit < values for digit in genome):
            raise ValueError(f"seed {genome} is not made of {digits} digits below {values}")
    if budget_s is not None and not budget_s >= 0.0:
        raise ValueError(f"a budget is a number of seconds, not {budget_s}")
