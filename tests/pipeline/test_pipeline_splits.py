"""A graph in two parts, of which a library rounds one: where it may be cut, and how much is rounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from collage_core.backend import plain_variant, rounded_variant
from collage_core.candidates import Candidate
from collage_core.ir import Graph, NodeSet, Subgraph, from_model
from collage_core.ir.passes import normalise
from collage_core.pipeline.splits import cuts, split_at

if TYPE_CHECKING:
    from tests.pipeline.conftest import Parse

_CHAIN = "(float[4] x) => (float y) { a = Neg(x) b = Exp(a) c = Sin(b) d = Cos(c) y = Tanh(d) }"
_WIDE = """(float[4] x) => (float y) {
    a = Neg(x) b = Exp(x) c = Sin(x) d = Cos(x) e = Sum(a, b, c, d) y = Tanh(e) }"""


def _graph(parse: Parse, text: str) -> Graph:
    return normalise(from_model(parse(text)))


def _offer(graph: Graph, nodes: NodeSet) -> Sequence[Candidate]:
    """Exactly, and in bfloat16."""
    subgraph = Subgraph(graph, nodes)
    plain = plain_variant(subgraph)
    return [Candidate(subgraph, "lib", v, "test") for v in (plain, rounded_variant(plain, "bfloat16"))]


def test_it_is_cut_where_few_values_cross(parse: Parse) -> None:
    assert cuts(_graph(parse, _CHAIN)) == [1, 2, 3, 4]
    # Behind the first, a and x cross; behind the third four values do, and x, which the last of them reads.
    assert cuts(_graph(parse, _WIDE)) == [1, 2, 5]


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("most", range(6))
def test_as_much_is_rounded_as_holds(parse: Parse, most: int, last: bool) -> None:
    graph = _graph(parse, _CHAIN)
    found = split_at(
        graph, lambda nodes: _offer(graph, nodes), lambda c: len(c.subgraph.nodes) <= most, last=last
    )
    if not most:
        assert not found
        return
    rounded, exact = found
    assert (rounded.is_rounded, exact.is_rounded) == (True, False)
    count = min(most, 4)
    ids = [n.id for n in graph.nodes]
    assert [n.id for n in rounded.subgraph.nodes] == (ids[-count:] if last else ids[:count])
    assert [n.id for n in exact.subgraph.nodes] == (ids[:-count] if last else ids[count:])


def test_what_nobody_offers_is_no_part(parse: Parse) -> None:
    graph = _graph(parse, _CHAIN)
    assert split_at(graph, lambda nodes: [], lambda c: True, last=True) == []
    exact = [c for c in _offer(graph, graph.all_nodes) if not c.is_rounded]
    assert split_at(graph, lambda nodes: exact, lambda c: True, last=True) == []
