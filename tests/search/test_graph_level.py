"""What genomes stand for, and which groups libraries are asked for; the machine is played by a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx.parser
import pytest

from collage_core import Candidate, CandidateSet, Graph, Placement, Subgraph, Target, plain_variant
from collage_core.backend import BackendKind
from collage_core.candidates import ALL_TAKEN, library_groups
from collage_core.costs.record import CostRecord
from collage_core.ir import NodeSet, from_model
from collage_core.ir.passes import normalise
from collage_core.placement import VIEW
from collage_core.search import Evolution, GraphLevelSearch, SearchTask

_TARGET = Target("cpu", 1)
_KINDS = {"ops": BackendKind.OPERATOR, "lib": BackendKind.GRAPH}

Costs = Mapping[tuple[str, ...], float]
"""Milliseconds of groups of the library, by operators; anything else takes 10 each."""


def _graph(text: str) -> Graph:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> g {text}')
    return normalise(from_model(model))


def _candidate(graph: Graph, nodes: NodeSet, backend: str) -> Candidate:
    subgraph = Subgraph(graph, nodes)
    return Candidate(subgraph, backend, plain_variant(subgraph), "test")


def _names(graph: Graph, placement: Placement) -> list[tuple[str, str]]:
    """Backend and node names of each group, in order."""
    return [(g.backend, "".join(graph.node(i).name for i in g.nodes)) for g in placement.groups]


def _task(
    graph: Graph,
    views: str,
    library_ms: Callable[[Sequence[str]], float | None],
    measured: list[list[tuple[str, str]]],
    taken: str | None = None,
) -> SearchTask:
    """Every operator takes 4 ms on "ops". `library_ms` tells by the names of a group's nodes what it takes on
    "lib", None where that fails; nodes not in `taken` are declined.
    """
    offered = [_candidate(graph, NodeSet([n.id]), VIEW if n.name in views else "ops") for n in graph.nodes]

    def offer(backend: str, nodes: NodeSet) -> Sequence[Candidate]:
        names = [graph.node(i).name for i in nodes]
        if taken is not None and any(n not in taken for n in names):
            return ()
        return [_candidate(graph, nodes, backend)]

    def measure(placements: Sequence[Placement]) -> list[CostRecord]:
        records = []
        for p in placements:
            groups = _names(graph, p)
            measured.append(groups)
            times = [0.0 if b == VIEW else 4.0 if b == "ops" else library_ms(n) for b, n in groups]
            if any(t is None for t in times):
                records.append(CostRecord("failed", seconds=1.0, reason="it does not build"))
            else:
                records.append(CostRecord("ok", sum(t or 0.0 for t in times), 0.01, 15, seconds=1.0))
        return records

    candidates = CandidateSet(graph, _TARGET, tuple(offered), {}, _KINDS)
    return SearchTask(
        candidates,
        lambda c: CostRecord("ok", 4.0, 0.01, 15) if c.backend == "ops" else None,
        {},
        offer=offer,
        measure=measure,
    )


def test_views_go_along_where_they_stand_between_what_goes() -> None:
    graph = _graph(
        """(float[4,6] x) => (float[6,4] y)
        <int64[2] s = {6, 4}> { [a] a = Relu(x) [v] v = Reshape(a, s) [b] y = Neg(v) }"""
    )
    measured: list[list[tuple[str, str]]] = []
    task = _task(graph, "v", lambda names: 3.0 if len(names) > 1 else 5.0, measured)
    found = GraphLevelSearch().search(task)
    assert _names(graph, found.placement) == [("lib", "avb")]
    assert sorted(measured[1:]) == sorted(
        [
            [("ops", "a"), ("view", "v"), ("ops", "b")],
            [("lib", "a"), ("view", "v"), ("ops", "b")],
            [("ops", "a"), ("view", "v"), ("lib", "b")],
            [("lib", "avb")],
        ]
    )
    assert found.history["stopped_by"] == "exhausted"
    assert found.history["op_level_ms"] == 8.0
    assert found.history["best_ms"] == 3.0


def test_what_the_library_declines_stays_where_it_is() -> None:
    graph = _graph("(float[8] x) => (float y) { [a] a = Relu(x) [b] b = Neg(a) [c] y = Abs(b) }")
    measured: list[list[tuple[str, str]]] = []
    task = _task(graph, "", lambda names: 1.0 * len(names), measured, taken="ac")
    found = GraphLevelSearch().search(task)
    assert _names(graph, found.placement) == [("lib", "a"), ("ops", "b"), ("lib", "c")]
    # Genomes that differ only in what is declined are one placement, which is measured once.
    assert len(measured) == len({str(m) for m in measured[1:]}) + 1


def test_what_fails_costs_only_itself() -> None:
    graph = _graph("(float[8] x) => (float y) { [a] a = Relu(x) [b] b = Neg(a) [c] y = Abs(b) }")
    task = _task(graph, "", lambda names: None if "c" in names else 1.0 * len(names), [])
    found = GraphLevelSearch().search(task)
    assert _names(graph, found.placement) == [("lib", "ab"), ("ops", "c")]
    reasons = {e["reason"] for e in found.history["evaluations"] if e["median_ms"] is None}
    assert reasons == {"failed: it does not build"}


def test_nothing_better_leaves_the_op_level() -> None:
    graph = _graph("(float[8] x) => (float y) { [a] a = Relu(x) [b] y = Neg(a) }")
    found = GraphLevelSearch().search(_task(graph, "", lambda names: 4.0 * len(names), []))
    assert _names(graph, found.placement) == [("ops", "a"), ("ops", "b")]
    assert found.history["best_ms"] == 8.0


def test_an_interruption_keeps_what_there_is() -> None:
    graph = _graph("(float[8] x) => (float y) { [a] a = Relu(x) [b] y = Neg(a) }")
    task = _task(graph, "", lambda names: 1.0, [])
    assert task.measure is not None
    done = 0

    def interrupted_after(calls: int) -> Callable[[Sequence[Placement]], Sequence[CostRecord]]:
        def measure(placements: Sequence[Placement]) -> Sequence[CostRecord]:
            nonlocal done
            done += 1
            if done > calls:
                raise KeyboardInterrupt
            assert task.measure is not None
            return task.measure(placements)

        return measure

    for calls, groups in ((0, 2), (1, 2), (2, 1)):
        done = 0
        search = GraphLevelSearch(Evolution(population=2))
        found = search.search(
            SearchTask(task.candidates, task.cost_of, {}, offer=task.offer, measure=interrupted_after(calls))
        )
        assert found.history["stopped_by"] == "interrupted"
        assert len(found.placement.groups) == groups


def test_nothing_is_tried_where_nothing_may_be_measured() -> None:
    graph = _graph("(float[8] x) => (float y) { [a] a = Relu(x) [b] y = Neg(a) }")
    task = _task(graph, "", lambda names: 1.0, [])
    found = GraphLevelSearch().search(SearchTask(task.candidates, task.cost_of, {}))
    assert found.history == {"stopped_by": "nothing may be measured"}


@pytest.mark.parametrize(
    ("taken", "offered", "expected"),
    [
        ("abcd", ["ab", "a", "cd"], {"ab": "group of another backend", "cd": "group of another backend"}),
        ("abcd", ["a", "bc", "b"], {"a": "group of another backend", "bc": "group of another backend"}),
        ("acd", ["ab", "a", "cd"], {"a": "group of another backend"}),
        ("abc", [], {"a": "single operator", "b": "single operator", "c": "single operator"}),
        ("", ["ab"], {}),
    ],
)
def test_groups_for_a_library(taken: str, offered: list[str], expected: dict[str, str]) -> None:
    graph = _graph(
        "(float[8] x) => (float y) { [a] a = Relu(x) [b] b = Neg(a) [c] c = Abs(b) [d] y = Exp(c) }"
    )

    def nodes(names: str) -> NodeSet:
        return NodeSet(graph.node_named(n).id for n in names)

    found = library_groups(graph, nodes(taken), [nodes(o) for o in offered])
    named = {"".join(graph.node(i).name for i in s): origin for s, origin in found.items()}
    largest = {n for n, origin in named.items() if origin == ALL_TAKEN}
    rest = {n: origin for n, origin in named.items() if n not in largest}
    assert largest == {part for part in ("".join(n if n in taken else " " for n in "abcd")).split() if part}
    assert rest == {n: origin for n, origin in expected.items() if n not in largest} | (
        {"d": "single operator"} if "bc" in offered else {}
    )
