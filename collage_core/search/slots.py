"""What the dynamic program remembers about one value: small codes, what each event charges, and how codes compare.

A *live* value has a chosen producer and some unchosen reader. Its code stands for the produced format p, the formats M in which it
exists already, and the producer's backend b (NO_BACKEND once a crossing was paid, or can no longer be owed).
A *pending* value has some chosen reader and an unchosen producer. Its code stands for the formats Q needed so far and
for whether its readers have no backend, one, or several. Code 0 of a pending value is the value nobody has touched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from collage_core.search.problem import NO_BACKEND

__all__ = ["Costs", "Ints", "Signature", "SlotTables"]

Costs = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

Signature = tuple[int, int]
"""(format, backend) in which a choice reads or writes a value."""

_SEVERAL = -2
_FORGOTTEN = -1

_Live = tuple[int, int, int]
_Pending = tuple[int, int]
_State = TypeVar("_State", _Live, _Pending)


@dataclass(frozen=True, eq=False)
class SlotTables:
    """Tables of one value; made by `SlotTables.of`. R readings, W writings (both as `Signature` indices), L live and P pending codes.

    consume_ms[L, R], consumed[L, R]: a reader joins a live value. needed[P, R]: a reader joins a pending value, for free.
    produce_ms[P, W], produced[P, W]: the producer is chosen; the result is a live code.
    arrival, arrival_ms: live code and cost of a model input, whose arrival is a writing as well. bits: width of the larger code.
    Charges are inf where a conversion is missing; the successor is then 0, as it is where no reader can be left.
    """

    consume_ms: Costs
    consumed: Ints
    needed: Ints
    produce_ms: Costs
    produced: Ints
    arrival: int
    arrival_ms: float
    bits: int
    _live: tuple[_Live, ...]
    _pending: tuple[_Pending, ...]
    _readings: tuple[Signature, ...]
    _writings: tuple[Signature, ...]
    _conversion_ms: Costs
    _crossing_ms: float
    _has_producer: bool
    _live_slack: dict[int, Costs] = field(default_factory=dict)

    @staticmethod
    @lru_cache(maxsize=4096)
    def of(
        readings: tuple[Signature, ...],
        writings: tuple[Signature, ...],
        conversions: tuple[tuple[float, ...], ...],
        output_format: int | None,
        input_format: int | None,
        consumers: int,
        crossing_ms: float,
    ) -> SlotTables:
        """Enumerate the codes that up to `consumers` readers can reach. conversions[p][q], formats numbered from 0; r(p, p) = 0."""
        return _Builder(readings, writings, np.array(conversions, float).reshape(len(conversions), len(conversions)), output_format, input_format, consumers, crossing_ms).build()

    def live_slack_ms(self, readers_left: int) -> Costs:
        """[L, L]: the most that code s can still cost beyond code t, whatever up to `readers_left` further readers ask for."""
        readers_left = min(readers_left, self._conversion_ms.shape[1])
        if readers_left not in self._live_slack:
            made = _bits_of([m for _, m, _ in self._live], self._conversion_ms.shape[1])
            source = [max(p, 0) for p, _, _ in self._live]
            owed = np.where(made, 0.0, self._conversion_ms[source])
            extra = _largest(_positive_part(owed[:, None, :], owed[None, :, :]), readers_left)
            home = np.array([b for _, _, b in self._live])
            crosses = (home[:, None] != NO_BACKEND) & (home[:, None] != home[None, :])
            self._live_slack[readers_left] = extra + np.where(crosses, self._crossing_ms, 0.0)
        return self._live_slack[readers_left]

    @cached_property
    def pending_slack_ms(self) -> Costs:
        """[P, P]: the most that code s can still cost beyond code t, whatever the producer and the further readers turn out to be."""
        wanted = _bits_of([q for q, _ in self._pending], self._conversion_ms.shape[1])
        extra = self._worst_source_ms(wanted[:, None, :] & ~wanted[None, :, :])
        who = np.array([w for _, w in self._pending])
        crosses = (who[:, None] != NO_BACKEND) & (who[:, None] != who[None, :]) & (who[None, :] != _SEVERAL)
        return extra + np.where(crosses, self._crossing_ms, 0.0)

    @cached_property
    def reading_slack_ms(self) -> Costs:
        """[R, R]: the most that a group that reads by signature s can cost beyond one that reads by t, all else being equal."""
        formats = np.array([q for q, _ in self._readings])
        wanted = formats[:, None] == np.arange(self._conversion_ms.shape[1])
        extra = self._worst_source_ms(wanted[:, None, :] & ~wanted[None, :, :])
        return extra + (self._crossing_slack_ms(self._readings) if self._has_producer else 0.0)

    @cached_property
    def writing_slack_ms(self) -> Costs:
        """[W, W]: the most that a group that writes by signature s can cost beyond one that writes by t, all else being equal."""
        owed = self._conversion_ms[[p for p, _ in self._writings]]
        extra = _positive_part(owed[:, None, :], owed[None, :, :]).sum(axis=2)
        return extra + (self._crossing_slack_ms(self._writings) if self._readings else 0.0)

    def _worst_source_ms(self, wanted: npt.NDArray[np.bool_]) -> Costs:
        """[..., formats] -> [...]: what the wanted formats cost at most, over all formats in which the value may be produced."""
        extra = np.zeros(wanted.shape[:-1])
        for source in self._sources:
            extra = np.maximum(extra, np.where(wanted, self._conversion_ms[source], 0.0).sum(axis=-1))
        return extra

    @cached_property
    def _sources(self) -> list[int]:
        return sorted({p for p, _ in self._writings})

    def _crossing_slack_ms(self, signatures: tuple[Signature, ...]) -> Costs:
        backend = np.array([b for _, b in signatures])
        differs = (backend[:, None] != NO_BACKEND) & (backend[:, None] != backend[None, :])
        return np.where(differs, self._crossing_ms, 0.0)


class _Builder:
    def __init__(
        self,
        readings: Sequence[Signature],
        writings: Sequence[Signature],
        conversion_ms: Costs,
        output_format: int | None,
        input_format: int | None,
        consumers: int,
        crossing_ms: float,
    ) -> None:
        self.readings = readings
        self.writings = writings
        self.conversion_ms = conversion_ms.copy()
        self.output_format = output_format
        self.input_format = input_format
        self.consumers = consumers
        self.crossing_ms = crossing_ms
        wanted = {q for q, _ in readings} | ({output_format} if output_format is not None else set())
        self.all_wanted = sum(1 << q for q in wanted)
        # What nobody can ask for costs nothing; otherwise it would count as a difference between two states.
        self.conversion_ms[:, [q for q in range(conversion_ms.shape[1]) if q not in wanted]] = 0.0

    def build(self) -> SlotTables:
        pending = _reach({(0, NO_BACKEND): 0}, self.need, self.readings, self.consumers)
        if self.input_format is not None:
            arrival_ms, arrival = self.arrive(self.input_format)
            starts = {arrival: 0}
        else:
            arrival_ms, arrival = 0.0, None
            starts = {}
            for state, depth in pending.items():
                for writing in self.writings:
                    code = self.produce(state, writing)[1]
                    starts[code] = min(depth, starts.get(code, depth))
        live = _reach(starts, lambda s, r: self.consume(s, r)[1], self.readings, self.consumers - 1)
        live_index = {s: i for i, s in enumerate(live)}
        pending_index = {s: i for i, s in enumerate(pending)}
        consume = [[self.consume(s, r) for r in self.readings] for s in live]
        produce = [[self.produce(s, w) for w in self.writings] for s in pending]
        reads, writes = len(self.readings), len(self.writings)
        return SlotTables(
            consume_ms=np.array([[ms for ms, _ in row] for row in consume], float).reshape(len(live), reads),
            consumed=np.array([[live_index.get(s, 0) for _, s in row] for row in consume], np.int64).reshape(len(live), reads),
            needed=np.array([[pending_index.get(self.need(s, r), 0) for r in self.readings] for s in pending], np.int64).reshape(
                len(pending), reads
            ),
            produce_ms=np.array([[ms for ms, _ in row] for row in produce], float).reshape(len(pending), writes),
            produced=np.array([[live_index.get(s, 0) for _, s in row] for row in produce], np.int64).reshape(len(pending), writes),
            arrival=0 if arrival is None else live_index.get(arrival, 0),
            arrival_ms=arrival_ms,
            bits=(max(len(live), len(pending), 1) - 1).bit_length(),
            _live=tuple(live),
            _pending=tuple(pending),
            _readings=tuple(self.readings),
            _writings=tuple(self.writings),
            _conversion_ms=self.conversion_ms,
            _crossing_ms=self.crossing_ms,
            _has_producer=self.input_format is None,
        )

    def live(self, source: int, made: int, backend: int) -> _Live:
        """The one form of all live states with the same future."""
        return (
            _FORGOTTEN if made & self.all_wanted == self.all_wanted else source,
            made & self.all_wanted,
            backend if self.crossing_ms else NO_BACKEND,
        )

    def convert_ms(self, source: int, wanted: int) -> float:
        row = self.conversion_ms[source]
        return float(sum(row[q] for q in range(len(row)) if wanted >> q & 1 and q != source))

    def arrive(self, source: int) -> tuple[float, _Live]:
        wanted = 0 if self.output_format is None else 1 << self.output_format
        return self.convert_ms(source, wanted), self.live(source, wanted | 1 << source, NO_BACKEND)

    def produce(self, state: _Pending, writing: Signature) -> tuple[float, _Live]:
        (wanted, who), (source, backend) = state, writing
        if self.output_format is not None:
            wanted |= 1 << self.output_format
        cost = self.convert_ms(source, wanted)
        if NO_BACKEND not in (backend, who) and who != backend:
            cost, backend = cost + self.crossing_ms, NO_BACKEND
        return cost, self.live(source, wanted | 1 << source, backend)

    def consume(self, state: _Live, reading: Signature) -> tuple[float, _Live]:
        (source, made, home), (wanted, backend) = state, reading
        cost = 0.0 if made >> wanted & 1 else float(self.conversion_ms[source, wanted])
        if NO_BACKEND not in (home, backend) and home != backend:
            cost, home = cost + self.crossing_ms, NO_BACKEND
        return cost, self.live(source, made | 1 << wanted, home)

    def need(self, state: _Pending, reading: Signature) -> _Pending:
        (wanted, who), (more, backend) = state, reading
        if backend != NO_BACKEND and self.crossing_ms:
            who = backend if who in (NO_BACKEND, backend) else _SEVERAL
        return wanted | 1 << more, who


def _reach(starts: dict[_State, int], step: Callable[[_State, Signature], _State], readings: Sequence[Signature], limit: int) -> dict[_State, int]:
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


def _positive_part(minuend: Costs, subtrahend: Costs) -> Costs:
    """max(0, minuend - subtrahend), with inf - inf = 0."""
    with np.errstate(invalid="ignore"):
        return np.where(minuend > subtrahend, minuend - subtrahend, 0.0)


def _largest(values: Costs, count: int) -> Costs:
    """Sum of the `count` largest entries along the last axis."""
    if count >= values.shape[-1]:
        return values.sum(axis=-1)
    return np.sort(values, axis=-1)[..., values.shape[-1] - count :].sum(axis=-1)


def _bits_of(masks: Sequence[int], width: int) -> npt.NDArray[np.bool_]:
    return np.array([[m >> q & 1 for q in range(width)] for m in masks], bool).reshape(len(masks), width)
