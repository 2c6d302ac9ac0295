"""The problem in the order in which the dynamic program walks it: tables of values, bit lanes in which their
codes live.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from collage_core.search.cost import hops_back, node_indices
from collage_core.search.exact.charges import ChargeTables
from collage_core.search.exact.codes import Signature, code_space
from collage_core.search.problem import NO_BACKEND, Problem

__all__ = ["Lane", "Walk", "plan_walk"]

_WORD_BITS = 62


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """Where the code of a value lies in a state: (word >> shift) & mask.

    Positions are places in the order. producer: -1 for a model input. consumers: bitmask of positions. The
    lane belongs to the value in every state whose first unclaimed position lies in begin..end. readings and
    writings number the (format, backend) pairs in which choices read and write it, as the tables do.
    """

    tables: ChargeTables
    readings: dict[Signature, int]
    writings: dict[Signature, int]
    producer: int
    consumers: int
    begin: int
    end: int
    word: int = 0
    shift: int = 0

    @property
    def mask(self) -> int:
        return (1 << self.tables.space.bits) - 1


@dataclass(frozen=True, slots=True)
class Walk:
    """lanes[value]; groups[position]: node sets (bitmasks of positions, relative to this first one), with
    their choices.
    """

    order: tuple[int, ...]
    lanes: tuple[Lane, ...]
    groups: tuple[dict[int, list[int]], ...]
    words: int


def plan_walk(problem: Problem, order: Sequence[int]) -> Walk:
    """Renumber nodes by `order` (a permutation) and give each value a lane.

    Choices that are not convex are left out: such a group waits for itself, whatever surrounds it.
    """
    position = [0] * problem.node_count
    for place, node in enumerate(order):
        position[node] = place
    groups: list[dict[int, list[int]]] = [{} for _ in order]
    relative: dict[int, tuple[int, int] | None] = {}
    above, below = _reachable(problem)
    readings: list[set[Signature]] = [set() for _ in problem.values]
    writings: list[set[Signature]] = [set() for _ in problem.values]
    begin = [len(order)] * len(problem.values)
    for c, choice in enumerate(problem.choices):
        if choice.nodes not in relative:
            nodes = list(node_indices(choice.nodes))
            relative[choice.nodes] = None
            if _is_convex(choice.nodes, nodes, above, below):
                first = min(position[n] for n in nodes)
                relative[choice.nodes] = first, sum(1 << position[n] - first for n in nodes)
        where = relative[choice.nodes]
        if where is None:
            continue
        groups[where[0]].setdefault(where[1], []).append(c)
        for signatures, formats in ((readings, choice.reads), (writings, choice.writes)):
            for v, f in formats.items():
                signatures[v].add((f, choice.backend))
                if where[0] + 1 < begin[v]:
                    begin[v] = where[0] + 1
    lanes: list[Lane] = []
    known: dict[object, ChargeTables] = {}
    for v, value in enumerate(problem.values):
        producer = -1 if value.producer is None else position[value.producer]
        consumers = [position[n] for n in value.consumers]
        if value.input_format is not None:
            writings[v] = {(value.input_format, NO_BACKEND)}
            begin[v] = 0
        reads, writes = sorted(readings[v]), sorted(writings[v])
        lanes.append(
            Lane(
                _tables(problem, v, reads, writes, known),
                {s: i for i, s in enumerate(reads)},
                {s: i for i, s in enumerate(writes)},
                producer,
                sum(1 << p for p in consumers),
                begin[v],
                max([producer, *consumers]),
            )
        )
    placed, words = _assign(lanes)
    return Walk(tuple(order), placed, tuple(groups), words)


def _reachable(problem: Problem) -> tuple[list[int], list[int]]:
    """Per node the nodes above and those below it, itself apart, as bitmasks of nodes."""
    operands: list[list[int]] = [[] for _ in range(problem.node_count)]
    for value in problem.values:
        if value.producer is not None:
            for n in value.consumers:
                operands[n].append(value.producer)
    above, below = [0] * problem.node_count, [0] * problem.node_count
    for n in range(problem.node_count):
        for o in operands[n]:
            above[n] |= above[o] | 1 << o
    for n in range(problem.node_count - 1, -1, -1):
        for o in operands[n]:
            below[o] |= below[n] | 1 << n
    return above, below


def _is_convex(mask: int, nodes: Sequence[int], above: Sequence[int], below: Sequence[int]) -> bool:
    if len(nodes) == 1:
        return True
    over = under = 0
    for n in nodes:
        over |= above[n]
        under |= below[n]
    return not over & under & ~mask


def _tables(
    problem: Problem,
    v: int,
    readings: Iterable[Signature],
    writings: Iterable[Signature],
    known: dict[object, ChargeTables],
) -> ChargeTables:
    """One for all values that are alike, of which a network of repeated blocks has many."""
    value = problem.values[v]
    formats = {f for f, _ in (*readings, *writings)}
    if value.output_format is not None:
        formats.add(value.output_format)
    for source in {f for f, _ in writings}:
        for destination in tuple(formats):
            formats.update(_on_the_way(problem, v, source, destination))
    number = {f: i for i, f in enumerate(sorted(formats))}
    conversion_ms = [
        0.0 if p == q else problem.conversion_ms.get((v, p, q), math.inf) for p in number for q in number
    ]
    ways = tuple(
        tuple(sum(1 << number[f] for f in _on_the_way(problem, v, p, q) & number.keys()) for q in number)
        for p in number
    )
    output_format = None if value.output_format is None else number[value.output_format]
    space = code_space(
        tuple((number[f], b) for f, b in readings),
        tuple((number[f], b) for f, b in writings),
        ways,
        output_format,
        None if value.input_format is None else number[value.input_format],
        len(value.consumers),
        any(problem.crossing_ms.values()),
    )
    has_producer = value.producer is not None
    key = space, output_format, has_producer, *conversion_ms
    if key not in known:
        square = np.array(conversion_ms).reshape(len(number), len(number))
        known[key] = ChargeTables(space, square, output_format, has_producer, problem.crossing_ms)
    return known[key]


def _on_the_way(problem: Problem, v: int, source: int, destination: int) -> set[int]:
    """The formats that are made of a value on its way from one to another, the last among them."""
    return {destination, *(after for _, after in hops_back(problem, v, source, destination))}


def _assign(lanes: Sequence[Lane]) -> tuple[tuple[Lane, ...], int]:
    """Give values whose lanes are in use at the same time disjoint bits, first fit."""
    occupied: list[int] = [0]
    in_use: list[Lane] = []
    placed = list(lanes)
    for v in sorted(range(len(lanes)), key=lambda v: lanes[v].begin):
        lane, bits = lanes[v], lanes[v].tables.space.bits
        for old in [o for o in in_use if o.end < lane.begin]:
            in_use.remove(old)
            occupied[old.word] &= ~(old.mask << old.shift)
        if not bits:
            continue
        free = (
            (w, s)
            for w, used in enumerate(occupied)
            for s in range(_WORD_BITS - bits + 1)
            if not used & lane.mask << s
        )
        word, shift = next(free, (len(occupied), 0))
        if word == len(occupied):
            occupied.append(0)
        occupied[word] |= lane.mask << shift
        placed[v] = replace(lane, word=word, shift=shift)
        in_use.append(placed[v])
    return tuple(placed), len(occupied)
