"""Sums, and what ends in a mean, a logarithm or a root, of integers too, as ONNX allows before opset 28."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx.reference.op_run import OpRun

from collage_core.operators.windows import Tensor, accumulator

__all__ = ["CumSum", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean"]


class _Reduction(OpRun):
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
        result = self._reduced(wide, over)
        if not keepdims:
            result = np.squeeze(result, axis=tuple(range(x.ndim)) if over is None else over)
        return (np.asarray(result).astype(x.dtype, copy=False),)

    def _reduced(self, x: Tensor, axes: tuple[int, ...] | None) -> Tensor:
        """Over `axes` (None: over all), which stay as dimensions of size 1."""
        raise NotImplementedError


class ReduceLogSum(_Reduction):
    def _reduced(self, x: Tensor, axes: tuple[int, ...] | None) -> Tensor:
        return np.asarray(np.log(x.sum(axis=axes, keepdims=True)))


class ReduceLogSumExp(_Reduction):
    def _reduced(self, x: Tensor, axes: tuple[int, ...] | None) -> Tensor:
        largest = x.max(axis=axes, keepdims=True, initial=-np.inf)
        # What is infinite cannot be taken away and added again.
        largest = np.where(np.isfinite(largest), largest, 0)
        return np.asarray(np.log(np.exp(x - largest).sum(axis=axes, keepdims=True)) + largest)


class ReduceL2(_Reduction):
    def _reduced(self, x: Tensor, axes: tuple[int, ...] | None) -> Tensor:
        return np.asarray(np.sqrt(np.square(x).sum(axis=axes, keepdims=True)))


class ReduceMean(_Reduction):
    def _reduced(self, x: Tensor, axes: tuple[int, ...] | None) -> Tensor:
        total = np.asarray(x.sum(axis=axes, keepdims=True))
        # Of nothing it is no number, and `np.mean` would warn.
        return np.asarray(total / x.dtype.type(x.size / total.size if total.size else 1))


class CumSum(OpRun):
    def _run(self, x: Tensor, axis: Tensor, exclusive: int = 0, reverse: int = 0) -> tuple[Tensor]:
        along = np.moveaxis(x, int(np.asarray(axis).reshape(-1)[0]), -1)
        along = along[..., ::-1] if reverse else along
        total = np.cumsum(along, axis=-1, dtype=accumulator(x.dtype))
        if exclusive:
            total = np.concatenate([np.zeros_like(total[..., :1]), total[..., :-1]], axis=-1)
        total = total[..., ::-1] if reverse else total
        result = np.moveaxis(total, -1, int(np.asarray(axis).reshape(-1)[0]))
        return (np.ascontiguousarray(result).astype(x.dtype, copy=False),)
