"""The life of one value: what its codes charge against what a placement pays, and the bounds that dominance
relies on.
"""

from __future__ import annotations

import math
import random
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage_core.search import NO_BACKEND
from collage_core.search.exact.charges import ChargeTables
from collage_core.search.exact.codes import code_space

CONSUMERS = 3


class Life:
    """A value with a few random signatures; readers and the producer are given as indices of theirs."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        formats = rng.randint(1, 4)
        everything = list(product(range(formats), (NO_BACKEND, 0, 1, 2)))
        self.readings = tuple(rng.sample(everything, min(len(everything), 4)))
        self.writings = tuple(rng.sample(everything, min(len(everything), 3)))
        self.output_format = rng.choice((None, rng.randrange(formats)))
        self.crossing_ms = {b: rng.choice((0.0, 0.5, 2.0)) for b in range(3)}
        conversion_ms = np.array(
            [
                [rng.choice((rng.random(), rng.random(), math.inf)) for _ in range(formats)]
                for _ in range(formats)
            ]
        )
        np.fill_diagonal(conversion_ms, 0.0)
        self.conversion_ms = conversion_ms
        self.ways = [self._tree(rng, p, formats) for p in range(formats)]
        if seed % 2:
            self.ways = [[1 << q for q in range(formats)] for _ in range(formats)]
        self.space = code_space(
            self.readings,
            self.writings,
            tuple(map(tuple, self.ways)),
            self.output_format,
            None,
            CONSUMERS,
            any(self.crossing_ms.values()),
        )
        self.tables = ChargeTables(self.space, conversion_ms, self.output_format, True, self.crossing_ms)

    @staticmethod
    def _tree(rng: random.Random, source: int, formats: int) -> list[int]:
        """What is made on the way to each format: some ways go by what others make."""
        ways = [0] * formats
        ways[source] = 1 << source
        done: list[int] = []
        for q in rng.sample(range(formats), formats):
            if q != source:
                ways[q] = 1 << q | (ways[rng.choice(done)] if done and rng.random() < 0.6 else 0)
                done.append(q)
        return ways

    def pending(self, before: tuple[int, ...]) -> int:
        code = 0
        for r in before:
            code = int(self.space.needed[code, r])
        return code

    def consume(self, code: int, readers: tuple[int, ...]) -> float:
        total = 0.0
        for r in readers:
            total += self.tables.consume_ms[code, r]
            code = int(self.space.consumed[code, r])
        return total

    def charge(self, before: tuple[int, ...], writing: int, after: tuple[int, ...]) -> float:
        code = self.pending(before)
        total = float(self.tables.produce_ms[code, writing])
        return (
            total
            if math.isinf(total)
            else total + self.consume(int(self.space.produced[code, writing]), after)
        )

    def naive(self, readers: tuple[int, ...], writing: int) -> float:
        source, home = self.writings[writing]
        needed = {self.readings[r][0] for r in readers}
        if self.output_format is not None:
            needed.add(self.output_format)
        others = {self.readings[r][1] for r in readers} - {home, NO_BACKEND}
        crossing_ms = self.crossing_ms[home] if others and home != NO_BACKEND else 0.0
        made = 0
        for q in needed:
            made |= self.ways[source][q]
        hops_ms = (float(ms) for f, ms in enumerate(self.conversion_ms[source]) if made >> f & 1)
        return crossing_ms + math.fsum(hops_ms)

    def sequences(self, longest: int) -> list[tuple[int, ...]]:
        return [s for n in range(longest + 1) for s in product(range(len(self.readings)), repeat=n)]


lives = settings(max_examples=60, deadline=None)


@lives
@given(seed=st.integers(0, 2**32))
def test_charges_do_not_depend_on_the_order_of_events(seed: int) -> None:
    life = Life(seed)
    for readers in life.sequences(CONSUMERS):
        for writing in range(len(life.writings)):
            expected = pytest.approx(life.naive(readers, writing))
            for split in range(len(readers) + 1):
                assert life.charge(readers[:split], writing, readers[split:]) == expected


@lives
@given(seed=st.integers(0, 2**32))
def test_live_slack_bounds_every_future(seed: int) -> None:
    life = Life(seed)
    reached = {}
    for readers in life.sequences(CONSUMERS - 1):
        for writing in range(len(life.writings)):
            code = life.pending(readers)
            if math.isfinite(life.tables.produce_ms[code, writing]):
                reached[int(life.space.produced[code, writing])] = min(CONSUMERS - len(readers), 2)
    for s, left_s in reached.items():
        for t, left_t in reached.items():
            left = min(left_s, left_t)
            slack_ms = life.tables.live_slack_ms(left)[s, t]
            for future in life.sequences(left):
                assert life.consume(s, future) <= life.consume(t, future) + slack_ms + 1e-9


@lives
@given(seed=st.integers(0, 2**32))
def test_pending_slack_bounds_every_future(seed: int) -> None:
    life = Life(seed)
    sequences = life.sequences(2)
    for first, second in product(sequences, repeat=2):
        slack_ms = life.tables.pending_slack_ms[life.pending(first), life.pending(second)]
        for writing in range(len(life.writings)):
            for future in ((), *((r,) for r in range(len(life.readings)))):
                assert (
                    life.naive(first + future, writing)
                    <= life.naive(second + future, writing) + slack_ms + 1e-9
                )


@lives
@given(seed=st.integers(0, 2**32))
def test_choices_replaced_within_a_node_set_lose_nothing(seed: int) -> None:
    life = Life(seed)
    writings = range(len(life.writings))
    for s, t in product(range(len(life.readings)), repeat=2):
        slack_ms = life.tables.reading_slack_ms[s, t]
        for others, writing in product(life.sequences(2), writings):
            assert life.naive((s, *others), writing) <= life.naive((t, *others), writing) + slack_ms + 1e-9
    for s, t in product(writings, repeat=2):
        slack_ms = life.tables.writing_slack_ms[s, t]
        for readers in life.sequences(2):
            assert life.naive(readers, s) <= life.naive(readers, t) + slack_ms + 1e-9
