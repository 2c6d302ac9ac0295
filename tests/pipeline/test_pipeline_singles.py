"""One backend on its own: a graph library gets the graph in as few groups as can be had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from collage_core import Graph, Placement, PlacementError, Target, plain_variant
from collage_core.backend import BackendKind
from collage_core.ir import Subgraph, from_model
from collage_core.pipeline.costing import Costs
from collage_core.pipeline.optimize import _Known, _single
from collage_core.placement import Group
from collage_core.search import OpLevelSearch, Searcher, SearchResult
from collage_core.search.candidates import Candidate, CandidateSet
from collage_core.search.library_groups import ALL_TAKEN
from collage_core.search.transitions import Transitions

if TYPE_CHECKING:
    from tests.pipeline.conftest import Parse

_TARGET = Target("cpu", 1)
_WHOLE, _ALL = True, False
Answers = Mapping[tuple[bool, tuple[str, ...]], str | list[str]]
"""By whether only the library's largest groups may be taken, and the backends: who gets each node, or why
nobody can.
"""


@pytest.fixture
def graph(parse: Parse) -> Graph:
    return from_model(parse("(float[8] x) => (float y) { [a] p = Relu(x) [b] q = Tan(p) [c] y = Abs(q) }"))


@dataclass(frozen=True, slots=True)
class _Told(_Known):
    """What searches will find."""

    answers: Answers

    def search(self, searcher: Searcher, backends: Sequence[str] | None = None) -> SearchResult:
        whole = all(c.origin == ALL_TAKEN for c in self.candidates.candidates)
        answer = self.answers[whole, tuple(backends or ())]
        if isinstance(answer, str):
            raise PlacementError(answer)
        groups = [
            Group(backend, (n.id,), plain_variant(Subgraph(self.candidates.graph, [n.id])))
            for backend, n in zip(answer, self.candidates.graph.nodes, strict=True)
        ]
        return SearchResult(Placement(tuple(groups), (), _TARGET), None)


_ONE, _BOTH = ("lib",), ("lib", "ref")


@pytest.mark.parametrize(
    ("answers", "backends", "reason"),
    [
        ({(_WHOLE, _ONE): ["lib"] * 3}, ["lib"] * 3, None),
        # The whole cannot be compiled, every operator can.
        ({(_WHOLE, _ONE): "too long", (_ALL, _ONE): ["lib"] * 3}, ["lib"] * 3, None),
        # It lacks Tan; the rest it takes as a whole.
        (
            {
                (_WHOLE, _ONE): "no Tan",
                (_ALL, _ONE): "no Tan",
                (_WHOLE, _BOTH): ["lib", "ref", "lib"],
                (_ALL, _BOTH): ["lib", "ref", "lib"],
            },
            ["lib", "ref", "lib"],
            "no Tan",
        ),
        # It lacks Tan, and what is before it cannot be compiled as a whole.
        (
            {
                (_WHOLE, _ONE): "too long",
                (_ALL, _ONE): "no Tan",
                (_WHOLE, _BOTH): ["ref", "ref", "lib"],
                (_ALL, _BOTH): ["lib", "ref", "lib"],
            },
            ["lib", "ref", "lib"],
            "no Tan",
        ),
        (
            {
                (_WHOLE, _ONE): "no Tan",
                (_ALL, _ONE): "no Tan",
                (_WHOLE, _BOTH): "nobody has Tan",
                (_ALL, _BOTH): "nobody has Tan",
            },
            None,
            "nobody has Tan",
        ),
    ],
)
def test_a_library_alone(
    graph: Graph, answers: Answers, backends: list[str] | None, reason: str | None
) -> None:
    subgraph = Subgraph(graph, [graph.nodes[0].id])
    candidates = tuple(
        Candidate(subgraph, "lib", plain_variant(subgraph), origin) for origin in ("pattern", ALL_TAKEN)
    )
    kinds = {"lib": BackendKind.GRAPH, "ref": BackendKind.REFERENCE}
    known = _Told(
        CandidateSet(graph, _TARGET, candidates, {}, kinds), {}, Costs({}, {}), Transitions(), answers
    )
    single = _single("lib", "ref", known, OpLevelSearch())
    placed = [g.backend for g in single.placement.groups] if single.placement else None
    assert placed == backends
    assert single.alone == (backends == ["lib"] * 3)
    assert single.reason == reason
