"""What ncnn can run: a convolution, alone or with the activation that follows it."""

from __future__ import annotations

from collage_core.errors import Refusal
from collage_core.patterns import BackendPattern, Match, is_op, wildcard
from collage_ncnn.activations import ACTIVATION_OPS
from collage_ncnn.parsing import parse

__all__ = ["patterns"]


def patterns() -> list[BackendPattern]:
    """One pattern for the convolution alone and one for every activation; the check declines what ncnn's
    counterpart does not cover.
    """
    convolution = is_op("Conv")(wildcard(), wildcard())
    fused = [(f"Conv + {op}", is_op(op)(convolution)) for op in sorted(ACTIVATION_OPS)]
    return [BackendPattern("ncnn", p, name, _check) for name, p in (("Conv", convolution), *fused)]


def _check(match: Match) -> Refusal | None:
    convolution = parse(match.subgraph)
    return convolution if isinstance(convolution, Refusal) else None
