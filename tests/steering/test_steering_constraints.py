"""What is asked of a placement leaves the candidates that keep to it, and no others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy_backend import TARGET, graph_of

from collage_core import Constraints, FixedGroup, Registry, generate_candidates
from collage_core.candidates import Candidate, Taken, require_offers
from collage_core.errors import ModelError, PlacementError
from collage_core.formats import Format, channels_last, plain
from collage_core.ir import Graph

_GRAPH = graph_of(
    [
        ("Relu", ["x"], "a/relu"),
        ("Neg", ["a/relu"], "a/neg"),
        ("Relu", ["a/neg"], "b/relu"),
        ("Neg", ["b/relu"], "b/neg"),
        ("Abs", ["b/neg"], "abs"),
    ],
    ["abs"],
)
_PLAIN = plain("float32", (2, 3, 4, 5))
_LAST = channels_last("float32", (2, 3, 4, 5))


def _candidates(registry: Registry, asked: Constraints, graph: Graph = _GRAPH) -> Sequence[Candidate]:
    return generate_candidates(graph, registry.backends.values(), TARGET, asked).candidates


def _who(candidates: Sequence[Candidate], node: str) -> set[str]:
    return {c.backend for c in candidates if node in _names(c)}


def _names(candidate: Candidate) -> tuple[str, ...]:
    return tuple(n.name for n in candidate.subgraph.nodes)


def test_nothing_asked_for(registry: Registry) -> None:
    assert not Constraints()
    assert _who(_candidates(registry, Constraints()), "a/relu") == {"pairs", "singles", "reference"}


@pytest.mark.parametrize("selector", ["a/relu", "a/r*", "?/relu", "Relu"])
def test_pinned(registry: Registry, selector: str) -> None:
    found = _candidates(registry, Constraints(pins={selector: "Singles"}))
    assert _who(found, "a/relu") == {"singles"}
    assert "pairs" in _who(found, "a/neg"), "alone, not behind the relu"
    assert ("a/relu", "a/neg") not in map(_names, found)


def test_a_name_goes_before_a_glob(registry: Registry) -> None:
    found = _candidates(registry, Constraints(pins={"*relu": "pairs", "b/relu": "singles"}))
    assert _who(found, "a/relu") == {"pairs"}
    assert _who(found, "b/relu") == {"singles"}


def test_two_globs_that_disagree(registry: Registry) -> None:
    said = "node 'a/relu' is pinned to 'pairs' by '*relu' and to 'singles' by 'a/*'"
    with pytest.raises(PlacementError, match=said.replace("*", r"\*")):
        _candidates(registry, Constraints(pins={"*relu": "pairs", "a/*": "singles"}))
    _candidates(registry, Constraints(pins={"*relu": "pairs", "a/r*": "Pairs"}))


def test_a_glob_that_its_backend_cannot_keep(registry: Registry) -> None:
    said = r"node 'abs' \(Abs\) is pinned to 'pairs' by 'a\*', which does not offer to run it"
    with pytest.raises(PlacementError, match=said):
        _candidates(registry, Constraints(pins={"a*": "pairs"}))


@pytest.mark.parametrize("selector", ["a/relu", "a/r*"])
def test_excluded_from_nodes(registry: Registry, selector: str) -> None:
    found = _candidates(registry, Constraints(excluded=[("PAIRS", selector)]))
    assert _who(found, "a/relu") == {"singles", "reference"}
    assert _who(found, "b/relu") == {"pairs", "singles", "reference"}


@pytest.mark.parametrize(
    "asked", [Constraints(excluded=[("whole", "b/relu")]), Constraints(pins={"b/relu": "reference"})]
)
def test_a_graph_library_keeps_large_groups_around_what_it_may_not_have(
    registry: Registry, asked: Constraints
) -> None:
    taken = {"whole": Taken(_GRAPH.all_nodes)}
    backends = registry.backends.values()
    found = generate_candidates(_GRAPH, backends, TARGET, asked, taken).candidates
    groups = {_names(c) for c in found if c.backend == "whole"}
    assert {("a/relu", "a/neg"), ("b/neg", "abs")} <= groups
    assert not any("b/relu" in names for names in groups)


def test_excluded_from_an_operator_that_is_not_there(registry: Registry) -> None:
    everything = _candidates(registry, Constraints())
    assert _candidates(registry, Constraints(excluded=[("pairs", "Softmax")])) == everything
    with pytest.raises(ModelError, match="no node is named 'Softmux'"):
        _candidates(registry, Constraints(excluded=[("pairs", "Softmux")]))


def test_kept_together(registry: Registry) -> None:
    found = _candidates(registry, Constraints(together=[("a/relu", "a/neg")]))
    of_them = [c for c in found if "a/relu" in _names(c) or "a/neg" in _names(c)]
    assert {_names(c) for c in of_them} == {("a/relu", "a/neg")}
    assert {c.backend for c in of_them} == {"pairs", "whole"}


def test_kept_together_by_a_library_that_would_not_have_proposed_it(registry: Registry) -> None:
    found = _candidates(registry, Constraints(together=[("a/*", "b/relu")]))
    assert _who(found, "b/relu") == {"whole"}
    said = "no backend that is left offers to run a/relu, a/neg, b/relu as one group; excluded: whole"
    with pytest.raises(PlacementError, match=said):
        _candidates(registry, Constraints(together=[("a/*", "b/relu")], excluded=[("whole", None)]))


def test_who_offers_nothing_is_not_excluded_from_what_is_kept_together(registry: Registry) -> None:
    excluded = [("pairs", "abs"), ("whole", None)]
    with pytest.raises(PlacementError, match=r"b/neg, abs as one group; excluded: whole$"):
        _candidates(registry, Constraints(together=[("b/neg", "abs")], excluded=excluded))


def test_what_shares_a_node_is_kept_together_as_one(registry: Registry) -> None:
    found = _candidates(registry, Constraints(together=[("a/relu", "a/neg"), ("a/neg", "b/relu")]))
    assert {_names(c) for c in found if "a/neg" in _names(c)} == {("a/relu", "a/neg", "b/relu")}
    twice = _candidates(registry, Constraints(together=[("a/*",), ("a/*",)]))
    assert len(twice) == len(set(twice))
    with pytest.raises(PlacementError, match="a/relu, b/relu cannot be one group: a path leaves them"):
        _candidates(registry, Constraints(together=[("*relu",)]))


def test_requests_that_are_in_each_others_way(registry: Registry) -> None:
    said = "node 'a/relu' .* pinned to 'pairs', which offers to run it, but not as something else"
    with pytest.raises(PlacementError, match=said):
        _candidates(registry, Constraints(pins={"a/relu": "pairs"}, together=[("a/*", "b/relu")]))


@pytest.mark.parametrize("of", [None, "Relu", "a/*"])
def test_a_pin_to_what_is_excluded(registry: Registry, of: str | None) -> None:
    excluded = [("PAIRS", of)]
    with pytest.raises(PlacementError, match="node 'a/relu' is pinned to 'pairs', which is excluded from it"):
        _candidates(registry, Constraints(pins={"a/relu": "pairs"}, excluded=excluded))
    with pytest.raises(PlacementError, match=r"pinned to 'pairs' by 'a/\*', which is excluded from it"):
        _candidates(registry, Constraints(pins={"a/*": "pairs"}, excluded=excluded))
    _candidates(registry, Constraints(pins={"b/neg": "pairs"}, excluded=[("pairs", "b/relu")]))


def test_all_that_offer_to_run_a_node_are_excluded(registry: Registry) -> None:
    asked = [(name, "abs") for name in ("singles", "whole", "reference")]
    taken = {"whole": Taken(_GRAPH.all_nodes)}
    backends = registry.backends.values()
    found = generate_candidates(_GRAPH, backends, TARGET, Constraints(excluded=asked), taken)
    with pytest.raises(PlacementError, match="no backend that is left") as raised:
        require_offers(found)
    assert "offers to run node 'abs' (Abs); excluded: " in str(raised.value)
    assert all(name in str(raised.value) for name, _ in asked)
    assert "pairs" not in str(raised.value), "it does not offer to"
    require_offers(generate_candidates(_GRAPH, backends, TARGET, Constraints(excluded=asked[1:]), taken))


def test_a_group_that_is_given(registry: Registry) -> None:
    group = FixedGroup(("a/relu", "a/neg"), "pairs", (_LAST,), (_LAST,))
    found = _candidates(registry, Constraints(groups=[group]))
    (only,) = [c for c in found if "a/neg" in _names(c)]
    assert (_names(only), only.backend, only.variant.inputs) == (("a/relu", "a/neg"), "pairs", (_LAST,))


def test_a_group_whose_formats_are_left_open(registry: Registry) -> None:
    found = _candidates(registry, Constraints(groups=[FixedGroup(("a/relu", "a/neg"), "pairs")]))
    assert {c.variant.inputs for c in found if "a/neg" in _names(c)} == {(_PLAIN,), (_LAST,)}


def test_a_group_that_nobody_proposes(registry: Registry) -> None:
    found = _candidates(registry, Constraints(groups=[FixedGroup(("a/neg", "b/relu"), "pairs")]))
    assert {_names(c) for c in found if "b/relu" in _names(c)} == {("a/neg", "b/relu")}


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([FixedGroup(("a/relu",), "nobody")], "a/relu as one group of nobody, which does not take part"),
        ([FixedGroup(("a/*", "abs"), "pairs")], "a path leaves them and comes back"),
        (
            [FixedGroup(("a/*", "b/*"), "pairs", where="p.yaml:3")],
            "p.yaml:3: a/*, b/* as one group of pairs: ",
        ),
        ([FixedGroup(("a/*", "b/*"), "pairs")], "two nodes at most"),
        ([FixedGroup(("a/relu",), "singles", (_LAST,), (_LAST,))], "not in these formats; it offers "),
        (
            [FixedGroup(("a/relu",), "singles", (_PLAIN,), (_PLAIN,), (("tile", "4"),))],
            "not with these options; it offers ",
        ),
        (
            [FixedGroup(("a/*",), "pairs"), FixedGroup(("*relu",), "singles", where="p.yaml:7")],
            "p.yaml:7: *relu as one group of singles: 'a/relu' is in another group already (a/* as",
        ),
    ],
)
def test_groups_that_cannot_be(registry: Registry, groups: list[FixedGroup], said: str) -> None:
    with pytest.raises(PlacementError) as raised:
        _candidates(registry, Constraints(groups=groups))
    assert said in str(raised.value)


def test_a_group_and_a_pin_that_disagree(registry: Registry) -> None:
    groups = [FixedGroup(("a/relu", "a/neg"), "pairs")]
    with pytest.raises(PlacementError, match="a pin or an exclusion says otherwise"):
        _candidates(registry, Constraints(pins={"a/neg": "singles"}, groups=groups))


_NAMES = [n.name for n in _GRAPH.nodes]
_BACKENDS = ["pairs", "singles", "whole", "reference"]


@st.composite
def _asked(draw: st.DrawFn) -> Constraints:
    selectors = st.sampled_from([*_NAMES, "a/*", "b/*", "*relu", "Neg"])
    backends = st.sampled_from(_BACKENDS)
    return Constraints(
        draw(st.dictionaries(selectors, backends, max_size=2)),
        draw(st.lists(st.tuples(backends, st.none() | selectors), max_size=2)),
        draw(st.lists(st.lists(selectors, min_size=1, max_size=2).map(tuple), max_size=2)),
        draw(st.lists(st.builds(FixedGroup, st.tuples(selectors), backends), max_size=2)),
    )


@given(_asked())
def test_what_is_left_keeps_to_it(asked: Constraints) -> None:
    """Beside everything that is offered, filtered by the words of what was asked for."""
    registry = _registry()
    try:
        found = _candidates(registry, asked)
    except PlacementError:
        return
    selected = {s: _selected(s) for s in _all_selectors(asked)}
    covered = {node for c in found for node in _names(c)}
    assert covered >= {node for s in asked.pins for node in selected[s]}
    for c in found:
        names = {*_names(c)}
        for selector, backend in asked.pins.items():
            by_name = {n: b for n, b in asked.pins.items() if n in _NAMES}
            for node in names & selected[selector]:
                assert c.backend == by_name.get(node, backend)
        for backend, of in asked.excluded:
            assert c.backend != backend or (of is not None and not names & selected[of])
        for selectors in asked.together:
            whole = set().union(*(selected[s] for s in selectors))
            assert not names & whole or whole <= names
        for group in asked.groups:
            whole = set().union(*(selected[s] for s in group.nodes))
            assert not names & whole or (names == whole and c.backend == group.backend)
    parts = Constraints.of(part for _, part in asked.single())
    assert _candidates(registry, parts) == found


def _registry() -> Registry:
    import steered_backends

    return Registry([steered_backends], entry_points=False)


def _selected(selector: str) -> set[str]:
    by_glob = {"a/*": {"a/relu", "a/neg"}, "b/*": {"b/relu", "b/neg"}, "*relu": {"a/relu", "b/relu"}}
    return by_glob.get(selector) or ({"a/neg", "b/neg"} if selector == "Neg" else {selector})


def _all_selectors(asked: Constraints) -> Iterator[str]:
    yield from asked.pins
    yield from (s for _, s in asked.excluded if s is not None)
    yield from (s for selectors in asked.together for s in selectors)
    yield from (s for group in asked.groups for s in group.nodes)


def test_formats_are_compared_as_a_whole() -> None:
    assert FixedGroup(("a",), "b", (_PLAIN,)).variant is None
    assert Format("float32", (0, 2, 3, 1)) == _LAST
