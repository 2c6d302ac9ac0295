"""Post-dominators and paths against their definitions."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given, settings

from collage_core.errors import Refusal
from collage_core.ir import Graph, Node, Operator, TensorType, Value, ValueKind
from collage_core.rules import check_path, immediate_postdominators, nodes_between

TYPE = TensorType("float32", (2,))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Up to nine operators of one or two inputs and one or two outputs, ids in no order."""
    values, nodes = ["a"], []
    ids = draw(st.permutations(range(20)))
    for i in range(draw(st.integers(1, 9))):
        inputs = tuple(draw(st.lists(st.sampled_from(values[-5:]), min_size=1, max_size=2)))
        made = tuple(f"v{i}_{k}" for k in range(draw(st.integers(1, 2))))
        nodes.append(Node(ids[i], f"n{i}", "Op", inputs, made))
        values += made
    outputs = draw(st.lists(st.sampled_from(values[1:]), max_size=3, unique=True))
    known = {v: Value(v, TYPE, ValueKind.INPUT if v == "a" else ValueKind.INTERMEDIATE) for v in values}
    return Graph("g", nodes, known, ["a"], outputs, {}, {"": 21})


def paths_to_exit(graph: Graph, node: Node) -> list[list[int]]:
    """All ways from a node, itself included, to the exit."""
    readers = [n for n in graph.nodes if set(node.outputs) & set(n.inputs)]
    ways = [[node.id, *rest] for r in readers for rest in paths_to_exit(graph, r)]
    if not readers or set(node.outputs) & set(graph.outputs):
        ways.append([node.id])
    return ways


@settings(max_examples=300, deadline=None)
@given(graphs())
def test_immediate_postdominators(graph: Graph) -> None:
    found = immediate_postdominators(graph)
    assert list(found) == [n.id for n in reversed(graph.nodes)]
    for node in graph.nodes:
        ways = paths_to_exit(graph, node)
        common = set.intersection(*(set(w[1:]) for w in ways))
        nearest = [i for i in ways[0][1:] if i in common]
        assert found[node.id] == (nearest[0] if nearest else None)


@settings(max_examples=300, deadline=None)
@given(graphs(), st.data())
def test_nodes_between(graph: Graph, data: st.DataObject) -> None:
    src, sink = (Operator(graph, data.draw(st.sampled_from(graph.nodes))) for _ in range(2))
    ways = [w[: w.index(sink.node.id)] for w in paths_to_exit(graph, src.node) if sink.node.id in w]
    expected = {i for w in ways for i in w[1:]}
    between = nodes_between(src, sink)
    assert {n.id for n in between} == expected
    assert [n for n in graph.nodes if n in between] == between
    seen: list[int] = []

    def checker(op: Operator) -> bool:
        seen.append(op.node.id)
        return True

    assert check_path(src, sink, checker) is True
    assert set(seen) == {*expected, sink.node.id}
    refusal = check_path(src, sink, lambda op: False)
    assert isinstance(refusal, Refusal)
    assert refusal.node == (between[0] if between else sink.node).name
