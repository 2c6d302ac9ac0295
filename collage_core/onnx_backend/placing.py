"""A placement without a measurement: who takes an operator gets it, and the reference what nobody takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from collage_core.backend import Backend, BackendKind, Variant
from collage_core.candidates import Candidate, Taken, generate_candidates, require_offers
from collage_core.costs.record import CostRecord
from collage_core.costs.support import ask_each, ask_supported
from collage_core.errors import Refusal
from collage_core.ir import NodeSet
from collage_core.onnx_backend.home import Home
from collage_core.onnx_backend.stored import StoredGraph
from collage_core.placement import VIEW, Conversion, Group, Placement
from collage_core.search.formulate import ConversionKey, needed_conversions
from collage_core.search.op_level import OpLevelSearch
from collage_core.search.searcher import SearchTask

__all__ = ["Placer"]

_GROUP_MS = 1.0
_REFERENCE_MS = 1000.0
_CONVERSION_MS = 0.1
_RANK_MS = 1e-3
_VARIANT_MS = 1e-6

_Nodes = tuple[int, ...]


class Placer:
    """Places one graph, again and again: what has failed is taken out, and the rest is placed anew.

    Costs are made up. The reference's are far above all others, so that it gets what nobody else takes.
    Else fewer groups are better than more, and of groups alike the first backend's and the first variant.

    home: whose worker is asked what its backends take.
    """

    def __init__(self, stored: StoredGraph, home: Home) -> None:
        self._stored = stored
        self._home = home
        self._backends = backends = home.backends
        self._target = target = home.target
        self._rank = {name: i for i, name in enumerate(backends)}
        self._answers: dict[tuple[str, _Nodes], Refusal | None] = {}
        self._out: dict[tuple[str, _Nodes, Variant], Refusal] = {}
        self._no_conversion: set[tuple[str, ConversionKey]] = set()
        graph = stored.graph
        taken = {n: self._taken(n) for n, kind in home.kinds.items() if kind is BackendKind.GRAPH}
        self._candidates = generate_candidates(graph, backends.values(), target, taken=taken)
        require_offers(self._candidates)
        self._preference = {
            id(c): i for group in _alike(self._candidates.candidates) for i, c in enumerate(group)
        }

    @property
    def refusals(self) -> dict[str, tuple[Refusal, ...]]:
        """By backend, why it declined what it did."""
        asked: dict[str, list[Refusal]] = {name: [] for name in self._backends}
        for (name, _), answer in self._answers.items():
            if answer is not None:
                asked[name].append(answer)
        for (name, _, _), refusal in self._out.items():
            asked[name].append(refusal)
        said = self._candidates.refusals
        return {name: tuple(dict.fromkeys((*said.get(name, ()), *more))) for name, more in asked.items()}

    def place(self) -> Placement:
        """A placement whose groups their libraries take, without costs.

        PlacementError names a node that nobody is left for.
        """
        while True:
            placement = self._search()
            if not self._ask(g for g in placement.groups if g.backend != VIEW):
                return placement

    def take_out(self, what: Group | Conversion, reason: str) -> bool:
        """Do not offer it again; False for what cannot be spared, the reference's own."""
        if self._is_reference(what.backend):
            return False
        if isinstance(what, Conversion):
            type = self._stored.graph.type_of(what.value)
            self._no_conversion.add((what.backend, (type, what.source, what.destination)))
        else:
            node = self._stored.graph.node(what.nodes[0]).name
            self._out[what.backend, what.nodes, what.variant] = Refusal(reason, node)
        return True

    def _search(self) -> Placement:
        task = SearchTask(self._candidates, self._record_of, self._converters())
        placement = OpLevelSearch().search(task).placement
        return replace(
            placement,
            groups=tuple(replace(g, cost_ms=None, spread_ms=None) for g in placement.groups),
            conversions=tuple(replace(c, cost_ms=None) for c in placement.conversions),
            predicted_ms=None,
            optimal=False,
            method="nominal",
            terms_ms={},
        )

    def _record_of(self, candidate: Candidate) -> CostRecord | None:
        name, nodes = candidate.backend, tuple(n.id for n in candidate.subgraph.nodes)
        refused = self._answers.get((name, nodes)) is not None
        if refused or (name, nodes, candidate.variant) in self._out:
            return None
        if self._is_reference(name):
            return CostRecord("ok", _REFERENCE_MS * len(nodes))
        place = _RANK_MS * self._rank[name] + _VARIANT_MS * self._preference[id(candidate)]
        return CostRecord("ok", _GROUP_MS + place)

    def _converters(self) -> dict[ConversionKey, tuple[str, float]]:
        found: dict[ConversionKey, tuple[str, float]] = {}
        for key in needed_conversions(self._stored.graph, self._candidates.candidates):
            for name, backend in self._home.converters.items():
                if (name, key) not in self._no_conversion and self._converts(backend, key):
                    found[key] = name, _CONVERSION_MS
                    break
        return found

    def _converts(self, backend: Backend, key: ConversionKey) -> bool:
        try:
            return backend.offers_conversion(*key, self._target)
        except Exception:  # a plugin may raise anything; it costs this conversion
            return False

    def _is_reference(self, name: str) -> bool:
        return self._home.kinds.get(name) is BackendKind.REFERENCE  # transfers are of no kind

    def _taken(self, name: str) -> Taken:
        """What a graph library says of each single node."""
        nodes = self._stored.graph.nodes
        self._ask_backend(name, [(n.id,) for n in nodes])
        refused = {n.id: r for n in nodes if (r := self._answers[name, (n.id,)]) is not None}
        return Taken(NodeSet(n.id for n in nodes if n.id not in refused))

    def _ask(self, groups: Iterator[Group]) -> bool:
        """Ask about groups that nobody has asked about; whether one was declined."""
        unknown: dict[str, list[_Nodes]] = {}
        for g in groups:
            if (g.backend, g.nodes) not in self._answers and not self._is_reference(g.backend):
                unknown.setdefault(g.backend, []).append(g.nodes)
        for name, asked in unknown.items():
            self._ask_backend(name, asked)
        return any(
            self._answers[name, nodes] is not None for name, asked in unknown.items() for nodes in asked
        )

    def _ask_backend(self, name: str, groups: Sequence[_Nodes]) -> None:
        folder, target = self._stored.folder, self._target

        def ask(asked: Sequence[_Nodes]) -> Sequence[Refusal | None]:
            return self._home.servant.call(
                ask_supported, folder, name, target, tuple(asked), more_s=float(len(asked))
            )

        graph = self._stored.graph
        for nodes, record in zip(groups, ask_each(ask, groups), strict=True):
            said = str(record.reason)
            reason = said if record.status == "declined" else f"{record.status}: {said}"
            self._answers[name, nodes] = None if record.ok else Refusal(reason, graph.node(nodes[0]).name)


def _alike(candidates: Sequence[Candidate]) -> list[list[Candidate]]:
    """Candidates of one backend for the same nodes, in the order of the offer."""
    groups: dict[tuple[str, NodeSet], list[Candidate]] = {}
    for c in candidates:
        groups.setdefault((c.backend, c.subgraph.node_set), []).append(c)
    return list(groups.values())
