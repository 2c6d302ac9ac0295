"""Patterns by definition: every way of laying a pattern over a small graph is tried, none is built up.

A *layout* decides which alternative is taken, gives every operator of the pattern an operator of the graph
of its own, and every commutative operator an order of its inputs. It is a match if everything that the
pattern says then holds. Nothing here knows how the matcher works; only the patterns' own fields are read.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from collage_core.ir import Graph, Node
from collage_core.patterns import Pattern
from collage_core.patterns.constraints import Constraint, HasAttr, HasDtype, HasShape
from collage_core.patterns.pattern import (
    Alternatives,
    ConstantPattern,
    Dominator,
    OpPattern,
    OutputOf,
    Outputs,
    Wildcard,
)

__all__ = ["COMMUTATIVE", "DEFAULTS", "OPTIONAL_INPUTS", "Layout", "brute_force", "is_legal", "reaches"]

COMMUTATIVE = ("Add", "Sum")
OPTIONAL_INPUTS = {"Clip": (1, 2)}
DEFAULTS = {"Softmax": {"axis": -1}, "Split": {"axis": 0}}
"""What ONNX says of the operators that the tests use."""


@dataclass(frozen=True)
class Layout:
    """root: id of the (first) root. nodes: ids of all operators in the match. stands_for: id(pattern) -> the
    operator's id, or the value's name, for the operators, wildcards and constants of the pattern. outside:
    values that come from outside. declared: those that may be read there.
    """

    root: int
    nodes: frozenset[int]
    stands_for: Mapping[int, int | str]
    outside: frozenset[str]
    declared: frozenset[str]


@dataclass
class _Try:
    """One choice of alternatives and outputs, and of operators for the pattern's."""

    graph: Graph
    choice: Mapping[int, int]
    place: Mapping[int, Node]
    values: dict[int, str] = field(default_factory=dict)
    """id(wildcard or constant) -> value."""

    def node(self, pattern: Pattern) -> Node | None:
        match pattern:
            case OpPattern():
                return self.place[id(pattern)]
            case Alternatives():
                return self.node(self.taken(pattern))
            case OutputOf():
                return self.node(pattern.operator)
            case Dominator():
                return self.node(pattern.end)
        return None

    def value(self, pattern: Pattern) -> str | None:
        """None where nothing has been read as it yet, "" for an output that is not there."""
        match pattern:
            case OpPattern():
                return self.place[id(pattern)].outputs[0]
            case Alternatives():
                return self.value(self.taken(pattern))
            case OutputOf():
                node = self.node(pattern.operator)
                assert node is not None
                index = self.choice[id(pattern)]
                return node.outputs[index] if index < len(node.outputs) else ""
            case Dominator():
                return self.value(pattern.end)
        return self.values.get(id(pattern))

    def taken(self, pattern: Alternatives) -> Pattern:
        return pattern.choices[self.choice[id(pattern)]]


def brute_force(graph: Graph, pattern: Pattern) -> list[Layout]:
    """All matches of `pattern` in `graph`."""
    return [
        found
        for found in _layouts(graph, pattern, graph.nodes, legal=True)
        if is_legal(graph, found.nodes, found.declared)
    ]


def _layouts(graph: Graph, pattern: Pattern, roots: tuple[Node, ...], legal: bool) -> Iterator[Layout]:
    """legal: wildcards stand for values from outside, but for those in which a dominated part ends."""
    open_questions = [p for p in pattern.walk() if isinstance(p, Alternatives | OutputOf)]
    answers = [
        range(len(p.choices)) if isinstance(p, Alternatives) else range(2) if p.index is None else (p.index,)
        for p in open_questions
        if isinstance(p, Alternatives | OutputOf)
    ]
    for picks in itertools.product(*answers):
        choice = {id(p): k for p, k in zip(open_questions, picks, strict=True)}
        parts = _used(pattern, choice)
        ops = [p for p in parts if isinstance(p, OpPattern)]
        fitting = [[n for n in graph.nodes if _is_called(n, p.name)] for p in ops]
        for nodes in itertools.product(*fitting):
            if len(set(nodes)) == len(ops):
                place = {id(p): n for p, n in zip(ops, nodes, strict=True)}
                yield from _fits(_Try(graph, choice, place), pattern, parts, roots, legal)


def _is_called(node: Node, name: str) -> bool:
    return node.op_type.lower() == name.lower()


def _used(pattern: Pattern, choice: Mapping[int, int]) -> list[Pattern]:
    """The parts in use once every alternative is decided; what a path is made of is not among them."""
    found: dict[int, Pattern] = {}

    def visit(p: Pattern) -> None:
        if id(p) in found:
            return
        found[id(p)] = p
        match p:
            case Alternatives():
                visit(p.choices[choice[id(p)]])
            case Dominator():
                visit(p.parent)
                visit(p.end)
            case _:
                for c in p.children:
                    visit(c)

    visit(pattern)
    return list(found.values())


def _fits(
    attempt: _Try, pattern: Pattern, parts: list[Pattern], roots: tuple[Node, ...], legal: bool
) -> Iterator[Layout]:
    graph = attempt.graph
    ends = _roots(pattern, attempt)
    if not ends:
        return
    first = attempt.node(ends[0])
    if first not in roots or not _connected(graph, ends, attempt):
        return
    ops = [p for p in parts if isinstance(p, OpPattern) and p.args is not None]
    orders = [_orders(p, attempt.place[id(p)]) for p in ops]
    for inputs in itertools.product(*orders):
        attempt.values = {}
        if not all(_reads(attempt, p, values) for p, values in zip(ops, inputs, strict=True)):
            continue
        if not all(_holds(attempt, p) for p in parts):
            continue
        inside = {n.id for n in attempt.place.values()}
        between = _between(attempt, parts)
        if between is None:
            continue
        free = {id(w) for p in parts if isinstance(p, Dominator) for w in _used(p.end, attempt.choice)}
        held = {
            id(a)
            for p in parts
            if isinstance(p, OpPattern) and id(p) not in free
            for arg in p.args or ()
            if arg is not None
            for a in _plain_args(attempt, arg)
        }
        wild = {id(p) for p in parts if isinstance(p, Wildcard)} & held
        outside = frozenset(attempt.values[w] for w in wild)
        nodes = frozenset(inside | between)
        made_inside = {v for n in graph.nodes if n.id in nodes for v in n.outputs}
        if legal and outside & made_inside:
            continue
        stands_for: dict[int, int | str] = {i: n.id for i, n in attempt.place.items()}
        stands_for.update(attempt.values)
        assert first is not None
        yield Layout(first.id, nodes, stands_for, outside, frozenset(_declared(attempt, ends)))


def _roots(pattern: Pattern, attempt: _Try) -> list[Pattern]:
    """The patterns of the roots, alternatives decided; none if one of them is no operator."""
    while isinstance(pattern, Alternatives):
        pattern = attempt.taken(pattern)
    if isinstance(pattern, Outputs):
        parts = [_roots(f, attempt) for f in pattern.fields]
        return [r for p in parts for r in p] if all(parts) else []
    return [] if isinstance(pattern, Wildcard | ConstantPattern) else [pattern]


def _connected(graph: Graph, ends: list[Pattern], attempt: _Try) -> bool:
    """Whether every output shares a part with one before it."""
    known = {id(p) for p in _used(ends[0], attempt.choice)}
    for end in ends[1:]:
        used = {id(p) for p in _used(end, attempt.choice)}
        if not used & known:
            return False
        known |= used
    return True


def _declared(attempt: _Try, ends: list[Pattern]) -> Iterator[str]:
    for end in ends:
        if isinstance(end, OutputOf):
            value = attempt.value(end)
            assert value
            yield value
        else:
            node = attempt.node(end)
            assert node is not None
            yield from node.outputs


def _orders(pattern: OpPattern, node: Node) -> list[tuple[str, ...]]:
    """The node's inputs as the pattern's arguments may meet them; "" for what is absent."""
    args = pattern.args or ()
    if node.op_type in COMMUTATIVE:
        given = [a for a in args if a is not None]
        if tuple(given) != args[: len(given)] or len(given) != len(node.inputs):
            return []
        return [(*order, *([""] * (len(args) - len(given)))) for order in itertools.permutations(node.inputs)]
    optional = OPTIONAL_INPUTS.get(node.op_type, ())
    for i, value in enumerate(node.inputs):
        if value and i not in optional and (i >= len(args) or args[i] is None):
            return []
    return [(*node.inputs, *([""] * len(args)))[: len(args)]]


def _reads(attempt: _Try, pattern: OpPattern, values: tuple[str, ...]) -> bool:
    for arg, value in zip(pattern.args or (), values, strict=True):
        if arg is None:
            continue
        if not value:
            return False
        for leaf in _plain_args(attempt, arg):
            if isinstance(leaf, ConstantPattern) and value not in attempt.graph.constants:
                return False
            if attempt.values.setdefault(id(leaf), value) != value:
                return False
        if attempt.value(arg) != value:
            return False
    return True


def _plain_args(attempt: _Try, arg: Pattern) -> list[Pattern]:
    """The wildcard or constant that an argument comes down to, if it does."""
    while isinstance(arg, Alternatives):
        arg = attempt.taken(arg)
    return [arg] if isinstance(arg, Wildcard | ConstantPattern) else []


def _holds(attempt: _Try, pattern: Pattern) -> bool:
    """Whether the constraints of one part hold of what it stands for."""
    if isinstance(pattern, Outputs):
        return True
    value = attempt.value(pattern)
    if isinstance(pattern, OutputOf) and not value:
        return False
    if not pattern.constraints:
        return True
    assert value is not None
    node = attempt.node(pattern)
    plain = pattern
    while isinstance(plain, Alternatives):
        plain = attempt.taken(plain)
    if isinstance(plain, Wildcard) or isinstance(pattern, Alternatives):
        node = next((n for n in attempt.graph.nodes if value in n.outputs), None)
    return all(_constraint_holds(attempt.graph, c, node, value) for c in pattern.constraints)


def _constraint_holds(graph: Graph, constraint: Constraint, node: Node | None, value: str) -> bool:
    type = graph.values[value].type
    match constraint:
        case HasDtype():
            return type.dtype == constraint.dtype
        case HasShape():
            wanted = [a if w is None else w for w, a in zip(constraint.shape, type.shape, strict=False)]
            return len(constraint.shape) == len(type.shape) and wanted == list(type.shape)
        case HasAttr():
            stated = {} if node is None else {**DEFAULTS.get(node.op_type, {}), **node.attributes}
            return all(k in stated and stated[k] == v for k, v in constraint.attributes)


def _between(attempt: _Try, parts: list[Pattern]) -> set[int] | None:
    """Operators on the ways of all dominated parts; None if one of them is no such path."""
    graph, found = attempt.graph, set[int]()
    taken = {n.id for n in attempt.place.values()}
    for d in sorted((p for p in parts if isinstance(p, Dominator)), key=lambda p: len(list(p.walk()))):
        parent = attempt.node(d.parent)
        if parent is None or attempt.node(d.end) is None:
            return None
        inner = _used(d.end, attempt.choice)
        end = {attempt.place[id(p)].id for p in inner if isinstance(p, OpPattern)}
        nested = _between(attempt, [p for p in inner if isinstance(p, Dominator)])
        if nested is None:
            return None
        end |= nested
        if not any(reaches(graph, parent, graph.node(i)) for i in end):
            return None
        way = {
            n.id
            for n in graph.nodes
            if n.id not in end
            and reaches(graph, parent, n)
            and any(reaches(graph, n, graph.node(i)) for i in end)
        }
        if way & (taken | found):
            return None
        for i in way if d.path is not None else ():
            path = d.path
            assert path is not None
            if not any(True for _ in _layouts(graph, path, (graph.node(i),), legal=False)):
                return None
        found |= way
    return found


def reaches(graph: Graph, above: Node, below: Node) -> bool:
    readers = [n for n in graph.nodes if set(above.outputs) & set(n.inputs)]
    return any(n is below or reaches(graph, n, below) for n in readers)


def is_legal(graph: Graph, chosen: frozenset[int], declared: frozenset[str]) -> bool:
    """Nothing computed inside is read outside unless declared, and no path leaves and comes back."""
    for n in graph.nodes:
        for value in n.outputs if n.id in chosen else ():
            read_by = {m.id for m in graph.nodes if value in m.inputs}
            if value not in declared and (value in graph.outputs or not read_by <= chosen):
                return False
    members = [n for n in graph.nodes if n.id in chosen]
    strangers = [n for n in graph.nodes if n.id not in chosen]
    return not any(
        any(reaches(graph, m, s) for m in members) and any(reaches(graph, s, m) for m in members)
        for s in strangers
    )
