"""What a placement costs, and whether it is legal: the one definition that every search is held to."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from collage_core.errors import PlacementError
from collage_core.search.problem import NO_BACKEND, Choice, Problem

__all__ = [
    "ConversionStep",
    "CostBreakdown",
    "breakdown",
    "check_problem",
    "hops_back",
    "node_indices",
    "total_ms",
]


@dataclass(frozen=True, slots=True)
class ConversionStep:
    """Value `value` is converted once from format `source`, in which it is produced, arrives, or has been
    converted before, to `destination`.
    """

    value: int
    source: int
    destination: int
    ms: float


@dataclass(frozen=True, slots=True)
class CostBreakdown:
    """The terms of a placement's cost, in milliseconds.

    order: the choices in an executable order. crossings: the values that pay `Problem.crossing_ms`.
    """

    order: tuple[int, ...]
    kernels_ms: float
    conversions: tuple[ConversionStep, ...]
    group_ms: float
    crossings: tuple[int, ...]
    crossing_ms: float

    @property
    def conversions_ms(self) -> float:
        return math.fsum(c.ms for c in self.conversions)

    @property
    def terms_ms(self) -> dict[str, float]:
        return {
            "kernels": self.kernels_ms,
            "conversions": self.conversions_ms,
            "groups": self.group_ms,
            "crossings": self.crossing_ms,
        }

    @property
    def total_ms(self) -> float:
        return math.fsum(self.terms_ms.values())


def total_ms(problem: Problem, choices: Sequence[int]) -> float:
    """Cost of covering the problem by `choices` (indices, in any order). Raises PlacementError where that is
    not legal.
    """
    return breakdown(problem, choices).total_ms


def breakdown(problem: Problem, choices: Sequence[int]) -> CostBreakdown:
    """The cost, term by term.

    Raises PlacementError when a node is covered twice or not at all, when the graph of groups has a cycle,
    when a value is needed in a format into which nobody converts it, or when a choice does not say how it
    reads or writes one.
    """
    owner = _owners(problem, choices)
    conversions: list[ConversionStep] = []
    crossings: dict[int, float] = {}
    followers: dict[int, set[int]] = {c: set() for c in choices}
    for v, value in enumerate(problem.values):
        producer = None if value.producer is None else owner[value.producer]
        readers = {owner[n] for n in value.consumers} - {producer}
        if producer is not None:
            followers[producer] |= readers
        needed = {_format(problem.choices[r].reads, r, "reads", v) for r in readers}
        if value.output_format is not None:
            needed.add(value.output_format)
        if not needed:
            continue
        source = (
            value.input_format
            if producer is None
            else _format(problem.choices[producer].writes, producer, "writes", v)
        )
        if source is None:
            raise PlacementError(f"value {v} is a model input without a format")
        made = {source}
        for destination in sorted(needed):
            steps = _steps(problem, v, source, destination, made)
            conversions += steps
            made.update(step.destination for step in steps)
        if producer is not None:
            backends = {problem.choices[r].backend for r in readers} - {NO_BACKEND}
            home = problem.choices[producer].backend
            if home != NO_BACKEND and backends - {home}:
                crossings[v] = problem.crossing_ms.get(home, 0.0)
    chosen = [problem.choices[c] for c in choices]
    return CostBreakdown(
        order=_executable_order(problem, choices, followers),
        kernels_ms=math.fsum(c.cost_ms for c in chosen),
        conversions=tuple(conversions),
        group_ms=math.fsum(group_constant_ms(problem, c) for c in chosen),
        crossings=tuple(crossings),
        crossing_ms=math.fsum(crossings.values()),
    )


def _steps(problem: Problem, v: int, source: int, destination: int, made: set[int]) -> list[ConversionStep]:
    """The hops that still have to be made, where some formats are there already, in their order."""
    found: list[ConversionStep] = []
    for before, after in hops_back(problem, v, source, destination):
        if after in made:
            break
        cost_ms = problem.conversion_ms.get((v, source, after), math.inf)
        if math.isinf(cost_ms):
            raise PlacementError(f"nobody converts value {v} from format {source} to format {after}")
        found.insert(0, ConversionStep(v, before, after, cost_ms))
    return found


def hops_back(problem: Problem, v: int, source: int, destination: int) -> Iterator[tuple[int, int]]:
    """The way of a value from one format to another, its last hop first."""
    while destination != source:
        before = problem.ways.get((v, source, destination), source)
        yield before, destination
        destination = before


def group_constant_ms(problem: Problem, choice: Choice) -> float:
    """What a group costs beyond its kernel; nothing for a view."""
    return 0.0 if choice.backend == NO_BACKEND else problem.group_ms.get(choice.backend, 0.0)


def node_indices(mask: int) -> Iterator[int]:
    """The set bits of `mask`, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def check_problem(problem: Problem) -> None:
    """Raise PlacementError, naming the node, value or choice, unless the problem is well formed and every
    node has a choice.
    """
    count = problem.node_count
    touching: list[list[int]] = [[] for _ in range(count)]
    for v, value in enumerate(problem.values):
        if (value.producer is None) != (value.input_format is not None):
            raise PlacementError(f"value {v} must have either a producer or the format in which it arrives")
        nodes = value.consumers if value.producer is None else (value.producer, *value.consumers)
        if any(not 0 <= n < count for n in nodes):
            raise PlacementError(f"value {v} names a node that is not among the {count} of the problem")
        if value.producer is not None and any(n <= value.producer for n in value.consumers):
            raise PlacementError(f"value {v} is read before node {value.producer} has produced it")
        for n in set(nodes):
            touching[n].append(v)
    for v, source, destination in problem.ways:
        _check_way(problem, v, source, destination)
    covered = 0
    borders: dict[int, tuple[set[int], set[int], set[int]]] = {}
    for c, choice in enumerate(problem.choices):
        if not 0 < choice.nodes < 1 << count:
            raise PlacementError(
                f"choice {c} covers no node, or one that is not among the {count} of the problem"
            )
        if not 0.0 <= choice.cost_ms < math.inf:
            raise PlacementError(
                f"choice {c} costs {choice.cost_ms} ms; infeasible candidates must be left out"
            )
        border = borders.get(choice.nodes)
        if border is None:
            border = borders[choice.nodes] = _border(problem, choice.nodes, touching)
            covered |= choice.nodes
        reads, writes, produced = border
        if choice.reads.keys() != reads:
            raise PlacementError(
                f"choice {c} must read the values {sorted(reads)}, not {sorted(choice.reads)}"
            )
        if not writes <= choice.writes.keys() <= produced:
            raise PlacementError(
                f"choice {c} must write the values {sorted(writes)}, not {sorted(choice.writes)}"
            )
    if covered != (1 << count) - 1:
        missing = next(n for n in range(count) if not covered >> n & 1)
        raise PlacementError(f"no choice covers node {missing}")


def _check_way(problem: Problem, v: int, source: int, destination: int) -> None:
    seen, at = {source}, destination
    while at not in seen:
        seen.add(at)
        at = problem.ways.get((v, source, at), source)
        if at != source and (v, source, at) not in problem.conversion_ms:
            raise PlacementError(f"a way of value {v} goes by format {at}, to which none leads from {source}")
    if at != source:
        raise PlacementError(f"the way of value {v} from format {source} to {destination} is a circle")


def _border(problem: Problem, nodes: int, touching: list[list[int]]) -> tuple[set[int], set[int], set[int]]:
    """Values that a group of these nodes must read, must write, and may write (some of which nobody
    wants).
    """
    reads: set[int] = set()
    writes: set[int] = set()
    produced: set[int] = set()
    for v in {v for n in node_indices(nodes) for v in touching[n]}:
        value = problem.values[v]
        if value.producer is None or not nodes >> value.producer & 1:
            reads.add(v)
            continue
        produced.add(v)
        if value.output_format is not None or any(not nodes >> n & 1 for n in value.consumers):
            writes.add(v)
    return reads, writes, produced


def _owners(problem: Problem, choices: Sequence[int]) -> list[int]:
    """The choice that covers each node."""
    owner: list[int | None] = [None] * problem.node_count
    for c in choices:
        if not 0 <= c < len(problem.choices):
            raise PlacementError(f"there is no choice {c}")
        for n in node_indices(problem.choices[c].nodes):
            if n >= problem.node_count:
                raise PlacementError(f"choice {c} covers node {n}, which the problem does not have")
            if owner[n] is not None:
                raise PlacementError(f"node {n} is covered by choice {owner[n]} and by choice {c}")
            owner[n] = c
    result = [c for c in owner if c is not None]
    if len(result) < problem.node_count:
        raise PlacementError(f"no choice covers node {owner.index(None)}")
    return result


def _format(formats: Mapping[int, int], choice: int, verb: str, value: int) -> int:
    known = formats.get(value)
    if known is None:
        raise PlacementError(f"choice {choice} {verb} value {value} in a format that it does not tell")
    return known


def _executable_order(
    problem: Problem, choices: Sequence[int], followers: dict[int, set[int]]
) -> tuple[int, ...]:
    """The choices, each after those it reads from; among those that are ready, the one with the earliest node
    goes first.
    """
    waiting = dict.fromkeys(choices, 0)
    for after in followers.values():
        for f in after:
            waiting[f] += 1

    def entry(c: int) -> tuple[int, int]:
        nodes = problem.choices[c].nodes
        return (nodes & -nodes).bit_length() - 1, c

    ready = [entry(c) for c in choices if not waiting[c]]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        c = heapq.heappop(ready)[1]
        order.append(c)
        for f in followers[c]:
            waiting[f] -= 1
            if not waiting[f]:
                heapq.heappush(ready, entry(f))
    if len(order) < len(choices):
        stuck = sorted(set(choices) - set(order))
        raise PlacementError(f"the groups wait for each other in a circle: among choices {stuck}")
    return tuple(order)
