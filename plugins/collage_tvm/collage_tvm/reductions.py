"""The reductions and contractions that a group is computed from, and the arithmetic of the former."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import tirx

from collage_tvm.bits import is_nan
from collage_tvm.tensor import Reduction, Tensor

__all__ = ["combined", "contraction_of", "neutral", "reduction", "reductions_of", "tensors_below"]

Expr = Any


def tensors_below(root: Tensor) -> list[Tensor]:
    """`root` and all it is computed from, each after its inputs."""
    found: list[Tensor] = []
    seen: set[int] = set()

    def visit(x: Tensor) -> None:
        if id(x) not in seen:
            seen.add(id(x))
            for y in x.inputs:
                visit(y)
            found.append(x)

    visit(root)
    return found


def reductions_of(root: Tensor) -> list[Tensor]:
    """All reductions below `root`, each after those it depends on."""
    return [x for x in tensors_below(root) if x.reduction is not None]


def contraction_of(root: Tensor) -> Tensor | None:
    """The contraction that `root` is computed from."""
    return next((x for x in tensors_below(root) if x.contraction is not None), None)


def reduction(x: Tensor) -> Reduction:
    """What a tensor is that `reductions_of` has found."""
    assert x.reduction is not None
    return x.reduction


def combined(how: str, a: Expr, b: Expr) -> Expr:
    """Two elements of a reduction in one. how: see `Reduction`."""
    if how == "sum":
        return a + b
    if how == "prod":
        return a * b
    best = tirx.max(a, b) if how.startswith("max") else tirx.min(a, b)
    if how in ("maximum", "minimum") and (dtype := a.ty.dtype).startswith("float"):
        return tirx.Select(is_nan(a, dtype), a, best)  # a NaN in b is the larger and the smaller already
    return best


def neutral(how: str, dtype: str) -> Expr:
    """What a reduction starts with: combined with any element, it is that one."""
    if how in ("sum", "prod"):
        return tirx.const(float(how == "prod") if dtype.startswith("float") else int(how == "prod"), dtype)
    if dtype.startswith("float"):
        return tirx.const(-math.inf if how.startswith("max") else math.inf, dtype)
    limits = np.iinfo(dtype)
    return tirx.const(int(limits.min if how.startswith("max") else limits.max), dtype)
