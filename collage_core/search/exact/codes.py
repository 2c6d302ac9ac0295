"""What the dynamic program remembers about one value, as small codes; which code follows which, costs apart.

A *live* value has a chosen producer and some unchosen reader. Its code stands for the format in which it was
produced, the formats in which it exists already, and the producer's backend (NO_BACKEND once a crossing was
paid, or none can be owed). A *pending* value has some chosen reader and an unchosen producer. Its code stands
for the formats needed so far, and for whether its readers have no backend, one, or several. Code 0 of a
pending value: nobody has touched it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from collage_core.search.problem import NO_BACKEND

__all__ = ["SEVERAL", "Bools", "CodeSpace", "Ints", "Signature", "code_space"]

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

Signature = tuple[int, int]
"""(format, backend) in which a choice reads or writes a value; formats are numbered from 0 for each value."""

SEVERAL = -2
"""Stands for the backends of a pending value's readers when there is more than one."""

_FORGOTTEN = -1

_Live = tuple[int, int, int]
_Pending = tuple[int, int]
_State = TypeVar("_State", _Live, _Pending)


@dataclass(frozen=True, eq=False)
class CodeSpace:
    """Codes and successors; F formats, R reading and W writing signatures, L live and P pending codes.

    consumed[L, R]: a reader joins a live value; crosses_in[L, R]: whether that pays the crossing. needed[P,
    R]: a reader joins a pending value. produced[P, W]: the producer is chosen, giving a live code;
    crosses_out[P, W] likewise. Successors are 0 where no reader can be left. source[L], made[L, F], home[L]
    and wanted[P, F], who[P] are what the codes stand for. arrival: live code of a model input. asked[F]:
    formats that anybody may ever ask for, or that lie on a way there. ways[F, F, F]: from the first format to
    the second, which formats are made.
    """

    readings: tuple[Signature, ...]
    writings: tuple[Signature, ...]
    consumed: Ints
    crosses_in: Bools
    needed: Ints
    produced: Ints
    crosses_out: Bools
    source: Ints
    made: Bools
    home: Ints
    wanted: Bools
    who: Ints
    arrival: int
    asked: Bools
    ways: Bools
    bits: int

    @cached_property
    def reading_formats(self) -> Ints:
        """[R]"""
        return np.array([f for f, _ in self.readings], np.int64)

    @cached_property
    def writing_formats(self) -> Ints:
        """[W]"""
        return np.array([f for f, _ in self.writings], np.int64)

    @cached_property
    def readings_differ(self) -> Bools:
        """[R, R]: whether the first is of a backend, and of another one than the second."""
        return _differ(np.array([b for _, b in self.readings], np.int64))

    @cached_property
    def writings_differ(self) -> Bools:
        """[W, W]: likewise."""
        return _differ(np.array([b for _, b in self.writings], np.int64))

    @cached_property
    def homes_differ(self) -> Bools:
        """[L, L]: likewise."""
        return _differ(self.home)

    @cached_property
    def readers_differ(self) -> Bools:
        """[P, P]: likewise, and the second is not of several."""
        differ: Bools = _differ(self.who) & (self.who != SEVERAL)
        return differ


def _differ(backend: Ints) -> Bools:
    differ: Bools = (backend[:, None] != NO_BACKEND) & (backend[:, None] != backend)
    return differ


@lru_cache(maxsize=1024)
def code_space(
    readings: tuple[Signature, ...],
    writings: tuple[Signature, ...],
    ways: tuple[tuple[int, ...], ...],
    output_format: int | None,
    input_format: int | None,
    consumers: int,
    crossings_cost: bool,
) -> CodeSpace:
    """Enumerate the codes that up to `consumers` readers can reach. A model input has one writing, by
    NO_BACKEND. ways[F][F]: from, to; the formats that are made on the way, as bits, the last among them.
    """
    formats = len(ways)
    rules = _Rules(readings, writings, ways, output_format, crossings_cost)
    pending = _reach({(0, NO_BACKEND): 0}, rules.need, readings, 0 if input_format is not None else consumers)
    starts: dict[_Live, int] = {}
    for state, depth in pending.items():
        for writing in writings:
            code = rules.produce(state, writing)[0]
            starts[code] = min(depth, starts.get(code, depth))
    live = _reach(starts, lambda s, r: rules.consume(s, r)[0], readings, consumers - 1)
    live_index = {s: i for i, s in enumerate(live)}
    pending_index = {s: i for i, s in enumerate(pending)}
    consumed = [[rules.consume(s, r) for r in readings] for s in live]
    produced = [[rules.produce(s, w) for w in writings] for s in pending]
    to_live, to_pending = (len(live), len(readings)), (len(pending), len(readings))
    to_produced = (len(pending), len(writings))
    after_produced = _table([[live_index.get(s, 0) for s, _ in row] for row in produced], to_produced)
    return CodeSpace(
        readings=readings,
        writings=writings,
        consumed=_table([[live_index.get(s, 0) for s, _ in row] for row in consumed], to_live),
        crosses_in=_table([[crosses for _, crosses in row] for row in consumed], to_live).astype(bool),
        needed=_table(
            [[pending_index.get(rules.need(s, r), 0) for r in readings] for s in pending], to_pending
        ),
        produced=after_produced,
        crosses_out=_table([[crosses for _, crosses in row] for row in produced], to_produced).astype(bool),
        source=np.array([max(p, 0) for p, _, _ in live], np.int64),
        made=_bits_of([m for _, m, _ in live], formats),
        home=np.array([b for _, _, b in live], np.int64),
        wanted=_bits_of([q for q, _ in pending], formats),
        who=np.array([w for _, w in pending], np.int64),
        arrival=int(after_produced[0, 0]) if input_format is not None else 0,
        asked=_bits_of([rules.asked], formats)[0],
        ways=np.array([_bits_of(row, formats) for row in ways], bool).reshape(3 * (formats,)),
        bits=(max(len(live), len(pending)) - 1).bit_length(),
    )


class _Rules:
    """How the state of a value changes; second in a result is whether the change pays the crossing."""

    def __init__(
        self,
        readings: Sequence[Signature],
        writings: Sequence[Signature],
        ways: Sequence[Sequence[int]],
        output_format: int | None,
        crossings_cost: bool,
    ) -> None:
        self.returned = 0 if output_format is None else 1 << output_format
        self.crossings_cost = crossings_cost
        self._ways = ways
        needed = self.returned
        for q, _ in readings:
            needed |= 1 << q
        # By source: all that may ever have to be made.
        self._makable = {p: self._made(p, needed) for p, _ in writings}
        self.asked = needed
        for made in self._makable.values():
            self.asked |= made

    def produce(self, state: _Pending, writing: Signature) -> tuple[_Live, bool]:
        (wanted, who), (source, backend) = state, writing
        crosses = NO_BACKEND not in (backend, who) and who != backend
        made = self._made(source, wanted | self.returned) | 1 << source
        return self._live(source, made, NO_BACKEND if crosses else backend), crosses

    def consume(self, state: _Live, reading: Signature) -> tuple[_Live, bool]:
        (source, made, home), (wanted, backend) = state, reading
        crosses = NO_BACKEND not in (home, backend) and home != backend
        if source != _FORGOTTEN:
            made |= self._ways[source][wanted]
        return self._live(source, made, NO_BACKEND if crosses else home), crosses

    def need(self, state: _Pending, reading: Signature) -> _Pending:
        (wanted, who), (more, backend) = state, reading
        if backend != NO_BACKEND and self.crossings_cost:
            who = backend if who in (NO_BACKEND, backend) else SEVERAL
        return wanted | 1 << more, who

    def _live(self, source: int, made: int, backend: int) -> _Live:
        """The one form of all live states with the same future."""
        home = backend if self.crossings_cost else NO_BACKEND
        if source != _FORGOTTEN:
            made &= self._makable[source]
            if made != self._makable[source]:
                return source, made, home
        return _FORGOTTEN, self.asked, home

    def _made(self, source: int, needed: int) -> int:
        """What is made of a value of format `source` where these are needed."""
        made = 0
        for q, way in enumerate(self._ways[source]):
            if needed >> q & 1:
                made |= way
        return made


def _reach(
    starts: dict[_State, int],
    step: Callable[[_State, Signature], _State],
    readings: Sequence[Signature],
    limit: int,
) -> dict[_State, int]:
    """States within `limit` steps, with the fewest steps to each, in the order of discovery."""
    found = {s: d for s, d in starts.items() if d <= limit}
    level = list(found)
    while level:
        fresh = []
        for state in level:
            if found[state] == limit:
                continue
            for reading in readings:
                after = step(state, reading)
                if found[state] + 1 < found.get(after, limit + 1):
                    found[after] = found[state] + 1
                    fresh.append(after)
        level = fresh
    return found


def _table(rows: Sequence[Sequence[int]], shape: tuple[int, int]) -> Ints:
    return np.array(rows, np.int64).reshape(shape)


def _bits_of(masks: Sequence[int], width: int) -> Bools:
    return np.array([[m >> q & 1 for q in range(width)] for m in masks], bool).reshape(len(masks), width)
