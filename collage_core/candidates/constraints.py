"""What a person asks of a placement, and what that leaves of the candidates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx

from collage_core.backend import Variant
from collage_core.errors import ModelError, PlacementError
from collage_core.formats import Format
from collage_core.ir import Graph, NodeSet, Subgraph
from collage_core.ir.selecting import selected

__all__ = ["Constraints", "FixedGroup", "Kept"]


@dataclass(frozen=True, slots=True)
class FixedGroup:
    """Nodes, by name, that one kernel of this backend runs.

    inputs, outputs: in these formats; None for whichever the search finds. options: of the variant, None for
    any. where: the place in a file that asks for it, for messages.
    """

    nodes: tuple[str, ...]
    backend: str
    inputs: tuple[Format, ...] | None = None
    outputs: tuple[Format, ...] | None = None
    options: tuple[tuple[str, str], ...] | None = None
    where: str = field(default="", compare=False)

    def accepts(self, variant: Variant) -> bool:
        """Whether that is how it is to run."""
        return (
            self.inputs in (None, variant.inputs)
            and self.outputs in (None, variant.outputs)
            and self.options in (None, variant.options)
        )

    @property
    def variant(self) -> Variant | None:
        """How it is to run; None where the search is to find it."""
        if self.inputs is None or self.outputs is None:
            return None
        return Variant(self.inputs, self.outputs, self.options or ())

    def __str__(self) -> str:
        return f"{_named(self.nodes)} as one group of {self.backend}"

    def wrong(self, why: str) -> PlacementError:
        """The error that says why it cannot be had, with the place."""
        return PlacementError(f"{self.where}: {self}{why}" if self.where else f"{self}{why}")


@dataclass(frozen=True, slots=True)
class Constraints:
    """What a person asks for. Nodes are told by selectors (`collage_core.ir.selecting`).

    pins: the backend that runs them; an exact name goes before a glob or an operator. excluded: a backend,
    and what it is kept from, None for everything. together: selectors of nodes that are in one group.
    groups: those that are to be just so.
    """

    pins: Mapping[str, str] = field(default_factory=dict)
    excluded: Sequence[tuple[str, str | None]] = ()
    together: Sequence[tuple[str, ...]] = ()
    groups: Sequence[FixedGroup] = ()

    def __post_init__(self) -> None:
        for name in ("excluded", "together", "groups"):
            object.__setattr__(self, name, tuple(getattr(self, name)))  # equal, however they were given

    def __bool__(self) -> bool:
        """Whether anything is asked for."""
        return bool(self.pins or self.excluded or self.together or self.groups)

    def on(self, graph: Graph) -> Kept:
        """What that is of this graph. ModelError for a selector that names nothing, PlacementError for what
        cannot be had together.
        """
        return Kept(graph, self)

    @classmethod
    def of(cls, parts: Iterable[Constraints]) -> Constraints:
        """All that any of them asks for."""
        found = list(parts)
        return cls(
            {selector: backend for p in found for selector, backend in p.pins.items()},
            [e for p in found for e in p.excluded],
            [t for p in found for t in p.together],
            [g for p in found for g in p.groups],
        )

    def single(self) -> Iterator[tuple[str, Constraints]]:
        """Each thing asked for by itself, with words for it."""
        for selector, backend in self.pins.items():
            yield f"{selector} on {backend}", Constraints(pins={selector: backend})
        for backend, of in self.excluded:
            what = f"without {backend}" + ("" if of is None else f" for {of}")
            yield what, Constraints(excluded=((backend, of),))
        for selectors in self.together:
            yield f"{', '.join(selectors)} together", Constraints(together=(selectors,))
        for group in self.groups:
            yield str(group), Constraints(groups=(group,))


class Kept:
    """Constraints, of one graph.

    groups: with their nodes' ids. together: sets of nodes that no group may divide; those that share a node
    are one.
    """

    def __init__(self, graph: Graph, constraints: Constraints) -> None:
        self.graph = graph
        self.groups = [(_ids(graph, g.nodes), g) for g in constraints.groups]
        self.together = _joined(_ids(graph, selectors) for selectors in constraints.together)
        for nodes in self.together:
            if not Subgraph(graph, nodes).is_convex:
                names = ", ".join(graph.node(i).name for i in nodes)
                raise PlacementError(f"{names} cannot be one group: a path leaves them and comes back")
        self.pins = _pins(graph, constraints.pins)
        self._excluded = [
            (backend.lower(), None if selector is None else _excluded(graph, selector))
            for backend, selector in constraints.excluded
        ]
        for i, (backend, by) in self.pins.items():
            if i in self.excluded_from(backend):
                name = graph.node(i).name
                pinned = f"node {name!r} is pinned to {backend!r}" + (f" by {by!r}" if by != name else "")
                raise PlacementError(f"{pinned}, which is excluded from it")
        self._kept_from: dict[str, NodeSet] = {}
        self._group_of: dict[int, int] = {}
        for number, (nodes, group) in enumerate(self.groups):
            for i in nodes:
                if (other := self._group_of.setdefault(i, number)) != number:
                    name, first = graph.node(i).name, self.groups[other][1]
                    raise group.wrong(f": {name!r} is in another group already ({first})")
            if not Subgraph(graph, nodes).is_convex:
                raise group.wrong(": a path leaves them and comes back, so no kernel can run them")

    def excludes(self, backend: str) -> bool:
        """Whether a backend is kept out altogether."""
        return any(b == backend.lower() and of is None for b, of in self._excluded)

    def excluded_from(self, backend: str) -> NodeSet:
        """Nodes that a backend was told not to run."""
        nodes = NodeSet()
        for excluded, of in self._excluded:
            if excluded == backend.lower():
                nodes = nodes | (self.graph.all_nodes if of is None else of)
        return nodes

    def kept_from(self, backend: str) -> NodeSet:
        """Nodes that a backend may not run, whatever else is in its group."""
        name = backend.lower()
        if name not in self._kept_from:
            others = NodeSet(i for i, (pinned, _) in self.pins.items() if pinned.lower() != name)
            self._kept_from[name] = others | self.excluded_from(name)
        return self._kept_from[name]

    def allows(self, subgraph: Subgraph, backend: str, variant: Variant) -> bool:
        """Whether a candidate may be used."""
        nodes, name = subgraph.node_set, backend.lower()
        if not nodes.isdisjoint(self.kept_from(name)):
            return False
        if any(not nodes.isdisjoint(t) and not t <= nodes for t in self.together):
            return False
        touched = {self._group_of[i] for i in nodes if i in self._group_of}
        if not touched:
            return True
        wanted, group = self.groups[min(touched)]
        return nodes == wanted and group.backend.lower() == name and group.accepts(variant)


def _ids(graph: Graph, selectors: Sequence[str]) -> NodeSet:
    return NodeSet(n.id for selector in selectors for n in selected(graph, selector))


def _joined(sets: Iterable[NodeSet]) -> list[NodeSet]:
    found: list[NodeSet] = []
    for nodes in sets:
        for other in [f for f in found if not f.isdisjoint(nodes)]:
            found.remove(other)
            nodes = nodes | other
        found.append(nodes)
    return found


def _pins(graph: Graph, pins: Mapping[str, str]) -> dict[int, tuple[str, str]]:
    """By node's id: the backend, and the selector that says so."""
    names = {n.name for n in graph.nodes}
    found: dict[int, tuple[str, str]] = {}
    for selector, backend in sorted(pins.items(), key=lambda pin: pin[0] not in names):
        for node in selected(graph, selector):
            known, by = found.setdefault(node.id, (backend, selector))
            if known.lower() != backend.lower() and by not in names:
                raise PlacementError(
                    f"node {node.name!r} is pinned to {known!r} by {by!r} and to {backend!r} by {selector!r}"
                )
    return found


def _excluded(graph: Graph, selector: str) -> NodeSet:
    """None of an operator that the model lacks is excluded already."""
    try:
        return _ids(graph, [selector])
    except ModelError:
        if onnx.defs.has(selector):
            return NodeSet()
        raise


def _named(names: Sequence[str], most: int = 3) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
