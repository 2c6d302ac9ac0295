"""Reductions of everything to one number, shared out to the threads."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from tvm import tirx

from collage_tvm.lower.reduction import reduced
from collage_tvm.output import Output
from collage_tvm.reductions import reductions_of
from collage_tvm.tensor import Index, Scope, Tensor, make

__all__ = ["partial_reduction"]

_WORTH_ELEMENTS = 1 << 14
_LEAST_PER_PART = 256


def partial_reduction(root: Tensor) -> Output | None:
    """The first step of a kernel that reduces all its elements to one: the reduction along all axes but the
    outermost, into a buffer of its own, from which `root` is computed from now on. None where one step does.

    Threads share out rows; with one row there would be nothing to share.
    """
    found = reductions_of(root)
    if len(found) != 1 or math.prod(root.shape) != 1:
        return None
    [x] = found
    whole = x.reduction
    assert whole is not None
    shape = whole.source.shape
    reduced_axes = [a for a in whole.axes if shape[a] > 1]
    if math.prod(shape) < _WORTH_ELEMENTS or len(reduced_axes) < 2:
        return None
    outermost, *others = reduced_axes
    parts = shape[outermost]
    if math.prod(shape[a] for a in others) < _LEAST_PER_PART:
        return None
    partial = reduced(whole.source, others, whole.combine, True)
    buffer = tirx.decl_buffer((parts,), x.dtype, name="partial")
    rank = len(shape) if whole.keepdims else len(shape) - len(whole.axes) + 1
    axis = outermost if whole.keepdims else rank - 1

    def element(s: Scope, i: Index) -> Any:
        return s.load(buffer, i[axis], x.dtype)

    stored = make([parts if d == axis else 1 for d in range(rank)], x.dtype, [], element)
    x.reduction = replace(whole, source=stored, axes=(axis,))
    x.inputs = (stored,)
    return Output(partial, buffer, tuple(range(len(shape))), streams=False)
