"""Candidates: every way in which some backend offers to run some part of the graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from collage_core.backend import Backend, BackendKind, Variant
from collage_core.candidates.asked_for import asked_for, nobody_offers, require_kept
from collage_core.candidates.constraints import Constraints
from collage_core.candidates.library_groups import library_groups
from collage_core.candidates.offers import Candidate, answer_of, offers_for
from collage_core.errors import Refusal, staying_alive
from collage_core.formats import Format
from collage_core.ir import Graph, Node, NodeSet, Subgraph
from collage_core.ir.views import input_format, is_view, output_format
from collage_core.patterns import BackendPattern, find_matches
from collage_core.placement import VIEW
from collage_core.registration import registered_patterns, registered_rules
from collage_core.rules import PatternRule, generate
from collage_core.standard_output import not_for_others
from collage_core.target import Target

__all__ = [
    "CandidateSet",
    "Taken",
    "generate_candidates",
    "require_offers",
    "tunable_candidates",
]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class CandidateSet:
    """All candidates, and why backends declined what they did (by backend's name); of which kind each backend
    is. excluded: nodes that a backend offers to run and may not, by its name.
    """

    graph: Graph
    target: Target
    candidates: tuple[Candidate, ...]
    refusals: Mapping[str, tuple[Refusal, ...]]
    kinds: Mapping[str, BackendKind]
    excluded: Mapping[str, NodeSet] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Taken:
    """What a graph library said of each single node: the nodes it takes, and why it declines the others."""

    nodes: NodeSet
    refusals: tuple[Refusal, ...] = ()


def generate_candidates(
    graph: Graph,
    backends: Iterable[Backend],
    target: Target,
    constraints: Constraints | None = None,
    taken: Mapping[str, Taken] | None = None,
) -> CandidateSet:
    """Ask every backend's patterns and rules, and those registered for it by hand, what it could run; of
    graph libraries also what `library_groups` makes of the nodes that they take (`taken`, by the backend's
    name: see `measuring.libraries`).

    Reference backends are asked about single nodes only: they have no kernels worth fusing. Views need no
    backend. ModelError for a constraint on nodes that do not exist, PlacementError for one that nobody offers
    to keep.
    """
    kept = (constraints or Constraints()).on(graph)
    found: list[Candidate] = []
    refusals: dict[str, tuple[Refusal, ...]] = {}
    backends = list(backends)
    kinds = {b.name: b.info().kind for b in backends}
    kernels: set[NodeSet] = set()
    offered: dict[str, NodeSet] = {}
    # Graph libraries last: they are also asked about what the others offer.
    for backend in sorted(backends, key=lambda b: kinds[b.name] is BackendKind.GRAPH):
        kind = kinds[backend.name]
        own = (taken or {}).get(backend.name)
        takes = own.nodes if own is not None else NodeSet()
        if own is not None:  # what it may not have must not spoil the groups around it
            own = replace(own, nodes=own.nodes - kept.kept_from(backend.name))
        with not_for_others():
            offers, declined = _offers_of(graph, backend, kind, target, own, kernels)
        found += [c for c in offers if kept.allows(c.subgraph, c.backend, c.variant)]
        for c in offers:
            takes = takes | c.subgraph.node_set
        offered[backend.name.lower()] = takes
        refusals[backend.name] = tuple(declined)
        if kind is BackendKind.OPERATOR:
            kernels |= {c.subgraph.node_set for c in offers}
    asked = asked_for(kept, backends, target, found)
    for c in asked:
        offered[c.backend.lower()] |= c.subgraph.node_set
    found += [c for c in asked if kept.allows(c.subgraph, c.backend, c.variant)]
    found += [c for c in _views(graph, found) if kept.allows(c.subgraph, VIEW, c.variant)]
    excluded = {name: offered[name.lower()] & kept.excluded_from(name) for name in kinds}
    require_kept(kept, found, refusals, offered, excluded)
    return CandidateSet(graph, target, tuple(found), refusals, kinds, excluded)


def tunable_candidates(
    graph: Graph, backends: Iterable[Backend], target: Target
) -> tuple[list[Candidate], list[Refusal]]:
    """What backends could find better kernels for (`Backend.tunable`), and why not for other groups. Of
    nested groups only the largest: it is the one that placements use, and each takes minutes.
    """
    found: list[Candidate] = []
    refusals: list[Refusal] = []
    for backend in backends:
        offers: dict[NodeSet, tuple[Subgraph, list[Variant], str]] = {}
        for nodes, (subgraph, origin) in _groups_of(graph, backend)[0].items():
            variants = answer_of(backend.tunable, subgraph, backend, target)
            if isinstance(variants, Refusal):
                refusals.append(variants)
            else:
                offers[nodes] = subgraph, variants, origin
        for nodes, (subgraph, variants, origin) in offers.items():
            if not any(nodes <= others and nodes != others for others in offers):
                found += [Candidate(subgraph, backend.name, v, origin) for v in variants]
    return found, refusals


def require_offers(candidates: CandidateSet) -> None:
    """PlacementError, with what backends said, for the first node that nobody offers to run."""
    covered = {n.id for c in candidates.candidates for n in c.subgraph.nodes}
    for node in candidates.graph.nodes:
        if node.id in covered:
            continue
        said = [
            f"{name}: {r.reason}"
            for name, refusals in candidates.refusals.items()
            for r in refusals
            if r.node == node.name
        ]
        excluded = [name for name, nodes in candidates.excluded.items() if node.id in nodes]
        raise nobody_offers(f"node {node.name!r} ({node.qualified_op})", excluded, said)


def _offers_of(
    graph: Graph,
    backend: Backend,
    kind: BackendKind,
    target: Target,
    taken: Taken | None,
    kernels: Collection[NodeSet],
) -> tuple[list[Candidate], list[Refusal]]:
    groups, refusals = _groups_of(graph, backend)
    more: Mapping[NodeSet, str] = {}
    if kind is BackendKind.REFERENCE:
        more = {NodeSet([n.id]): "reference" for n in graph.nodes}
    elif kind is BackendKind.GRAPH and taken is not None:
        more = library_groups(graph, taken.nodes, kernels)
        refusals += taken.refusals
    for nodes, origin in more.items():
        groups.setdefault(nodes, (Subgraph(graph, nodes), origin))
    candidates: list[Candidate] = []
    for subgraph, origin in groups.values():
        offered, declined = offers_for(subgraph, origin, backend, target)
        candidates += offered
        refusals += declined
    return candidates, refusals


def _groups_of(graph: Graph, backend: Backend) -> tuple[dict[NodeSet, tuple[Subgraph, str]], list[Refusal]]:
    """Node sets that the backend's patterns and rules find, each once, with the first that found it.

    A pattern or rule that raises costs what it would have found, and no more.
    """
    groups: dict[NodeSet, tuple[Subgraph, str]] = {}
    refusals: list[Refusal] = []

    def match_pattern(pattern: BackendPattern) -> None:
        for match in find_matches(graph, pattern.pattern):
            refusal = pattern.check(match) if pattern.check else None
            if refusal is None:
                found = match.subgraph, f"pattern {pattern.name or pattern.pattern}"
                groups.setdefault(match.subgraph.node_set, found)
            else:
                refusals.append(refusal)

    def grow(rule: PatternRule) -> None:
        result = generate(graph, rule)
        for node_set in result.groups:
            groups.setdefault(node_set, (Subgraph(graph, node_set), f"rule {rule.name}"))
        refusals.extend(result.refusals)

    def guarded(what: str, do: Callable[[], _T]) -> _T | None:
        try:
            with staying_alive():
                return do()
        except Exception as error:  # a plugin, or a rule written by hand, may raise anything
            reason = f"{what} of {backend.name} failed: {type(error).__name__}: {error}"
            refusals.append(Refusal(reason, is_fault=True))
            return None

    patterns = guarded("patterns", lambda: _all_of(BackendPattern, backend.patterns())) or []
    rules = guarded("rules", lambda: _all_of(PatternRule, backend.rules())) or []
    for pattern in (*patterns, *registered_patterns(backend.name)):
        guarded(f"pattern {pattern.name or pattern.pattern}", partial(match_pattern, pattern))
    for rule in (*rules, *registered_rules(backend.name)):
        guarded(f"rule {rule.name}", partial(grow, rule))
    return groups, refusals


def _all_of(kind: type[_T], answer: Iterable[object]) -> list[_T]:
    """The same; TypeError for what is of another kind."""
    found: list[_T] = []
    for one in answer:
        if not isinstance(one, kind):
            raise TypeError(f"{one!r} is no {kind.__name__}")
        found.append(one)
    return found


def _views(graph: Graph, candidates: Sequence[Candidate]) -> list[Candidate]:
    """View candidates in every format that somebody around them produces or reads."""
    formats: dict[str, dict[Format, None]] = {}

    def know(value: str, format: Format | None) -> bool:
        known = formats.setdefault(value, {})
        if format is None or format in known:
            return False
        known[format] = None
        return True

    for v in graph.inputs:
        know(v, graph.plain_format(v))
    for c in candidates:
        for v, f in (
            *zip(c.subgraph.inputs, c.variant.inputs, strict=True),
            *zip(c.subgraph.outputs, c.variant.outputs, strict=True),
        ):
            know(v, f)
    views = [n for n in graph.nodes if is_view(graph, n)]
    changed = True
    while changed:
        changed = False
        for n in views:
            source, destination = n.inputs[0], n.outputs[0]
            for f in list(formats.get(source, ())):
                changed |= know(destination, output_format(graph, n, f))
            for f in list(formats.get(destination, ())):
                changed |= know(source, input_format(graph, n, f))
    return [c for n in views for c in _views_of(graph, n, formats.get(n.inputs[0], {}))]


def _views_of(graph: Graph, node: Node, sources: Iterable[Format]) -> list[Candidate]:
    subgraph = Subgraph(graph, NodeSet([node.id]))
    result = []
    for source in sources:
        destination = output_format(graph, node, source)
        if destination is not None:
            result.append(Candidate(subgraph, VIEW, Variant((source,), (destination,)), VIEW))
    return result
