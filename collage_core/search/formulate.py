"""Between candidates with measured costs and the plain numbers that the searches solve."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from collage_core.backend import BackendKind
from collage_core.candidates import Candidate, CandidateSet
from collage_core.costs.record import CostRecord
from collage_core.errors import PlacementError
from collage_core.formats import CPU, Format
from collage_core.ir import Graph, NodeSet, Subgraph, TensorType
from collage_core.ir.digests import structure_digest
from collage_core.placement import VIEW, Conversion, Group, Placement
from collage_core.search.cost import breakdown
from collage_core.search.penalties import Penalties
from collage_core.search.problem import NO_BACKEND, Choice, Problem, ProblemValue, Solution
from collage_core.search.routes import Routes, cheapest_routes
from collage_core.search.transitions import Transitions

__all__ = ["ConversionKey", "Formulation", "formulate", "needed_conversions", "terms_ms"]

ConversionKey = tuple[TensorType, Format, Format]
"""Type of the value, source, destination."""

_HopsMs = dict[tuple[Format, Format], float]
"""By source and destination: what a conversion takes in place."""
_NO_HOPS: _HopsMs = {}


def needed_conversions(graph: Graph, candidates: Sequence[Candidate]) -> dict[ConversionKey, str]:
    """Every conversion that some pair of these candidates might want, each with the name of one value that it
    is for.

    Between the host and a device a value is also to be had by way of its other end's format on either: what
    crosses is not changed (`Transfers`), and what is changed does not cross. From one other device to another
    it goes by way of the host, as it may where a device cannot change it itself.
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
        (graph.type_of(v), *hop): v
        for v, destinations in needed.items()
        for destination in destinations
        for source in produced.get(v, ())
        if source != destination
        for hop in _hops(source, destination)
    }


def _hops(source: Format, destination: Format) -> Iterator[tuple[Format, Format]]:
    """The conversion itself, and those of which it can be made."""
    if len({source.device, destination.device, CPU}) <= 2:
        yield source, destination
    there, here = source.on(destination.device), destination.on(source.device)
    is_near = CPU in (source.device, destination.device)
    for way in ((there,), (here,)) if is_near else ((source.on(CPU), destination.on(CPU)),):
        yield from pairwise(dict.fromkeys((source, *way, destination)))


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
            value = self.value_names[c.value]
            source, destination = self.formats[c.source], self.formats[c.destination]
            backend, cost_ms = self.converters[graph.type_of(value), source, destination]
            conversions.append(Conversion(value, source, destination, backend, cost_ms))
        return Placement(
            tuple(groups),
            tuple(conversions),
            self.candidates.target,
            solution.total_ms,
            solution.optimal,
            solution.method,
            parts.terms_ms,
            structure_digest(graph),
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
    penalties: Penalties | None = None,
) -> Formulation:
    """Make the placement problem. Candidates without a good record are left out; views cost nothing.

    converters: for each conversion somebody offers, the cheapest backend and its cost in ms. transitions:
    nothing where None. penalties: what is added to the costs for what is rounded; nothing where None.
    PlacementError names the first node that no feasible candidate covers.
    """
    graph = candidates.graph
    transitions = transitions or Transitions()
    feasible = _feasible(candidates, cost_of)
    builder = _Builder(graph, transitions)
    for c, record in feasible:
        cost_ms = record.median_ms if record and record.median_ms is not None else 0.0
        builder.choose(c, cost_ms + (0.0 if penalties is None else penalties.of(c)))
    _require_cover(graph, builder.choices)
    by_type: dict[TensorType, _HopsMs] = {}
    for (type, source, destination), (backend, cost_ms) in converters.items():
        if source.device != destination.device:  # a way, be it that nobody reads or writes it
            builder.number(source)
            builder.number(destination)
        in_place_ms = transitions.in_executable_ms(backend, cost_ms)
        by_type.setdefault(type, {})[source, destination] = in_place_ms
    hops_ms = {v: by_type.get(graph.type_of(v), _NO_HOPS) for v in builder.values}
    if penalties is not None:
        hops_ms = {v: _penalised(graph, v, hops, penalties) for v, hops in hops_ms.items()}
    return Formulation(
        candidates,
        builder.problem(hops_ms),
        tuple(c for c, _ in feasible),
        tuple(record for _, record in feasible),
        tuple(builder.values),
        tuple(builder.formats),
        converters,
    )


def _penalised(graph: Graph, value: str, hops_ms: _HopsMs, penalties: Penalties) -> _HopsMs:
    added_ms = {ends: penalties.of_conversion(graph, value, *ends) for ends in hops_ms}
    if not any(added_ms.values()):
        return hops_ms
    return {ends: ms + added_ms[ends] for ends, ms in hops_ms.items()}


def terms_ms(graph: Graph, placement: Placement, transitions: Transitions) -> dict[str, float]:
    """What a placement is predicted to take, term by term, at the costs of its groups and conversions: just
    what a search that found it would say. All of them have a cost.
    """
    builder = _Builder(graph, transitions)
    for g in placement.groups:
        assert g.cost_ms is not None
        builder.choose(Candidate(Subgraph(graph, g.nodes), g.backend, g.variant, "placement"), g.cost_ms)
    hops_ms: dict[str, _HopsMs] = {}
    for c in placement.conversions:
        assert c.cost_ms is not None
        in_place_ms = transitions.in_executable_ms(c.backend, c.cost_ms)
        hops_ms.setdefault(c.value, {})[c.source, c.destination] = in_place_ms
        for format in (c.source, c.destination):  # of a route, whose formats none of the groups may have
            builder.number(format)
    problem = builder.problem(hops_ms, as_told=True)
    return breakdown(problem, range(len(builder.choices))).terms_ms


class _Builder:
    """Numbers what a problem is made of, in the order in which it is told of it."""

    def __init__(self, graph: Graph, transitions: Transitions) -> None:
        self.values = {v: i for i, v in enumerate((*graph.inputs, *graph.intermediates()))}
        self.choices: list[Choice] = []
        self.formats: dict[Format, int] = {}
        self._graph, self._transitions = graph, transitions
        self._position = {n.id: i for i, n in enumerate(graph.nodes)}
        self._backends: dict[str, int] = {}
        self._masks: dict[NodeSet, int] = {}

    def choose(self, c: Candidate, cost_ms: float) -> None:
        """One that may be chosen."""
        nodes = c.subgraph.node_set
        if nodes not in self._masks:
            self._masks[nodes] = sum(1 << self._position[i] for i in nodes)
        backend = NO_BACKEND
        if c.backend != VIEW:
            backend = self._backends.setdefault(c.backend, len(self._backends))
        reads = self._numbered(c.subgraph.inputs, c.variant.inputs)
        writes = self._numbered(c.subgraph.outputs, c.variant.outputs)
        self.choices.append(Choice(self._masks[nodes], backend, reads, writes, cost_ms))

    def problem(self, hops_ms: Mapping[str, _HopsMs], *, as_told: bool = False) -> Problem:
        """Of what it has been told. hops_ms: by value, conversions that may be had; values that are alike
        should have the same mapping. as_told: whether the hops are a placement's, which may round on the way.
        """
        values = tuple(map(self._value, self.values))
        routes_of: dict[int, Routes] = {}
        named = list(self.formats)
        conversion_ms: dict[tuple[int, int, int], float] = {}
        ways: dict[tuple[int, int, int], int] = {}
        for v, name in enumerate(self.values):
            hops = hops_ms.get(name, _NO_HOPS)
            if id(hops) not in routes_of:
                routes_of[id(hops)] = self._routes(hops, as_told)
            for (source, destination), (_, route) in routes_of[id(hops)].items():
                before = route[-1][0]
                conversion_ms[v, source, destination] = hops[named[before], named[destination]]
                if before != source:
                    ways[v, source, destination] = before
        group_ms, crossing_ms = self._transitions.group_ms, self._transitions.crossing_ms
        return Problem(
            len(self._graph.nodes),
            values,
            tuple(self.choices),
            conversion_ms,
            {index: group_ms.get(name, 0.0) for name, index in self._backends.items()},
            {index: crossing_ms.get(name, 0.0) for name, index in self._backends.items()},
            ways,
        )

    def _routes(self, hops_ms: _HopsMs, as_told: bool) -> Routes:
        """By way of formats that have a number: those that somebody reads or writes."""
        known = self.formats
        return cheapest_routes(
            {(known[p], known[q]): ms for (p, q), ms in hops_ms.items() if {p, q} <= known.keys()},
            None if as_told else {number: f.dtype for f, number in known.items()},
        )

    def _numbered(self, values: Sequence[str], formats: Sequence[Format]) -> dict[int, int]:
        return {self.values[v]: self.number(f) for v, f in zip(values, formats, strict=True)}

    def number(self, format: Format) -> int:
        """A value may go by way of it."""
        return self.formats.setdefault(format, len(self.formats))

    def _value(self, name: str) -> ProblemValue:
        graph = self._graph
        producer = graph.producer(name)
        return ProblemValue(
            None if producer is None else self._position[producer.id],
            tuple(sorted(self._position[n.id] for n in graph.consumers(name))),
            self.number(graph.plain_format(name)) if producer is None else None,
            self.number(graph.plain_format(name)) if graph.is_output(name) else None,
        )


def _require_cover(graph: Graph, choices: Sequence[Choice]) -> None:
    covered = 0
    for c in choices:
        covered |= c.nodes
    for i, n in enumerate(graph.nodes):
        if not covered >> i & 1:
            raise PlacementError(f"no backend can run node {n.name!r} ({n.qualified_op})")
