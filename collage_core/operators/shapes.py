"""Shapes of values, and values in other shapes."""

from __future__ import annotations

import math

import numpy as np
from onnx.reference.op_run import OpRun

from collage_core.operators.windows import Tensor

__all__ = ["Flatten", "Shape"]


class Flatten(OpRun):
    """Both sizes are computed: of nothing, NumPy cannot tell one from the other."""

    def _run(self, x: Tensor, axis: int = 1) -> tuple[Tensor]:
        axis = axis + x.ndim if axis < 0 else axis
        return (x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:])),)


class Shape(OpRun):
    """ "[...] clamped to the range [0, r]": what `start` and `end` say of dimensions that are not there."""

    def _run(self, x: Tensor, end: int | None = None, start: int = 0) -> tuple[Tensor]:
        first, last, _ = slice(start, end).indices(x.ndim)
        return (np.asarray(x.shape[first:last], np.int64),)
