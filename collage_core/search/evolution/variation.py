"""New genomes from measured ones: tournament, two-point crossover and mutation, as DEAP does them."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from collage_core.search.evolution.fitness import Fitness, Genome

__all__ = ["Chances", "Parent", "Variation"]

_DRAWS = 10
_MUTATIONS = 1000


@dataclass(frozen=True, slots=True)
class Parent:
    """A measured genome that may have children."""

    genome: Genome
    fitness: Fitness


class _Entrant:
    """A parent in a tournament; of two that tie, the one that `leads` is greater."""

    def __init__(self, parent: Parent, leads: bool) -> None:
        self.genome = parent.genome
        self._fitness = parent.fitness
        self._leads = leads

    @property
    def standing(self) -> _Entrant:
        return self

    def __gt__(self, other: _Entrant) -> bool:
        return self._fitness.beats(other._fitness) or (
            self._leads and not other._fitness.beats(self._fitness)
        )


@dataclass(frozen=True, slots=True)
class Chances:
    """What chance may do; see `Evolution`."""

    mutation: float
    crossover: float
    founding: float
    tournament: int


class Variation:
    """Makes genomes of `digits` digits, each below `values`, by chance that only `seed` decides.

    founders: the seeds of `Evolution`.
    """

    def __init__(
        self, digits: int, values: int, founders: Sequence[Genome], seed: int, chances: Chances
    ) -> None:
        # Not above: DEAP loads a compiled package that only its multi-objective part needs, and who searches
        # at the op level only imports this module as well.
        from deap import tools

        self._tools = tools
        self._digits = digits
        self._values = values
        self._founders = founders
        self._chances = chances
        self._random = random.Random(seed)

    def children(
        self, parents: Sequence[Parent], best: Parent | None, count: int, known: Collection[Genome]
    ) -> list[Genome]:
        """`count` genomes, or as many as can be found, none of which is `known`; ties among parents are in
        favour of `best`.
        """
        entrants = [_Entrant(p, p is best) for p in parents]
        count = min(count, self._values**self._digits - len(known))
        found: dict[Genome, None] = {}
        with _lent_to_module(self._random):
            for draw in range(2 * _DRAWS * count):
                for digits in self._offspring(entrants):
                    # Parents that are much alike have few children that are new; then their mutants do.
                    if draw >= _DRAWS * count:
                        self._mutate_until_new(digits, known)
                    genome = tuple(digits)
                    if genome not in known and len(found) < count:
                        found[genome] = None
                if len(found) == count:
                    break
        return list(found)

    def _mutate_until_new(self, digits: list[int], known: Collection[Genome]) -> None:
        for _ in range(_MUTATIONS):
            if tuple(digits) not in known:
                break
            self._mutate(digits)

    def _offspring(self, entrants: Sequence[_Entrant]) -> Iterator[list[int]]:
        """Two children of two genomes, or one mutant."""
        genome = self._select(entrants)
        partner = self._partner(genome, entrants) if random.random() < self._chances.crossover else None
        if partner is not None:
            yield from self._tools.cxTwoPoint(list(genome), list(partner))
        else:
            mutant = list(genome)
            self._mutate(mutant)
            yield mutant

    def _partner(self, genome: Genome, entrants: Sequence[_Entrant]) -> Genome | None:
        others = [e for e in entrants if e.genome != genome]
        if self._digits < 2 or not others:  # Two points need two digits.
            return None
        if random.random() < self._chances.founding:
            return random.choice(self._founders)
        return self._select(others)

    def _select(self, entrants: Sequence[_Entrant]) -> Genome:
        chosen: list[_Entrant] = self._tools.selTournament(
            entrants, 1, self._chances.tournament, fit_attr="standing"
        )
        return chosen[0].genome

    def _mutate(self, digits: list[int]) -> None:
        self._tools.mutUniformInt(digits, 0, self._values - 1, self._chances.mutation)


@contextmanager
def _lent_to_module(state: random.Random) -> Iterator[None]:
    """DEAP draws from the module `random`, which is everybody's: it continues from `state` meanwhile, and is
    put back as it was.
    """
    saved = random.getstate()
    try:
        random.setstate(state.getstate())
        yield
    finally:
        state.setstate(random.getstate())
        random.setstate(saved)
