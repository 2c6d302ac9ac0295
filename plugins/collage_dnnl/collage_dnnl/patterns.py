"""Single operators that oneDNN runs, written out. What it fuses to them is the rule's part (rules.py)."""

from __future__ import annotations

from collage_core.errors import Refusal
from collage_core.patterns import BackendPattern, Match, is_op
from collage_dnnl.support import SUPPORTED_OPS, refusal

__all__ = ["patterns"]


def patterns() -> list[BackendPattern]:
    """One pattern for every operator; the check declines what oneDNN's counterpart does not cover."""
    return [BackendPattern("dnnl", is_op(op), op, _check) for op in sorted(SUPPORTED_OPS)]


def _check(match: Match) -> Refusal | None:
    return refusal(match.root.graph, match.root.node)
