"""Rules made from rules, as TVM's RFC 0062 composes its own: union, restrictions by kind, backend, size.

A union is a sequence of rules, which `generate` takes; each restriction makes a new rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from collage_core.errors import Refusal
from collage_core.ir import Operator, OpKind, Subgraph
from collage_core.rules.rule import GroupCheck, PatternRule

__all__ = ["for_backend", "restrict", "restrict_kinds", "restrict_size", "union"]


def union(*rules: PatternRule | Iterable[PatternRule]) -> tuple[PatternRule, ...]:
    """All the rules, each once: a group that any of them allows. A group grows by one rule only."""
    flat = [r for rule in rules for r in ((rule,) if isinstance(rule, PatternRule) else rule)]
    return tuple(dict.fromkeys(flat))


def for_backend(rules: Iterable[PatternRule], backend: str) -> tuple[PatternRule, ...]:
    """The rules of one backend, whose name is matched without regard to case."""
    return tuple(r for r in rules if r.backend.lower() == backend.lower())


def restrict(rule: PatternRule, check: GroupCheck) -> PatternRule:
    """`rule`, handing out only groups that `check` accepts too; growth goes on through the others."""
    earlier = rule.check

    def both(subgraph: Subgraph) -> Refusal | None:
        refusal = None if earlier is None else earlier(subgraph)
        return check(subgraph) if refusal is None else refusal

    return replace(rule, check=both)


def restrict_kinds(rule: PatternRule, kinds: Iterable[OpKind]) -> PatternRule:
    """`rule`, handing out only groups whose kind, the largest in them, is one of `kinds`."""
    allowed = frozenset(kinds)

    def check(subgraph: Subgraph) -> Refusal | None:
        kind = max(Operator(subgraph.graph, n).kind for n in subgraph.nodes)
        return (
            None
            if kind in allowed
            else Refusal(f"groups of kind {kind.name} are not asked for", subgraph.nodes[-1].name)
        )

    return restrict(rule, check)


def restrict_size(rule: PatternRule, *, max_nodes: int | None = None, min_nodes: int = 1) -> PatternRule:
    """`rule`, with groups of min_nodes to max_nodes nodes only; growth stops at the upper bound."""
    limits = [m for m in (rule.max_nodes, max_nodes) if m is not None]
    bounded = replace(rule, max_nodes=min(limits, default=None))
    if min_nodes <= 1:
        return bounded

    def check(subgraph: Subgraph) -> Refusal | None:
        size = len(subgraph.node_set)
        return (
            None
            if size >= min_nodes
            else Refusal(f"a group of {size} is smaller than {min_nodes}", subgraph.nodes[-1].name)
        )

    return restrict(bounded, check)
