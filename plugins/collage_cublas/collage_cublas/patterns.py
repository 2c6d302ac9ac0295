"""What cuBLASLt runs as one call: a product, scaled, with a bias and a matrix added, and an activation."""

from __future__ import annotations

from collage_core.errors import Refusal
from collage_core.patterns import BackendPattern, Match, Pattern, is_constant, is_op, wildcard
from collage_cublas.chain import ACTIVATIONS, parse

__all__ = ["patterns"]


def patterns() -> list[BackendPattern]:
    """One for every kind of product and of end; the check declines what one call does not cover."""
    found = []
    for product, pattern in (("Gemm", is_op("Gemm")), ("MatMul", is_op("MatMul").optional(_scaled))):
        added = pattern.optional(_added).optional(_added)
        found.append(BackendPattern("cublas", added, product, _check))
        ends = [(op, _activated(op, added)) for op in ACTIVATIONS]
        found += [BackendPattern("cublas", end, f"{product} + {op}", _check) for op, end in ends]
    return found


def _scaled(product: Pattern) -> Pattern:
    return is_op("Mul")(product, is_constant()) | is_op("Div")(product, is_constant())


def _added(product: Pattern) -> Pattern:
    return is_op("Add")(product, wildcard())


def _activated(op: str, product: Pattern) -> Pattern:
    ended = is_op(op)(product)
    return ended.has_attr({"approximate": "tanh"}) if op == "Gelu" else ended


def _check(match: Match) -> Refusal | None:
    found = parse(match.subgraph)
    return found if isinstance(found, Refusal) else None
