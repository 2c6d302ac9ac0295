"""The matcher against brute force (tests/support/pattern_oracle.py), on generated graphs and patterns.

Patterns are read off a graph and then cut, joined, altered and widened, so that many of them match and many
nearly do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, event, given, settings
from pattern_oracle import COMMUTATIVE, DEFAULTS, Layout, brute_force, is_legal, reaches

from collage_core.ir import Graph, Node, Operator, TensorType, Value, ValueKind
from collage_core.patterns import (
    Match,
    Pattern,
    dominates,
    find_matches,
    is_constant,
    is_op,
    is_tuple_get_item,
    match,
    outputs,
    wildcard,
)
from collage_core.patterns.matcher import Matcher
from collage_core.patterns.pattern import Alternatives, Dominator, OpPattern, OutputOf

UNARY, BINARY = ("Relu", "Neg"), ("Add", "Sub")
TYPES = (TensorType("float32", (2,)), TensorType("float32", (3,)), TensorType("float16", (2,)))
CONSTANTS = ("k0", "k1")
RANDOM = st.randoms(use_true_random=True)
"""Hypothesis gives the seed; what is made from it would be thin if every choice were Hypothesis's own."""

THOROUGH = settings(max_examples=2000, deadline=None)


def make_graph(random: Random, max_nodes: int = 7) -> Graph:
    """A few operators that read values before them: constants, absent optional inputs, two outputs, results
    that are returned as well as read. Types are drawn at random, for constraints to tell apart.
    """
    values = ["a", "b", *CONSTANTS]
    nodes: list[Node] = []

    def some() -> str:
        unread = [v for v in values[4:] if all(v not in n.inputs for n in nodes)]
        recent = random.choice((unread or values, values[-3:], values))
        return random.choice(recent)

    for i in range(random.randint(1, max_nodes)):
        op = random.choice([*UNARY, *UNARY, *BINARY, *BINARY, "Softmax", "Split", "Split", "Clip", "Sum"])
        attributes: dict[str, int] = {}
        made: tuple[str, ...] = (f"v{i}",)
        inputs: tuple[str, ...] = (some(),)
        match op:
            case "Add" | "Sub":
                inputs = (some(), some())
            case "Sum":
                inputs = tuple(some() for _ in range(random.randint(1, 3)))
            case "Clip":
                bounds = [random.choice(["", *CONSTANTS]) for _ in range(random.randint(0, 2))]
                inputs = (some(), *bounds)
            case "Softmax":
                attributes = {"axis": 0} if random.choice((True, False)) else {}
            case "Split":
                made = (f"v{i}", f"u{i}")
        nodes.append(Node(i, f"n{i}", op, inputs, made, attributes))
        values += made
    read = {v for n in nodes for v in n.inputs}
    returned = [v for v in values[4:] if v not in read or random.randint(0, 7) == 0]
    known = {v: Value(v, random.choice(TYPES), _kind(v)) for v in values}
    return Graph("g", nodes, known, ["a", "b"], returned, dict.fromkeys(CONSTANTS, np.zeros(2)), {"": 21})


def _kind(value: str) -> ValueKind:
    if value in CONSTANTS:
        return ValueKind.CONSTANT
    return ValueKind.INPUT if value in "ab" else ValueKind.INTERMEDIATE


@dataclass
class Author:
    """Writes patterns that nearly describe a part of `graph`."""

    random: Random
    graph: Graph
    may_dominate: bool = True
    may_choose: bool = True
    by_value: dict[str, Pattern] = field(default_factory=dict)
    by_node: dict[int, Pattern] = field(default_factory=dict)

    def one_in(self, n: int) -> bool:
        return self.random.randint(1, n) == 1

    def at(self, value: str, depth: int) -> Pattern:
        """A pattern for a value; mostly the one that stands for it already, if there is one."""
        if value in self.by_value and not self.one_in(4):
            return self.by_value[value]
        producer = self.graph.producer(value)
        made: Pattern
        if self.graph.is_constant(value) and not self.one_in(3):
            made = self.constrained(is_constant(), None, value)
        elif producer is None or depth == 0 or self.one_in(8):
            made = self.constrained(is_constant() if self.one_in(8) else wildcard(), producer, value)
        else:
            made = self.output(producer, value, depth)
        self.by_value[value] = made
        return made

    def output(self, node: Node, value: str, depth: int) -> Pattern:
        operator = self.operator(node, depth)
        if len(node.outputs) == 1 and not self.one_in(10):
            return operator
        index = node.outputs.index(value)
        if index == 0 and self.one_in(4):
            return operator
        wrong = self.random.randint(0, 1) if self.one_in(8) else index
        made = is_tuple_get_item(operator, None if self.one_in(3) else wrong)
        return self.constrained(made, node, value)

    def operator(self, node: Node, depth: int) -> Pattern:
        if node.id in self.by_node and not self.one_in(6):
            return self.by_node[node.id]
        made: Pattern
        if self.may_dominate and depth > 1 and self.one_in(4):
            made = self.dominated(node, depth)
        else:
            made = self.constrained(self.call(node, depth), node, node.outputs[0])
        if self.may_choose and self.one_in(6):
            other = self.call(self.random.choice(self.graph.nodes), min(depth - 1, 1))
            made = other | made if self.random.choice((True, False)) else made | other
            made = self.constrained(made, node, node.outputs[0])
        elif self.may_choose and self.one_in(6):
            extra = self.random.choice(UNARY)
            made = made.optional(lambda x: is_op(extra)(x))
        self.by_node[node.id] = made
        return made

    def call(self, node: Node, depth: int) -> OpPattern:
        name = node.op_type if not self.one_in(12) else self.random.choice(UNARY + BINARY)
        op = is_op(name)
        if self.one_in(8):
            return op
        args: list[Pattern | None] = []
        for i, v in enumerate(node.inputs):
            absent = not v or (node.op_type == "Clip" and i > 0 and self.one_in(3))
            args.append(None if absent and not self.one_in(12) else self.at(v or "k0", depth - 1))
        if node.op_type in COMMUTATIVE:
            args = list(self.random.sample(args, len(args)))
        elif node.op_type == "Clip":
            args += [None] * self.random.randint(0, 3 - len(args))
            while args[-1] is None and self.random.choice((True, False)):
                args.pop()
        if self.one_in(12):
            args = args[:-1] if self.random.choice((True, False)) and len(args) > 1 else [*args, wildcard()]
        return op(*args)

    def dominated(self, end: Node, depth: int) -> Pattern:
        above = [n for n in self.graph.nodes if reaches(self.graph, n, end)]
        start = self.random.choice(above) if above else self.random.choice(self.graph.nodes)
        names = {n.op_type for n in above if n is not start and reaches(self.graph, start, n)}
        if self.one_in(5):
            names = set(self.random.sample(UNARY + BINARY, self.random.randint(1, 2)))
        path: Pattern | None = None
        for name in sorted(names) if not self.one_in(4) else ():
            path = is_op(name) if path is None else path | is_op(name)
        shallow = 1 if self.one_in(3) else 0
        last: Pattern = is_op(end.op_type)(*(wildcard() for _ in end.inputs if _))
        if self.one_in(3):
            last = self.call(end, shallow)
        first = self.operator(start, 1)
        return dominates(first, path, last)

    def constrained(self, pattern: Pattern, node: Node | None, value: str) -> Pattern:
        if not self.one_in(5):
            return pattern
        type = self.graph.type_of(value) if not self.one_in(4) else self.random.choice(TYPES)
        match self.random.randint(0, 2):
            case 0:
                return pattern.has_shape(type.shape if self.random.choice((True, False)) else (None,))
            case 1:
                return pattern.has_dtype(type.dtype)
            case _:
                wanted = self.random.choice([-1, 0])
                stated = {} if node is None else {**DEFAULTS.get(node.op_type, {}), **node.attributes}
                return pattern.has_attr({"axis": stated.get("axis", wanted)}) if stated else pattern

    def pattern(self) -> Pattern:
        node = self.random.choice(self.graph.nodes)
        if len(node.outputs) > 1 and self.random.choice((True, False)):
            return self.output(node, self.random.choice(node.outputs), 3)
        return self.operator(node, 3)


def assume_small(pattern: Pattern) -> None:
    parts = list(pattern.walk())
    assume(sum(isinstance(p, OpPattern) for p in parts) <= 7)
    assume(sum(isinstance(p, Alternatives | OutputOf) for p in parts) <= 4)


@THOROUGH
@given(RANDOM)
def test_operators_agree_with_brute_force(random: Random) -> None:
    """Operators, wildcards, constants, constraints, alternatives, options, outputs of operators, inputs in
    any order and inputs left out.
    """
    graph = make_graph(random)
    compare(graph, Author(random, graph, may_dominate=False).pattern())


@THOROUGH
@given(RANDOM)
def test_dominators_agree_with_brute_force(random: Random) -> None:
    """The same with dominated parts among them, at the root and inside."""
    graph = make_graph(random)
    author = Author(random, graph)
    pattern = author.pattern()
    if not any(isinstance(p, Dominator) for p in pattern.walk()):
        pattern = author.dominated(random.choice(graph.nodes), 3)
    compare(graph, pattern)


@THOROUGH
@given(RANDOM)
def test_several_outputs_agree_with_brute_force(random: Random) -> None:
    graph = make_graph(random)
    parts = [Author(random, graph, may_dominate=False, may_choose=False).pattern()]
    for _ in range(random.randint(1, 2)):
        shared = random.choice([q for p in parts for q in p.walk()])
        match random.randint(0, 4):
            case 0 if isinstance(shared, OpPattern):
                parts.append(is_tuple_get_item(shared, random.choice([None, 0, 1])))
            case 1 if isinstance(shared, OpPattern | OutputOf):
                parts.append(shared)
            case 2:
                parts.append(is_op(random.choice(BINARY))(wildcard(), shared))
            case 3 if isinstance(shared, OpPattern | OutputOf):
                parts.append(shared.optional(lambda x: is_op("Relu")(x)))
            case _:
                parts.append(is_op(random.choice(UNARY))(shared))
    compare(graph, outputs(*parts))


def compare(graph: Graph, pattern: Pattern) -> None:
    assume_small(pattern)
    expected = brute_force(graph, pattern)
    sets = {e.nodes for e in expected}
    event(f"matches: {min(len(sets), 3)}")
    event(f"largest match: {min(max(map(len, sets), default=0), 4)}")
    assert {frozenset(m.subgraph.node_set) for m in find_matches(graph, pattern)} == sets
    for node in graph.nodes:
        here = [e for e in expected if e.root == node.id]
        found = list(Matcher(graph, pattern).matches(node))
        assert {frozenset(m.subgraph.node_set) for m in found} == {e.nodes for e in here}
        for m in found:
            check(graph, m, here)
        result = match(pattern, graph, node)
        if isinstance(result, Match):
            assert frozenset(result.subgraph.node_set) == frozenset(found[0].subgraph.node_set)
        else:
            assert not here
            assert result.reason != "nothing was tried"
            assert result.node in {n.name for n in graph.nodes}


def check(graph: Graph, found: Match, expected: Sequence[Layout]) -> None:
    """What the parts are said to stand for is one of the ways in which they may; nothing leaks."""
    assert found.subgraph.is_convex
    assert is_legal(graph, frozenset(found.subgraph.node_set), frozenset(found.subgraph.outputs))
    said = {
        id(p): found.bindings[p].node.id if isinstance(found.bindings[p], Operator) else found.bindings[p]  # type: ignore[union-attr]  # told apart
        for p in found.bindings
    }
    assert any(
        e.nodes == frozenset(found.subgraph.node_set)
        and all(said.get(part) == target for part, target in e.stands_for.items())
        for e in expected
    )
    assert found.bindings[found.pattern] == found.root


@pytest.mark.parametrize("construct", [Alternatives, Dominator, OutputOf])
def test_generated_patterns_match_with_every_construct(construct: type[Pattern]) -> None:
    """What is generated is worth comparing: some of it matches, with more than one operator."""
    seen = 0
    for seed in range(2000):
        random = Random(seed)
        graph = make_graph(random)
        pattern = Author(random, graph).pattern()
        if any(isinstance(p, construct) for p in pattern.walk()):
            seen += any(len(m.subgraph.node_set) > 1 for m in find_matches(graph, pattern))
    assert seen >= 10
