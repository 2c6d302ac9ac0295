"""What a backend registers to say what it can fuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from collage_core.errors import Refusal
from collage_core.ir import Operator, OpKind, Subgraph

__all__ = ["FusionRule", "GroupCheck", "PatternRule", "ValidOp"]

ValidOp = Callable[[Operator], "bool | Refusal"]
"""Whether a backend can run an operator at all."""

FusionRule = Callable[[OpKind, Operator, Operator], "bool | Refusal"]
"""Whether a group of a kind that ends in one operator may grow to another."""

GroupCheck = Callable[[Subgraph], "Refusal | None"]
"""None accepts a group."""


@dataclass(frozen=True, slots=True)
class PatternRule:
    """A pattern rule of the paper (section 3.2): the generator grows groups with it.

    valid_op(op): whether the backend can run that operator at all. fusion_rule(cur_type, src, sink): whether
    a group of kind `cur_type` (the largest kind in it) that ends in `src` may grow to `sink`, the immediate
    post-dominator of `src`; every node on the paths between them would join. Either may return a `Refusal`
    with its reason instead of False.
    max_nodes: growth stops before a group would have more nodes than that; None leaves it to `generate`.
    check: looks at a whole group before it is handed out; None accepts it. A group that it declines may still
    grow into one that it accepts.
    """

    backend: str
    valid_op: ValidOp
    fusion_rule: FusionRule
    name: str = ""
    max_nodes: int | None = None
    check: GroupCheck | None = None
