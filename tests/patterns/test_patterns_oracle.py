"""The matcher against brute force: all ways of laying a pattern over a small graph, tried one by one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import hypothesis.strategies as st
from hypothesis import event, given, settings

from collage_core.ir import Graph, Node, TensorType, Value, ValueKind
from collage_core.patterns import Match, Pattern, find_matches, is_op, match, outputs, wildcard
from collage_core.patterns.pattern import Alternatives, OpPattern, Outputs, Wildcard

UNARY, BINARY = ("Relu", "Neg"), ("Add", "Sub")
TYPE = TensorType("float32", (2,))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Up to seven operators that read values before them; some values are read and outputs as well."""
    values = ["a", "b"]
    nodes = []
    for i in range(draw(st.integers(1, 7))):
        op = draw(st.sampled_from(UNARY + BINARY))
        arity = 1 if op in UNARY else 2
        inputs = tuple(draw(st.sampled_from(values[-4:])) for _ in range(arity))
        nodes.append(Node(i, f"n{i}", op, inputs, (f"v{i}",)))
        values.append(f"v{i}")
    read = {v for n in nodes for v in n.inputs}
    outputs = [v for v in values[2:] if v not in read or draw(st.integers(0, 5)) == 0]
    known = {v: Value(v, TYPE, ValueKind.INPUT if v in "ab" else ValueKind.INTERMEDIATE) for v in values}
    return Graph("g", nodes, known, ["a", "b"], outputs, {}, {"": 21})


@st.composite
def patterns_of(draw: st.DrawFn, graph: Graph) -> Pattern:
    """A pattern read off the graph from some root up, then cut, joined, altered or widened here and there."""
    made: dict[str, Pattern] = {}

    def at(value: str, depth: int) -> Pattern:
        if value in made and draw(st.integers(0, 3)):
            return made[value]
        producer = graph.producer(value)
        if producer is None or depth == 0 or draw(st.integers(0, 4)) == 0:
            made[value] = wildcard()
        else:
            made[value] = operator(producer, depth)
        return made[value]

    def operator(node: Node, depth: int) -> Pattern:
        same = UNARY if node.op_type in UNARY else BINARY
        op = node.op_type if draw(st.integers(0, 9)) else draw(st.sampled_from(same))
        args = [at(v, depth - 1) for v in node.inputs]
        pattern: Pattern = is_op(op)(*(reversed(args) if draw(st.booleans()) else args))
        match draw(st.integers(0, 9)):
            case 0:
                pattern = is_op(same[0])(*args) | pattern
            case 1:
                pattern = args[0].optional(lambda x: is_op("Neg")(x)) if depth < 3 else pattern
            case 2:
                pattern = pattern.optional(lambda x: is_op("Relu")(x))
        return pattern

    return operator(draw(st.sampled_from(graph.nodes)), 3)


def plain(pattern: Pattern, choice: dict[int, int]) -> Pattern:
    while isinstance(pattern, Alternatives):
        pattern = pattern.choices[choice[id(pattern)]]
    return pattern


def parts(pattern: Pattern, choice: dict[int, int]) -> list[OpPattern]:
    """The operator patterns in use once every alternative is decided."""
    found: dict[int, OpPattern] = {}

    def visit(p: Pattern) -> None:
        p = plain(p, choice)
        if isinstance(p, Outputs):
            for part in p.fields:
                visit(part)
        elif isinstance(p, OpPattern) and id(p) not in found:
            found[id(p)] = p
            for arg in p.args or ():
                assert arg is not None
                visit(arg)

    visit(pattern)
    return list(found.values())


def brute_force(graph: Graph, pattern: Pattern) -> set[tuple[int, frozenset[int]]]:
    """(root, node set) of all matches."""
    alternatives = [p for p in pattern.walk() if isinstance(p, Alternatives)]
    result = set()
    for picks in itertools.product(*(range(len(a.choices)) for a in alternatives)):
        choice = {id(a): k for a, k in zip(alternatives, picks, strict=True)}
        ops = parts(pattern, choice)
        roots = [plain(r, choice) for r in (pattern.fields if isinstance(pattern, Outputs) else [pattern])]
        if not all(isinstance(r, OpPattern) for r in roots):
            continue
        for nodes in itertools.permutations(graph.nodes, len(ops)):
            place = {id(p): n for p, n in zip(ops, nodes, strict=True)}
            if all(p.name == n.op_type for p, n in zip(ops, nodes, strict=True)) and any(
                layouts(ops, place, choice)
            ):
                chosen = frozenset(n.id for n in nodes)
                ends = [place[id(r)].id for r in roots]
                if legal(graph, chosen, ends):
                    result.add((ends[0], chosen))
    return result


def layouts(ops: list[OpPattern], place: dict[int, Node], choice: dict[int, int]) -> Iterator[bool]:
    """For every order of the commutative operators' inputs, whether all edges agree."""
    inside = {n.outputs[0] for n in place.values()}
    orders = [
        [n.inputs, n.inputs[::-1]] if n.op_type == "Add" else [n.inputs] for n in (place[id(p)] for p in ops)
    ]
    for inputs in itertools.product(*orders):
        wild: dict[int, str] = {}
        good = True
        for p, values in zip(ops, inputs, strict=True):
            for arg, value in zip(p.args or (), values, strict=True):
                assert arg is not None
                arg = plain(arg, choice)
                if isinstance(arg, Wildcard):
                    good &= value not in inside and wild.setdefault(id(arg), value) == value
                else:
                    good &= place[id(arg)].outputs[0] == value
        yield good


def legal(graph: Graph, chosen: frozenset[int], ends: list[int]) -> bool:
    for n in graph.nodes:
        if n.id in chosen and n.id not in ends:
            value = n.outputs[0]
            readers = {m.id for m in graph.nodes if value in m.inputs}
            if value in graph.outputs or not readers <= chosen:
                return False
    tainted: set[int] = set()
    for n in graph.nodes:
        before = {m.id for m in graph.nodes if m.outputs[0] in n.inputs}
        if n.id in chosen:
            if before & tainted:
                return False
        elif before & (chosen | tainted):
            tainted.add(n.id)
    return True


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_agrees_with_brute_force(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    compare(graph, data.draw(patterns_of(graph)))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_several_outputs_agree_with_brute_force(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    first = data.draw(patterns_of(graph))
    while isinstance(first, Alternatives):
        first = first.choices[0]
    if any(isinstance(p, Alternatives) for p in first.walk()):
        return
    shared = data.draw(st.sampled_from(list(first.walk())))
    second = is_op(data.draw(st.sampled_from(UNARY)))(shared) if data.draw(st.booleans()) else shared
    if isinstance(second, Wildcard):
        second = is_op("Add")(wildcard(), shared)
    compare(graph, outputs(first, second))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_dominators_agree_with_brute_force(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    parent, end = (data.draw(st.sampled_from(graph.nodes)).op_type for _ in range(2))
    path = data.draw(st.sets(st.sampled_from(UNARY + BINARY), min_size=1))
    along: Pattern = is_op(sorted(path)[0])
    for op in sorted(path)[1:]:
        along = along | is_op(op)
    pattern = is_op(end).dominates(is_op(parent), along)
    expected = set()
    for a, e in itertools.permutations(graph.nodes, 2):
        between = [n for n in graph.nodes if reaches(graph, a, n) and reaches(graph, n, e)]
        chosen = frozenset({a.id, e.id, *(n.id for n in between)})
        kinds = {n.op_type for n in between}
        fits = (a.op_type, e.op_type) == (parent, end) and kinds <= path and reaches(graph, a, e)
        if fits and legal(graph, chosen, [e.id]):
            expected.add(chosen)
    event(f"matches: {min(len(expected), 2)}")
    assert {frozenset(m.subgraph.node_set) for m in find_matches(graph, pattern)} == expected


def reaches(graph: Graph, above: Node, below: Node) -> bool:
    readers = [n for n in graph.nodes if above.outputs[0] in n.inputs]
    return any(n is below or reaches(graph, n, below) for n in readers)


def compare(graph: Graph, pattern: Pattern) -> None:
    expected = brute_force(graph, pattern)
    event(f"matches: {min(len(expected), 3)}")
    assert {frozenset(m.subgraph.node_set) for m in find_matches(graph, pattern)} == {
        nodes for _, nodes in expected
    }
    for node in graph.nodes:
        found = match(pattern, graph, node)
        here = {nodes for root, nodes in expected if root == node.id}
        if isinstance(found, Match):
            assert frozenset(found.subgraph.node_set) in here
            assert found.subgraph.is_convex
            assert not found.subgraph.leaks
        else:
            assert not here
            assert found.reason
            assert found.node
