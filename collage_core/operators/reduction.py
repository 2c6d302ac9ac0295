"""Reductions that end in a logarithm, of integers too, which ONNX allows before opset 28."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx.reference.op_run import OpRun

from collage_core.operators.windows import Tensor, accumulator

__all__ = ["ReduceLogSum", "ReduceLogSumExp"]


class _LogOfSum(OpRun):
    """Integers are computed in double and cut off: so says the function by which ONNX defines ReduceLogSumExp
    (Cast to double, Exp, ReduceSum, Log, CastLike).
    """

    def _run(
        self,
        x: Tensor,
        axes: Sequence[int] | Tensor | None = None,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> tuple[Tensor]:
        wide = np.asarray(x, np.float64 if x.dtype.kind in "iu" else accumulator(x.dtype))
        if axes is not None and len(axes):
            over: tuple[int, ...] | None = tuple(int(a) for a in axes)
        else:
            over = () if noop_with_empty_axes else None
        result = self._logarithm(wide, over)
        if not keepdims:
            result = np.squeeze(result, axis=tuple(range(x.ndim)) if over is None else over)
        return (np.asarray(result).astype(x.dtype, copy=False),)

    def _logarithm(self, x: Tensor, axes: tuple[int, ...] | None) -> Tensor:
        """Of the sums over `axes` (None: over all), which stay as dimensions of size 1."""
        raise NotImplementedError


class ReduceLogSum(_LogOfSum):
    def _logarithm(self, x: Tensor, axes: tuple[int, ...] | None) -> Tensor:
        return np.asarray(np.log(x.sum(axis=axes, keepdims=True)))


class ReduceLogSumExp(_LogOfSum):
    def _logarithm(self, x: Tensor, axes: tuple[int, ...] | None) -> Tensor:
        largest = x.max(axis=axes, keepdims=True, initial=-np.inf)
        # What is infinite cannot be taken away and added again.
        largest = np.where(np.isfinite(largest), largest, 0)
        return np.asarray(np.log(np.exp(x - largest).sum(axis=axes, keepdims=True)) + largest)
