"""The pattern generator of the paper (section 3.2): node sets of one graph that a rule allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from collage_core.errors import BackendError, Refusal, staying_alive
from collage_core.ir import Graph, Node, NodeSet, Operator, OpKind, Subgraph
from collage_core.rules.postdom import immediate_postdominators
from collage_core.rules.rule import PatternRule

__all__ = ["MAX_NODES", "GenerationResult", "Provenance", "generate"]

_Answer = TypeVar("_Answer")

MAX_NODES = 64
"""Nodes per group where neither the rule nor the caller says otherwise: a rule that never refuses would else
yield a number of groups that is quadratic in the length of a chain."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a group comes from: its rule, first and last operator, and kind (the largest in it)."""

    rule: PatternRule
    start: Node
    end: Node
    kind: OpKind


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """The groups found, each node set once, with how it was found first; and why others did not form."""

    groups: Mapping[NodeSet, Provenance]
    refusals: tuple[Refusal, ...]


def generate(
    graph: Graph, rules: PatternRule | Iterable[PatternRule], *, max_nodes: int | None = MAX_NODES
) -> GenerationResult:
    """All groups that the rule, or any of several, allows in `graph`.

    From every valid operator a group grows: itself, then everything up to its immediate post-dominator, then
    up to that one's, as long as the rule agrees. Such groups are convex and leak nothing: all that leaves a
    member passes through the group's end. `max_nodes` bounds their size; None lifts the bound. BackendError
    if a rule raises.
    """
    postdominators = immediate_postdominators(graph)
    groups: dict[NodeSet, Provenance] = {}
    refusals: dict[Refusal, None] = {}
    chosen = (rules,) if isinstance(rules, PatternRule) else tuple(rules)
    if len(backends := sorted({r.backend for r in chosen})) > 1:
        raise ValueError(f"rules of several backends ({', '.join(backends)}); generate for each by itself")
    for rule in chosen:
        limits = [m for m in (max_nodes, rule.max_nodes) if m is not None]
        _Growth(graph, rule, postdominators, min(limits, default=None), groups, refusals).run()
    return GenerationResult(groups, tuple(refusals))


class _Growth:
    def __init__(
        self,
        graph: Graph,
        rule: PatternRule,
        postdominators: Mapping[int, int | None],
        max_nodes: int | None,
        groups: dict[NodeSet, Provenance],
        refusals: dict[Refusal, None],
    ) -> None:
        self._graph = graph
        self._rule = rule
        self._postdominators = postdominators
        self._max_nodes = max_nodes
        self._groups = groups
        self._refusals = refusals
        self._ops = {n.id: Operator(graph, n) for n in graph.nodes}
        self._valid: dict[int, bool] = {}
        self._kinds: dict[int, OpKind] = {}
        self._successors: dict[int, tuple[Node, ...]] = {}

    def run(self) -> None:
        for node in self._graph.nodes:
            if self._is_valid(node):
                self._grow(node)

    def _grow(self, start: Node) -> None:
        nodes, end, kind = NodeSet([start.id]), start, self._kind(start)
        self._emit(nodes, Provenance(self._rule, start, end, kind))
        while (sink_id := self._postdominators[end.id]) is not None:
            sink = self._graph.node(sink_id)
            joining = self._joining(end, sink, len(nodes))
            if joining is None:
                return
            verdict = self._ask(sink, self._rule.fusion_rule, kind, self._ops[end.id], self._ops[sink.id])
            if not _agrees(verdict):
                self._refuse(verdict, f"the rule does not let {end} grow to it", sink)
                return
            nodes = nodes | NodeSet(n.id for n in joining)
            kind = max(kind, *(self._kind(n) for n in joining))
            end = sink
            self._emit(nodes, Provenance(self._rule, start, end, kind))
        if self._successors_of(end):
            self._refuse(
                False, "what it computes ends in no single operator, so that nothing can be fused to it", end
            )

    def _joining(self, end: Node, sink: Node, size: int) -> list[Node] | None:
        """All nodes between `end` and its post-dominator `sink`, then `sink`; None if they may not join.

        Every way onward from `end` leads to `sink`, so walking forward until there meets exactly those nodes.
        """
        joining: dict[int, Node] = {sink.id: sink}
        stack = [end]
        while stack:
            for s in self._successors_of(stack.pop()):
                if s.id not in joining:
                    joining[s.id] = s
                    stack.append(s)
            if self._max_nodes is not None and size + len(joining) > self._max_nodes:
                self._refuse(
                    False,
                    f"the group that ends in {end} would have more than {self._max_nodes} nodes with it",
                    sink,
                )
                return None
        if not all(self._is_valid(n) for n in joining.values()):
            return None
        del joining[sink.id]
        return [*joining.values(), sink]

    def _emit(self, nodes: NodeSet, provenance: Provenance) -> None:
        if nodes in self._groups:
            return
        if self._rule.check is not None:
            refusal = self._ask(provenance.end, self._rule.check, Subgraph(self._graph, nodes))
            if refusal is not None:
                self._refuse(refusal, "the rule declines the group that ends in it", provenance.end)
                return
        self._groups[nodes] = provenance

    def _is_valid(self, node: Node) -> bool:
        known = self._valid.get(node.id)
        if known is None:
            verdict = self._ask(node, self._rule.valid_op, self._ops[node.id])
            known = self._valid[node.id] = _agrees(verdict)
            if not known:
                self._refuse(verdict, f"the rule does not take a {node.op_type} like this", node)
        return known

    def _successors_of(self, node: Node) -> tuple[Node, ...]:
        if node.id not in self._successors:
            self._successors[node.id] = self._graph.successors(node.id)
        return self._successors[node.id]

    def _kind(self, node: Node) -> OpKind:
        if node.id not in self._kinds:
            self._kinds[node.id] = self._ops[node.id].kind
        return self._kinds[node.id]

    def _ask(self, node: Node, function: Callable[..., _Answer], *args: object) -> _Answer:
        try:
            with staying_alive():
                return function(*args)
        except Exception as error:
            rule = f"rule {self._rule.name!r}" if self._rule.name else "a rule"
            message = (
                f"{rule} of backend {self._rule.backend!r} failed at {node}: {type(error).__name__}: {error}"
            )
            raise BackendError(message) from error

    def _refuse(self, verdict: object, reason: str, node: Node) -> None:
        if isinstance(verdict, Refusal):
            self._refusals[verdict if verdict.node else Refusal(verdict.reason, node.name)] = None
        else:
            self._refusals[Refusal(reason, node.name)] = None


def _agrees(verdict: bool | Refusal) -> bool:
    return not isinstance(verdict, Refusal) and bool(verdict)
