"""The generator and the composition of rules against their definitions, on generated graphs and rules.

By definition: *d* post-dominates *s* if no way leads from *s* to an exit without it. A group is everything on
the ways from an operator to one of its post-dominators, if the rule agrees to each of them on the way there
and takes every operator inside.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

import hypothesis.strategies as st
from hypothesis import event, given, settings
from pattern_oracle import is_legal, reaches

from collage_core.errors import Refusal
from collage_core.ir import Graph, Node, Operator, OpKind, Subgraph, TensorType, Value, ValueKind
from collage_core.rules import (
    PatternRule,
    check_path,
    for_backend,
    generate,
    kBroadcast,
    kFusable,
    kReduction,
    restrict,
    restrict_kinds,
    restrict_size,
    union,
)

KINDS = {
    "Relu": OpKind.ELEMWISE,
    "Add": OpKind.ELEMWISE,
    "Mul": OpKind.BROADCAST,
    "Transpose": OpKind.INJECTIVE,
    "ReduceSum": OpKind.REDUCTION,
    "Softmax": OpKind.REDUCTION,
    "MatMul": OpKind.OUT_ELEMWISE_FUSABLE,
    "Split": OpKind.TUPLE,
    "Loop": OpKind.OPAQUE,
}
SQUARE, ROW = TensorType("float32", (2, 2)), TensorType("float32", (2,))
RANDOM = st.randoms(use_true_random=True)
THOROUGH = settings(max_examples=600, deadline=None)

Group = frozenset[int]
Groups = set[Group]


def make_graph(random: Random) -> Graph:
    """Up to twelve operators of every kind, ids in no order, some with two outputs, some results returned."""
    values, nodes = ["a", "row"], list[Node]()
    ids = random.sample(range(30), 12)
    for i in range(random.randint(2, 12)):
        op = random.choice([*KINDS, "Relu", "Relu", "Add", "Add"])
        unread = [v for v in values[2:] if all(v not in n.inputs for n in nodes)]
        reads = [
            random.choice(
                random.choice((unread or values[:1], [v for v in values[-4:] if v != "row"] or ["a"]))
            )
            for _ in range(2 if op in ("Add", "MatMul") else 1)
        ]
        if op == "Mul":
            reads.append("row")
        made = (f"v{i}", f"u{i}") if op == "Split" else (f"v{i}",)
        nodes.append(Node(ids[i], f"n{i}", op, tuple(reads), made))
        values += made
    outputs = [v for v in values[2:] if random.random() < 0.1]
    known = {
        v: Value(v, ROW if v == "row" else SQUARE, ValueKind.INTERMEDIATE if i > 1 else ValueKind.INPUT)
        for i, v in enumerate(values)
    }
    return Graph("g", nodes, known, ["a", "row"], outputs, {}, {"": 21})


def make_rule(random: Random, backend: str = "b") -> PatternRule:
    """A rule with an answer to every question, the same each time."""
    salt = random.getrandbits(32)
    generous = random.choice((0.5, 0.8, 0.95))

    def says(*question: object) -> bool:
        return Random(f"{salt} {question}").random() < generous

    def fusion_rule(cur_type: OpKind, src: Operator, sink: Operator) -> bool | Refusal:
        return says(cur_type.name, src.node.id, sink.node.id) or Refusal("no")

    return PatternRule(
        backend,
        lambda op: says(op.node.id),
        fusion_rule,
        name=str(salt),
        max_nodes=random.choice((None, None, 1, 3, 5)),
        check=random.choice((None, lambda s: None if says(sorted(s.node_set)) else Refusal("not these"))),
    )


def exits(graph: Graph, node: Node) -> bool:
    read = any(set(node.outputs) & set(n.inputs) for n in graph.nodes)
    return not read or bool(set(node.outputs) & set(graph.outputs))


def escapes(graph: Graph, start: Node, without: Node) -> bool:
    """Whether some way leads from `start` to an exit and not through `without`."""
    if start is without:
        return False
    readers = [n for n in graph.nodes if set(start.outputs) & set(n.inputs)]
    return exits(graph, start) or any(escapes(graph, r, without) for r in readers)


def agrees(verdict: bool | Refusal) -> bool:
    return not isinstance(verdict, Refusal) and verdict


def definition(graph: Graph, rule: PatternRule, max_nodes: int = 64) -> Groups:
    found: Groups = set()
    limit = min(max_nodes, rule.max_nodes or max_nodes)
    operators = {n.id: Operator(graph, n) for n in graph.nodes}
    for start in graph.nodes:
        below = [n for n in graph.nodes if n is not start and not escapes(graph, start, n)]
        below.sort(key=lambda n: sum(reaches(graph, m, n) for m in below))
        group, end = {start.id}, start
        for sink in [start, *below]:
            if sink is not start:
                kind = max(KINDS[graph.node(i).op_type] for i in group)
                if not agrees(rule.fusion_rule(kind, operators[end.id], operators[sink.id])):
                    break
                group |= {sink.id}
                group |= {n.id for n in graph.nodes if reaches(graph, start, n) and reaches(graph, n, sink)}
                end = sink
            if len(group) > limit or not all(agrees(rule.valid_op(operators[i])) for i in group):
                break
            if rule.check is None or rule.check(Subgraph(graph, group)) is None:
                found.add(frozenset(group))
    return found


def generated(graph: Graph, rules: PatternRule | Iterable[PatternRule]) -> Groups:
    return {frozenset(g) for g in generate(graph, rules).groups}


@THOROUGH
@given(RANDOM)
def test_groups_are_those_of_the_definition(random: Random) -> None:
    graph, rule = make_graph(random), make_rule(random)
    limit = random.choice((1, 2, 4, 64))
    result = generate(graph, rule, max_nodes=limit)
    assert {frozenset(g) for g in result.groups} == definition(graph, rule, limit)
    event(f"largest group: {min(max(map(len, result.groups), default=0), 6)}")
    for group, provenance in result.groups.items():
        assert is_legal(graph, frozenset(group), frozenset(provenance.end.outputs))
        assert provenance.start.id in group
        assert provenance.end.id in group
        assert provenance.kind == max(KINDS[graph.node(i).op_type] for i in group)
    assert all(r.reason and r.node in {n.name for n in graph.nodes} for r in result.refusals)


@THOROUGH
@given(RANDOM)
def test_a_value_read_outside_is_never_swallowed(random: Random) -> None:
    """Whatever the rules allow: outside a group only its last operator's results are known."""
    graph = make_graph(random)
    for group in generate(graph, PatternRule("b", lambda op: True, lambda *_: True)).groups:
        subgraph = Subgraph(graph, group)
        last = subgraph.nodes[-1]
        for node in subgraph.nodes[:-1]:
            for value in node.outputs:
                assert value not in graph.outputs
                assert all(r.id in group for r in graph.nodes if value in r.inputs)
        assert set(subgraph.outputs) <= set(last.outputs)


def fusions_into_reductions(graph: Graph) -> int:
    """How many tails of a chain of elementwise operators that ends in a reduction there are; each must have
    been generated.
    """

    def fusion_rule(cur_type: OpKind, src: Operator, sink: Operator) -> bool | Refusal:
        if cur_type > kBroadcast:
            return False
        return check_path(src, sink, lambda op: op.kind <= kReduction)

    found = generated(graph, PatternRule("b", lambda op: True, fusion_rule))
    seen = 0
    for end in graph.nodes:
        if KINDS[end.op_type] != kReduction:
            continue
        tail, node = {end.id}, end
        while True:
            before = [n for n in graph.nodes if set(n.outputs) & set(node.inputs)]
            only = [n for n in before if not exits(graph, n) and not escapes(graph, n, node)]
            if len(before) != 1 or len(only) != 1 or KINDS[only[0].op_type] > kBroadcast:
                break
            if {n.id for n in graph.nodes if set(only[0].outputs) & set(n.inputs)} != {node.id}:
                break
            node = only[0]
            tail.add(node.id)
            seen += 1
            assert frozenset(tail) in found
    return seen


@THOROUGH
@given(RANDOM)
def test_elementwise_into_reduction_is_generated(random: Random) -> None:
    fusions_into_reductions(make_graph(random))


def test_there_are_fusions_into_reductions() -> None:
    assert sum(fusions_into_reductions(make_graph(Random(seed))) for seed in range(200)) >= 20


@dataclass(frozen=True)
class Composed:
    """Rules made of rules, and the groups that they should find."""

    rules: tuple[PatternRule, ...]
    groups: Groups


def compose(random: Random, graph: Graph, depth: int) -> Composed:
    if depth == 0 or random.random() < 0.2:
        rule = make_rule(random)
        return Composed((rule,), definition(graph, rule))
    inner = compose(random, graph, depth - 1)
    match random.randrange(6):
        case 0:
            other = compose(random, graph, depth - 1)
            return Composed(union(inner.rules, other.rules), inner.groups | other.groups)
        case 1:
            other = compose(random, graph, depth - 1)
            return Composed(union(*inner.rules, *other.rules, inner.rules), inner.groups | other.groups)
        case 2:
            kinds = random.sample(list(OpKind), random.randint(1, 4))
            kept = {g for g in inner.groups if max(KINDS[graph.node(i).op_type] for i in g) in kinds}
            return Composed(tuple(restrict_kinds(r, kinds) for r in inner.rules), kept)
        case 3:
            most, least = random.choice((None, 2, 3, 5)), random.choice((1, 1, 2, 3))
            kept = {g for g in inner.groups if least <= len(g) <= (most or 64)}
            return Composed(
                tuple(restrict_size(r, max_nodes=most, min_nodes=least) for r in inner.rules), kept
            )
        case 4:
            salt = random.getrandbits(32)

            def accepts(group: Iterable[int]) -> bool:
                return Random(f"{salt} {sorted(group)}").random() < 0.7

            def check(subgraph: Subgraph) -> Refusal | None:
                return None if accepts(subgraph.node_set) else Refusal("not these")

            return Composed(
                tuple(restrict(r, check) for r in inner.rules), set(filter(accepts, inner.groups))
            )
        case _:
            others = [make_rule(random, "other") for _ in range(2)]
            mixed = random.sample([*inner.rules, *others], len(inner.rules) + 2)
            return Composed(for_backend(mixed, random.choice(("b", "B"))), inner.groups)


@THOROUGH
@given(RANDOM)
def test_composed_rules_find_what_their_parts_say(random: Random) -> None:
    graph = make_graph(random)
    composed = compose(random, graph, 4)
    assert generated(graph, composed.rules) == composed.groups
    assert len(set(composed.rules)) == len(composed.rules)
    event(f"groups: {min(len(composed.groups), 4)}")


def test_kinds_are_those_of_the_operators() -> None:
    """The table above is what the graph says."""
    seen = set()
    for seed in range(200):
        graph = make_graph(Random(seed))
        for n in graph.nodes:
            assert Operator(graph, n).kind == KINDS[n.op_type]
            seen.add(n.op_type)
    assert seen == set(KINDS)
    assert kFusable == KINDS["MatMul"]
