"""Single operators that oneDNN runs, written out. What it fuses to them is the rule's part (rules.py)."""

from __future__ import annotations

from collage_core.errors import Refusal
from collage_core.patterns import BackendPattern, Match, Pattern, is_constant, is_op
from collage_dnnl.rules import group_check
from collage_dnnl.support import SUPPORTED_OPS, refusal

__all__ = ["patterns"]


def patterns() -> list[BackendPattern]:
    """One pattern for every operator; the check declines what oneDNN's counterpart does not cover. And the
    sum of two that are dequantised, to which the rule finds no way.
    """
    single = [BackendPattern("dnnl", is_op(op), op, _check) for op in sorted(SUPPORTED_OPS)]
    whole = BackendPattern("dnnl", _quantised_sum(), "quantised sum", lambda m: group_check(m.subgraph))
    return [*single, whole]


def _quantised_sum() -> Pattern:
    added = is_op("Add")(is_op("DequantizeLinear"), is_op("DequantizeLinear")).optional(is_op("Relu"))
    scale, zero_point = is_constant(), is_constant()
    return is_op("QuantizeLinear")(added, scale, zero_point) | is_op("QuantizeLinear")(added, scale)


def _check(match: Match) -> Refusal | None:
    return refusal(match.root.graph, match.root.node)
