"""Between candidates with measured costs and the plain numbers that the searches solve."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from collage_core.backend import BackendKind
from collage_core.costs.record import CostRecord
from collage_core.errors import PlacementError
from collage_core.formats import Format
from collage_core.ir import Graph, TensorType
from collage_core.placement import VIEW, Conversion, Group, Placement
from collage_core.search.candidates import Candidate, CandidateSet
from collage_core.search.cost import breakdown
from collage_core.search.problem import NO_BACKEND, Choice, Problem, ProblemValue, Solution
from collage_core.search.transitions import Transitions

__all__ = ["ConversionKey", "Formulation", "formulate", "needed_conversions"]

ConversionKey = tuple[TensorType, Format, Format]
"""Type of the value, source, destination."""


def needed_conversions(graph: Graph, candidates: Sequence[Candidate]) -> dict[ConversionKey, str]:
    """Every conversion that some pair of these candidates might want, each with the name of one value that it
    is for.
    """
    produced: dict[str, dict[Format, None]] = {v: {graph.plain_format(v): None} for v in graph.inputs}
    needed: dict[str, dict[Format, None]] = {
        v: {graph.plain_format(v): None} for v in graph.outputs if not graph.is_constant(v)
    }
    for c in candidates:
        for v, f in zip(c.subgraph.outputs, c.variant.outputs, strict=True):
            produced.setdefault(v, {})[f] = None
        for v, f in zip(c.subgraph.inputs, c.variant.inputs, strict=True):
            needed.setdefault(v, {})[f] = None
    return {
        (graph.type_of(v), source, destination): v
        for v, destinations in needed.items()
        for destination in destinations
        for source in produced.get(v, ())
        if source != destination
    }


@dataclass(frozen=True, slots=True)
class Formulation:
    """A problem and what its numbers stand for. `choices[i]` is the candidate behind choice i of the
    problem.
    """

    candidates: CandidateSet
    problem: Problem
    choices: tuple[Candidate, ...]
    records: tuple[CostRecord | None, ...]
    value_names: tuple[str, ...]
    formats: tuple[Format, ...]
    converters: Mapping[ConversionKey, tuple[str, float]]

    def placement(self, solution: Solution) -> Placement:
        """The solution with names, formats and costs."""
        graph = self.candidates.graph
        parts = breakdown(self.problem, solution.choices)
        groups = []
        for i in parts.order:
            candidate, record = self.choices[i], self.records[i]
            groups.append(
                Group(
                    candidate.backend,
                    tuple(n.id for n in candidate.subgraph.nodes),
                    candidate.variant,
                    record.median_ms if record else 0.0,
                    record.spread_ms if record else 0.0,
                )
            )
        conversions = []
        for c in parts.conversions:
            value, source, destination = (
                self.value_names[c.value],
                self.formats[c.source],
                self.formats[c.destination],
            )
            backend, cost_ms = self.converters[graph.type_of(value), source, destination]
            conversions.append(Conversion(value, source, destination, backend, cost_ms))
        return Placement(
            tuple(groups),
            tuple(conversions),
            self.candidates.target,
            solution.total_ms,
            solution.optimal,
            solution.method,
            {
                "kernels": parts.kernels_ms,
                "conversions": parts.conversions_ms,
                "groups": parts.group_ms,
                "crossings": parts.crossing_ms,
            },
        )


def _feasible(
    candidates: CandidateSet, cost_of: Callable[[Candidate], CostRecord | None]
) -> list[tuple[Candidate, CostRecord | None]]:
    """Those with a cost. The reference is for what nobody else can run: where another backend runs the same
    nodes in the same formats it is left out, however fast a few runs of it may have been."""
    found: list[tuple[Candidate, CostRecord | None]] = []
    for c in candidates.candidates:
        record = None if c.backend == VIEW else cost_of(c)
        if c.backend == VIEW or (record is not None and record.ok and record.median_ms is not None):
            found.append((c, record))

    def is_fallback(c: Candidate) -> bool:
        return c.backend != VIEW and candidates.kinds[c.backend] is BackendKind.REFERENCE

    def same(c: Candidate) -> tuple[object, ...]:
        return c.subgraph.node_set, c.variant.inputs, c.variant.outputs

    fallbacks = {c.subgraph.node_set for c, _ in found if is_fallback(c)}
    others = {same(c) for c, _ in found if c.subgraph.node_set in fallbacks and not is_fallback(c)}
    return [(c, record) for c, record in found if not (is_fallback(c) and same(c) in others)]


def formulate(
    candidates: CandidateSet,
    cost_of: Callable[[Candidate], CostRecord | None],
    converters: Mapping[ConversionKey, tuple[str, float]],
    transitions: Transitions | None = None,
) -> Formulation:
    """Make the placement problem. Candidates without a good record are left out; views cost nothing.

    converters: for each conversion somebody offers, the cheapest backend and its cost in ms. transitions:
    nothing where None.
    PlacementError names the first node that no feasible candidate covers.
    """
    graph = candidates.graph
    position = {n.id: i for i, n in enumerate(graph.nodes)}
    backends: dict[str, int] = {}
    formats: dict[Format, int] = {}
    names = [*graph.inputs, *(v for v in graph.intermediates())]
    index = {v: i for i, v in enumerate(names)}

    def format_index(f: Format) -> int:
        return formats.setdefault(f, len(formats))

    choices: list[Choice] = []
    kept: list[Candidate] = []
    records: list[CostRecord | None] = []
    masks: dict[object, int] = {}
    for c, record in _feasible(candidates, cost_of):
        mask = masks.get(c.subgraph.node_set)
        if mask is None:
            mask = masks[c.subgraph.node_set] = sum(1 << position[i] for i in c.subgraph.node_set)
        choices.append(
            Choice(
                nodes=mask,
                backend=NO_BACKEND if c.backend == VIEW else backends.setdefault(c.backend, len(backends)),
                reads={
                    index[v]: format_index(f)
                    for v, f in zip(c.subgraph.inputs, c.variant.inputs, strict=True)
                },
                writes={
                    index[v]: format_index(f)
                    for v, f in zip(c.subgraph.outputs, c.variant.outputs, strict=True)
                },
                cost_ms=record.median_ms if record and record.median_ms is not None else 0.0,
            )
        )
        kept.append(c)
        records.append(record)
    _require_cover(graph, choices)
    values = tuple(_value(graph, v, position, format_index) for v in names)
    transitions = transitions or Transitions()
    by_type: dict[TensorType, list[tuple[int, int, float]]] = {}
    for (type, source, destination), (backend, cost_ms) in converters.items():
        if source in formats and destination in formats:
            in_place_ms = cost_ms + transitions.group_ms.get(backend, 0.0)
            by_type.setdefault(type, []).append((formats[source], formats[destination], in_place_ms))
    conversion_ms = {
        (index[v], source, destination): cost_ms
        for v in names
        for source, destination, cost_ms in by_type.get(graph.type_of(v), ())
    }
    problem = Problem(
        len(graph.nodes),
        values,
        tuple(choices),
        conversion_ms,
        {index: transitions.group_ms.get(name, 0.0) for name, index in backends.items()},
        {index: transitions.crossing_ms.get(name, 0.0) for name, index in backends.items()},
    )
    return Formulation(
        candidates, problem, tuple(kept), tuple(records), tuple(names), tuple(formats), converters
    )


def _value(
    graph: Graph, name: str, position: Mapping[int, int], format_index: Callable[[Format], int]
) -> ProblemValue:
    producer = graph.producer(name)
    return ProblemValue(
        producer=None if producer is None else position[producer.id],
        consumers=tuple(sorted(position[n.id] for n in graph.consumers(name))),
        input_format=format_index(graph.plain_format(name)) if producer is None else None,
        output_format=format_index(graph.plain_format(name)) if graph.is_output(name) else None,
    )


def _require_cover(graph: Graph, choices: Sequence[Choice]) -> None:
    covered = 0
    for c in choices:
        covered |= c.nodes
    for i, n in enumerate(graph.nodes):
        if not covered >> i & 1:
            raise PlacementError(f"no backend can run node {n.name!r} ({n.qualified_op})")
