"""Single operators that cuDNN runs, written out. What it fuses is the rule's part (rules.py)."""

from __future__ import annotations

from collage_core.errors import Refusal
from collage_core.patterns import BackendPattern, Match, is_op
from collage_cudnn import NAME
from collage_cudnn.attention import attention_pattern, parse_attention
from collage_cudnn.support import SUPPORTED_OPS, refusal

__all__ = ["patterns"]


def patterns() -> list[BackendPattern]:
    """One pattern for every operator; the check declines what cuDNN's counterpart does not cover. And the one
    fusion of several that are not pointwise.
    """
    single = [BackendPattern(NAME, is_op(op), op, _check) for op in sorted(SUPPORTED_OPS)]
    return [*single, BackendPattern(NAME, attention_pattern(), "attention", _attention_check)]


def _attention_check(match: Match) -> Refusal | None:
    found = parse_attention(match.subgraph)
    return found if isinstance(found, Refusal) else None


def _check(match: Match) -> Refusal | None:
    return refusal(match.root.graph, match.root.node)
