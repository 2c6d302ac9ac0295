"""Routes of conversions: the cheapest of all ways, and what a placement says of them."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from collage_core import Target, Variant
from collage_core.backend import BackendKind
from collage_core.candidates import Candidate, CandidateSet
from collage_core.costs.record import CostRecord
from collage_core.errors import PlacementError
from collage_core.formats import Format
from collage_core.ir import Graph, Subgraph, from_model
from collage_core.placement import Conversion
from collage_core.search import OpLevelSearch
from collage_core.search.formulate import ConversionKey, needed_conversions, terms_ms
from collage_core.search.routes import cheapest_routes
from collage_core.search.searcher import SearchResult, SearchTask
from collage_core.search.transitions import Transitions

_SHAPE = (2, 3, 4)
_A, _B, _C = (Format.of("float32", _SHAPE, layout) for layout in ((0, 1, 2), (0, 2, 1), (1, 0, 2)))
_HOPS = st.dictionaries(
    st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(lambda hop: hop[0] != hop[1]),
    st.integers(0, 9).map(float),
)


@given(_HOPS)
def test_no_way_is_cheaper(hops_ms: dict[tuple[int, int], float]) -> None:
    routes = cheapest_routes(hops_ms)
    least = {(p, q): hops_ms.get((p, q), math.inf) for p in range(6) for q in range(6)}
    for by in range(6):  # Floyd and Warshall's
        for p, q in least:
            least[p, q] = min(least[p, q], least[p, by] + least[by, q])
    assert {e: ms for e, (ms, _) in routes.items()} == {
        (p, q): ms for (p, q), ms in least.items() if p != q and ms < math.inf
    }
    for (source, destination), (ms, hops) in routes.items():
        assert (hops[0][0], hops[-1][1]) == (source, destination)
        assert all(a[1] == b[0] for a, b in pairwise(hops))
        assert ms == sum(hops_ms[hop] for hop in hops)
        assert ms < hops_ms.get((source, destination), math.inf) or len(hops) == 1
        for count, (_, by) in enumerate(hops, 1):
            assert routes[source, by][1] == hops[:count], "all routes from one source are a tree"


@given(_HOPS, st.lists(st.sampled_from(["float32", "float16", "bfloat16"]), min_size=6, max_size=6))
def test_no_value_is_rounded_on_the_way(hops_ms: dict[tuple[int, int], float], drawn: list[str]) -> None:
    """A route changes the precision once at most, and none that does so is cheaper."""
    routes = cheapest_routes(hops_ms, dict(enumerate(drawn)))
    for source in range(6):
        # What has changed is kept to: of the allowed hops every way is a way.
        allowed = {
            (p, q): ms for (p, q), ms in hops_ms.items() if drawn[p] == drawn[source] or drawn[p] == drawn[q]
        }
        found = cheapest_routes(allowed)
        of_source = {end: route for (start, end), route in routes.items() if start == source}
        assert of_source == {end: route for (start, end), route in found.items() if start == source}
        for _, hops in of_source.values():
            assert sum(drawn[p] != drawn[q] for p, q in hops) <= 1


def _graph() -> Graph:
    """One value, read by two."""
    nodes = [
        helper.make_node(op, [x], [y])
        for op, x, y in (("Relu", "x", "a"), ("Neg", "a", "b"), ("Abs", "a", "c"))
    ]
    values = [helper.make_tensor_value_info(v, TensorProto.FLOAT, _SHAPE) for v in "xbc"]
    return from_model(helper.make_model(helper.make_graph(nodes, "g", values[:1], values[1:])))


def _search(
    converters: dict[tuple[Format, Format], float], second: Format = _C, slow: Format | None = None
) -> tuple[Graph, SearchResult]:
    """slow: what the second reader may read as well, and takes 5 ms for."""
    graph = _graph()
    formats = (_A, _A), (_C, _A), (second, _A)
    candidates = tuple(
        Candidate(Subgraph(graph, [n.id]), "toy", Variant((read,), (written,)), "pattern")
        for n, (read, written) in zip(graph.nodes, formats, strict=True)
    )
    slower = Candidate(candidates[-1].subgraph, "toy", Variant((slow or second,), (_A,)), "pattern")
    if slow is not None:
        candidates = (*candidates, slower)
    kinds = {"toy": BackendKind.OPERATOR}
    types = graph.type_of("a")
    offered: dict[ConversionKey, tuple[str, float]] = {
        (types, source, destination): ("toy", ms) for (source, destination), ms in converters.items()
    }
    task = SearchTask(
        CandidateSet(graph, Target("cpu", 1), candidates, {}, kinds),
        lambda candidate: CostRecord("ok", 5.0 if slow is not None and candidate is slower else 1.0),
        offered,
        Transitions({"toy": 0.125}),
    )
    return graph, OpLevelSearch().search(task)


_AB = Conversion("a", _A, _B, "toy", 0.25)
_BC, _AC = Conversion("a", _B, _C, "toy", 0.5), Conversion("a", _A, _C, "toy", 0.5)


def test_a_value_goes_by_way_of_a_format_that_somebody_knows() -> None:
    """Nobody converts from A to C, and the second reader takes B: both come by the same hop."""
    graph, found = _search({(_A, _B): 0.25, (_B, _C): 0.5}, _B)
    assert found.placement.conversions == (_AB, _BC)
    told = found.placement.terms_ms
    # The hop that both routes share is made once, and paid once.
    assert told == {
        "kernels": 3.0,
        "conversions": 0.25 + 0.125 + 0.5 + 0.125,
        "groups": 0.375,
        "crossings": 0.0,
    }
    assert terms_ms(graph, found.placement, Transitions({"toy": 0.125})) == told
    assert found.placement.predicted_ms == sum(told.values())


def test_a_route_by_way_of_what_nobody_chose_is_priced_as_the_search_says() -> None:
    """Only a reader that is not taken knows B."""
    graph, found = _search({(_A, _B): 0.25, (_B, _C): 0.5, (_A, _C): 4.0}, slow=_B)
    assert found.placement.conversions == (_AB, _BC)
    assert all(_B not in (*g.variant.inputs, *g.variant.outputs) for g in found.placement.groups)
    assert terms_ms(graph, found.placement, Transitions({"toy": 0.125})) == found.placement.terms_ms


@pytest.mark.parametrize(("direct_ms", "conversions"), [(2.0, (_AB, _BC)), (0.5, (_AB, _AC))])
def test_several_hops_are_taken_only_where_they_are_cheaper(
    direct_ms: float, conversions: tuple[Conversion, ...]
) -> None:
    """The constant of each hop counts, too: 0.25 + 0.5 and two constants against 0.5 and one."""
    _, found = _search({(_A, _B): 0.25, (_B, _C): 0.5, (_A, _C): direct_ms}, _B)
    assert sorted(found.placement.conversions, key=str) == sorted(conversions, key=str)


def test_formats_that_nobody_reads_or_writes_are_no_way() -> None:
    """They are not measured either (`needed_conversions`)."""
    with pytest.raises(PlacementError, match="node 1 cannot be placed without a conversion"):
        _search({(_A, _B): 0.25, (_B, _C): 0.5})


@pytest.mark.parametrize(
    ("written", "read", "needed"),
    [
        (_A, _C, {(_A, _C)}),
        (_A, _A.on("x"), {(_A, _A.on("x"))}),
        (
            _A,
            _C.on("x"),
            {(_A, _C.on("x")), (_A, _A.on("x")), (_A.on("x"), _C.on("x")), (_A, _C), (_C, _C.on("x"))},
        ),
        (_A.on("x"), _A.on("y"), {(_A.on("x"), _A), (_A, _A.on("y"))}),
        (_A.on("x"), _C.on("y"), {(_A.on("x"), _A), (_A, _C), (_C, _C.on("y"))}),
        (_A.on("x"), _C.on("x"), {(_A.on("x"), _C.on("x")), (_A.on("x"), _A), (_A, _C), (_C, _C.on("x"))}),
    ],
)
def test_what_a_value_may_need_on_its_way(
    written: Format, read: Format, needed: set[tuple[Format, Format]]
) -> None:
    """By way of the host, too, though nobody reads or writes it there."""
    graph = _graph()
    writer, reader, _ = (Subgraph(graph, [n.id]) for n in graph.nodes)
    candidates = [
        Candidate(writer, "toy", Variant((_A,), (written,)), "pattern"),
        Candidate(reader, "toy", Variant((read,), (_A,)), "pattern"),
    ]
    found = needed_conversions(graph, candidates)
    assert {
        (source, destination) for (_, source, destination), value in found.items() if value == "a"
    } == needed
