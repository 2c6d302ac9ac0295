"""Pooling over all spatial dimensions, however many there are."""

from __future__ import annotations

import numpy as np
from onnx.reference.op_run import OpRun

from collage_core.operators.windows import Tensor, accumulator

__all__ = ["GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"]


class GlobalAveragePool(OpRun):
    def _run(self, x: Tensor) -> tuple[Tensor]:
        wide = x.astype(accumulator(x.dtype), copy=False)
        return (wide.mean(axis=_spatial(x), keepdims=True).astype(x.dtype, copy=False),)


class GlobalMaxPool(OpRun):
    def _run(self, x: Tensor) -> tuple[Tensor]:
        return (np.asarray(x.max(axis=_spatial(x), keepdims=True)),)


class GlobalLpPool(OpRun):
    """The p-th root of the sum of |x|^p: LpPool "with kernel size equal to the spatial dimension"."""

    def _run(self, x: Tensor, p: int | float = 2) -> tuple[Tensor]:
        wide = np.abs(x.astype(accumulator(x.dtype), copy=False))
        if p == 1:
            total = wide.sum(axis=_spatial(x), keepdims=True)
        elif p == 2:
            total = np.sqrt(np.square(wide).sum(axis=_spatial(x), keepdims=True))
        else:
            total = (wide**p).sum(axis=_spatial(x), keepdims=True) ** (1 / p)
        return (np.asarray(total).astype(x.dtype, copy=False),)


def _spatial(x: Tensor) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))
