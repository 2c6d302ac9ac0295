"""What MKL can run: single products. It fuses nothing to them."""

from __future__ import annotations

from collage_core.errors import Refusal
from collage_core.patterns import BackendPattern, Match, is_op
from collage_mkl.support import PRODUCT_OPS, refusal

__all__ = ["patterns"]


def patterns() -> list[BackendPattern]:
    """One pattern for every kind of product; the check declines what GEMM does not cover."""
    return [BackendPattern("mkl", is_op(op), op, _check) for op in PRODUCT_OPS]


def _check(match: Match) -> Refusal | None:
    return refusal(match.root.graph, match.root.node)
