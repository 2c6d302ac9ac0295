"""The matcher: a backtracking search for all ways in which a pattern fits at one operator.

Every step takes a state and yields the states in which its part of the pattern has matched too; a step that
yields nothing has recorded why. Patterns are small, so states are copied rather than undone.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

import onnx

from collage_core.ir import Graph, Node, NodeSet, Operator, Subgraph
from collage_core.ir.attributes import schema_of
from collage_core.patterns.describe import head, height
from collage_core.patterns.legal import refuse_group
from collage_core.patterns.pattern import (
    Alternatives,
    ConstantPattern,
    Dominator,
    OpPattern,
    OutputOf,
    Outputs,
    Pattern,
    Wildcard,
)
from collage_core.patterns.result import Bindings, Match, NoMatch

__all__ = ["Matcher"]

COMMUTATIVE = frozenset(
    (
        "Add",
        "And",
        "BitwiseAnd",
        "BitwiseOr",
        "BitwiseXor",
        "Equal",
        "Max",
        "Mean",
        "Min",
        "Mul",
        "Or",
        "Sum",
        "Xor",
    )
)
"""Operators of ONNX whose inputs may stand in any order."""


@dataclass(frozen=True, slots=True)
class _State:
    """bound: id(pattern) -> (pattern, its operator or None, its value). claimed: ids of the nodes in the set.
    outside: values of wildcards, which must come from outside the set. declared: values that the pattern's
    roots yield."""

    bound: Mapping[int, tuple[Pattern, Node | None, str]] = field(default_factory=dict)
    claimed: frozenset[int] = frozenset()
    outside: tuple[str, ...] = ()
    declared: frozenset[str] = frozenset()

    def bind(self, pattern: Pattern, node: Node | None, value: str) -> _State:
        return replace(self, bound={**self.bound, id(pattern): (pattern, node, value)})

    def target(self, pattern: Pattern) -> tuple[Node | None, str]:
        _, node, value = self.bound[id(pattern)]
        return node, value


class Matcher:
    """One pattern in one graph. Ask `nearest_miss` when `matches` has yielded nothing."""

    def __init__(self, graph: Graph, pattern: Pattern) -> None:
        self._graph = graph
        self._pattern = pattern
        self._uses = Counter(id(c) for p in pattern.walk() for c in p.children)
        self._miss = NoMatch("nothing was tried", progress=-1)

    def matches(self, node: Node) -> Iterator[Match]:
        """All matches whose root is `node`; several may have the same node set."""
        self._miss = NoMatch("nothing was tried", progress=-1)
        for state in self._at_root(self._pattern, node, _State()):
            subgraph = Subgraph(self._graph, NodeSet(state.claimed))
            refusal = refuse_group(subgraph, state.outside, state.declared)
            if refusal is not None:
                at, why = refusal
                self._fail(state, None, why, at)
                continue
            pairs = tuple((p, v if n is None else self._op(n)) for p, n, v in state.bound.values())
            yield Match(self._pattern, self._op(node), subgraph, Bindings(pairs))

    def nearest_miss(self) -> NoMatch:
        return self._miss

    def _op(self, node: Node) -> Operator:
        return Operator(self._graph, node)

    def _fail(self, state: _State, pattern: Pattern | None, why: str, node: Node) -> None:
        progress = len(state.bound)
        if progress > self._miss.progress:
            reason = why if pattern is None else f"expected {head(pattern)}, but {why}"
            self._miss = NoMatch(reason, node.name, progress, pattern)

    def _at_root(self, pattern: Pattern, node: Node, state: _State) -> Iterator[_State]:
        """As `_at_node`, for an operator whose results the pattern declares as its outputs."""
        match pattern:
            case Alternatives():
                for choice in pattern.choices:
                    for s in self._at_root(choice, node, state):
                        chosen, value = s.target(choice)
                        if self._holds(pattern, chosen, value, s, node):
                            yield s.bind(pattern, chosen, value)
            case Outputs():
                for s in self._fields(pattern, 0, node, state):
                    yield s.bind(pattern, *s.target(pattern.fields[0]))
            case OutputOf():
                for s in self._at_node(pattern, node, state, through=False):
                    yield replace(s, declared=s.declared | {s.target(pattern)[1]})
            case _:
                for s in self._at_node(pattern, node, state, through=False):
                    yield replace(s, declared=s.declared | {v for v in node.outputs if v})

    def _fields(self, pattern: Outputs, index: int, root: Node, state: _State) -> Iterator[_State]:
        if index == len(pattern.fields):
            yield state
            return
        part = pattern.fields[index]
        candidates = [root] if index == 0 else self._above(part, state)
        if not candidates:
            self._fail(state, part, "no operator reads what the other outputs share with it", root)
        for node in candidates:
            for s in self._at_root(part, node, state):
                yield from self._fields(pattern, index + 1, root, s)

    def _above(self, part: Pattern, state: _State) -> list[Node]:
        """Operators that could be the root of `part`, given what of it is bound already, in graph order."""
        frontier: dict[int, Node] = {}
        values = []
        for p in part.walk():
            if id(p) in state.bound:
                node, value = state.target(p)
                if p is part:
                    return [node] if node is not None else []
                values += [value] if node is None else [v for v in node.outputs if v]
                if node is not None:
                    frontier[node.id] = node  # `part` may be another output of it, or an option not taken
        level = {c.id: c for v in values for c in self._graph.consumers(v)}
        steps = height(part)
        while level and steps > 0:
            frontier |= level
            level = {
                s.id: s for n in level.values() for s in self._graph.successors(n.id) if s.id not in frontier
            }
            steps -= 1
        return sorted(frontier.values(), key=lambda n: self._graph.positions[n.id])

    def _at_node(self, pattern: Pattern, node: Node, state: _State, *, through: bool) -> Iterator[_State]:
        """`pattern` stands for operator `node`.

        through: its wildcards may stand for values from inside the match.
        """
        if id(pattern) in state.bound:
            if state.target(pattern)[0] is node:
                yield state
            else:
                self._fail(state, pattern, f"that part stands for {state.target(pattern)[1]!r} already", node)
            return
        match pattern:
            case OpPattern():
                yield from self._operator(pattern, node, state, through)
            case Alternatives():
                for choice in pattern.choices:
                    for s in self._at_node(choice, node, state, through=through):
                        if self._holds(pattern, node, s.target(choice)[1], s, node):
                            yield s.bind(pattern, node, s.target(choice)[1])
            case OutputOf():
                values = [v for i, v in enumerate(node.outputs) if v and pattern.index in (None, i)]
                if not values:
                    self._fail(state, pattern, f"it has no output {pattern.index or 0}", node)
                    return
                for s in self._at_node(pattern.operator, node, state, through=through):
                    for value in values:
                        if self._holds(pattern, node, value, s, node):
                            yield s.bind(pattern, node, value)
            case Dominator():
                yield from self._dominator(pattern, node, state, through)
            case _:
                self._fail(state, pattern, "that stands for a value, not for an operator", node)

    def _operator(self, pattern: OpPattern, node: Node, state: _State, through: bool) -> Iterator[_State]:
        if (why := pattern.meaning.refuses(self._op(node))) is not None:
            self._fail(state, pattern, why, node)
        elif node.id in state.claimed:
            self._fail(state, pattern, "another part of the pattern stands for it already", node)
        elif self._holds(pattern, node, node.outputs[0], state, node):
            claimed = replace(state.bind(pattern, node, node.outputs[0]), claimed=state.claimed | {node.id})
            yield from self._arguments(pattern, node, claimed, through)

    def _arguments(self, pattern: OpPattern, node: Node, state: _State, through: bool) -> Iterator[_State]:
        if pattern.args is None:
            yield state
            return
        present = [i for i, v in enumerate(node.inputs) if v]
        wanted = max((i + 1 for i, a in enumerate(pattern.args) if a is not None), default=0)
        if wanted > len(node.inputs):
            self._fail(state, pattern, f"it has {len(present)} inputs, not {wanted}", node)
            return
        for i in present:
            mentioned = i < len(pattern.args) and pattern.args[i] is not None
            if not mentioned and not _is_optional(self._op(node), i):
                self._fail(
                    state, pattern, f"the pattern does not mention its input {i}, which is not optional", node
                )
                return
        commutative = node.op_type in COMMUTATIVE and not node.domain
        args = pattern.args[:wanted]

        def assign(
            index: int, free: tuple[int, ...], last_of_twins: Mapping[Hashable, int], state: _State
        ) -> Iterator[_State]:
            """Give args[index:] the inputs `free`, in all orders if the operator is commutative.

            Arguments that look alike and are not shared are interchangeable: only one order of them is tried.
            """
            if index == len(args):
                yield state
                return
            arg = args[index]
            twins: Hashable = self._twins(arg, index) if commutative and arg is not None else index
            for i in free if commutative else (index,):
                if i < last_of_twins.get(twins, -1):
                    continue
                rest = tuple(j for j in free if j != i)
                known = {**last_of_twins, twins: i}
                matched = (
                    iter((state,))
                    if arg is None
                    else self._at_value(arg, node.inputs[i], node, state, through=through)
                )
                for s in matched:
                    yield from assign(index + 1, rest, known, s)

        yield from assign(0, tuple(range(wanted)), {}, state)

    def _twins(self, arg: Pattern, index: int) -> Hashable:
        return arg.form if all(self._uses[id(p)] == 1 for p in arg.walk()) else index

    def _dominator(self, pattern: Dominator, node: Node, state: _State, through: bool) -> Iterator[_State]:
        for s in self._at_node(pattern.end, node, state, through=True):
            shared = (s.target(p)[0] for p in pattern.end.walk() if id(p) in s.bound)
            end = NodeSet((*(s.claimed - state.claimed), *(n.id for n in shared if n is not None)))
            above = NodeSet()
            for i in end:
                above = above | self._graph.ancestors(i)
            if not above:
                self._fail(s, pattern.parent, f"no operator stands before {node.name!r}", node)
            passable: set[int] = set()
            # The end may name the parent among its own inputs.
            candidates = chain(
                self._upwards(pattern.path, end, passable, s), map(self._graph.node, end & above)
            )
            for candidate in candidates:
                between = (self._graph.descendants(candidate.id) & above) - end
                for found in self._at_node(pattern.parent, candidate, s, through=through):
                    if not all(i in passable and i not in found.claimed for i in between):
                        why = f"not every way from it to {node.name!r} is such a path"
                        self._fail(found, pattern.path, why, candidate)
                    elif self._holds(pattern, node, s.target(pattern.end)[1], found, node):
                        inside = replace(found, claimed=found.claimed | set(between))
                        yield inside.bind(pattern, node, s.target(pattern.end)[1])

    def _upwards(
        self, path: Pattern | None, end: NodeSet, passable: set[int], state: _State
    ) -> Iterator[Node]:
        """Operators from which `path` leads to `end`, nearest first; `passable` collects the way."""
        position = self._graph.positions
        heap: list[tuple[int, int]] = []
        seen: set[int] = set(end)

        def push(ids: NodeSet | list[int]) -> None:
            for i in ids:
                for p in self._graph.predecessors(i):
                    if p.id not in seen:
                        seen.add(p.id)
                        heapq.heappush(heap, (-position[p.id], p.id))

        push(end)
        while heap:
            _, i = heapq.heappop(heap)
            node = self._graph.node(i)
            yield node
            if path is None or next(self._at_node(path, node, _State(), through=True), None) is not None:
                passable.add(i)
                push([i])

    def _at_value(
        self, pattern: Pattern, value: str, reader: Node, state: _State, *, through: bool
    ) -> Iterator[_State]:
        """`pattern` stands for `value`, which `reader` reads ("" if that input is absent)."""
        if not value:
            self._fail(state, pattern, "that input is absent", reader)
        elif id(pattern) in state.bound:
            if state.target(pattern)[1] == value:
                is_outside = isinstance(pattern, Wildcard) and not through
                yield replace(state, outside=(*state.outside, value)) if is_outside else state
            else:
                self._fail(
                    state,
                    pattern,
                    f"that part stands for {state.target(pattern)[1]!r} already, not for {value!r}",
                    reader,
                )
        else:
            yield from self._new_at_value(pattern, value, reader, state, through)

    def _new_at_value(
        self, pattern: Pattern, value: str, reader: Node, state: _State, through: bool
    ) -> Iterator[_State]:
        producer = self._graph.producer(value)
        match pattern:
            case Wildcard():
                if self._holds(pattern, producer, value, state, producer or reader):
                    outside = state.outside if through else (*state.outside, value)
                    yield replace(state.bind(pattern, None, value), outside=outside)
            case ConstantPattern():
                if not self._graph.is_constant(value):
                    self._fail(state, pattern, f"{value!r} is not constant", reader)
                elif self._holds(pattern, None, value, state, reader):
                    yield state.bind(pattern, None, value)
            case Alternatives():
                for choice in pattern.choices:
                    for s in self._at_value(choice, value, reader, state, through=through):
                        if self._holds(pattern, producer, value, s, producer or reader):
                            yield s.bind(pattern, s.target(choice)[0], value)
            case _ if producer is None:
                self._fail(state, pattern, f"no operator computes {value!r}", reader)
            case OutputOf():
                index = producer.outputs.index(value)
                if pattern.index not in (None, index):
                    self._fail(state, pattern, f"{value!r} is its output {index}", producer)
                    return
                for s in self._at_node(pattern.operator, producer, state, through=through):
                    if self._holds(pattern, producer, value, s, producer):
                        yield s.bind(pattern, producer, value)
            case Dominator():
                for s in self._at_node(pattern, producer, state, through=through):
                    if s.target(pattern)[1] == value:
                        yield s
                    else:
                        self._fail(s, pattern, f"{value!r} is another output of it", producer)
            case _ if producer.outputs[0] != value:
                self._fail(state, pattern, f"{value!r} is not its first output", producer)
            case _:
                yield from self._at_node(pattern, producer, state, through=through)

    def _holds(self, pattern: Pattern, node: Node | None, value: str, state: _State, at: Node) -> bool:
        op = None if node is None else self._op(node)
        for constraint in pattern.constraints:
            if (why := constraint.refuses(self._graph, op, value)) is not None:
                self._fail(state, pattern, why, at)
                return False
        return True


def _is_optional(op: Operator, index: int) -> bool:
    schema = schema_of(op)
    if schema is None or index >= len(schema.inputs):
        return False
    return bool(schema.inputs[index].option == onnx.defs.OpSchema.FormalParameterOption.Optional)
