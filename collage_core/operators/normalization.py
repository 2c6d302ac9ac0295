"""Softmax and its kin at every opset, and what divides by a norm or by a deviation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx.reference.op_run import OpRun

from collage_core.operators.windows import Tensor, accumulator

__all__ = [
    "LRN",
    "BatchNormalization",
    "Hardmax",
    "LogSoftmax",
    "LpNormalization",
    "MeanVarianceNormalization",
    "Softmax",
]


class LRN(OpRun):
    def _run(
        self, x: Tensor, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int = 1
    ) -> tuple[Tensor]:
        wide = accumulator(x.dtype)
        before = (size - 1) // 2
        squares = np.zeros((x.shape[0], x.shape[1] + size - 1, *x.shape[2:]), wide)
        np.square(x, out=squares[:, before : before + x.shape[1]], dtype=wide)
        total = sum(squares[:, k : k + x.shape[1]] for k in range(size))
        scale = wide.type(bias) + wide.type(alpha) / wide.type(size) * total
        return ((x / scale ** wide.type(beta)).astype(x.dtype, copy=False),)


class BatchNormalization(OpRun):
    def _run(
        self,
        x: Tensor,
        scale: Tensor,
        bias: Tensor,
        mean: Tensor,
        var: Tensor,
        epsilon: float = 1e-5,
        momentum: float = 0.9,
        spatial: int = 1,
        training_mode: int = 0,
    ) -> tuple[Tensor, ...]:
        wide = accumulator(x.dtype)
        outputs = len(self.output)
        values = x.astype(wide, copy=False)
        # Before opset 14 nothing but the number of outputs says which mode it is.
        training = training_mode or (outputs > 1 and self.run_params["opsets"][""] < 14)
        channel = (1, -1, *([1] * (x.ndim - 2))) if spatial and x.ndim > 1 else x.shape[1:]
        running = [v.astype(wide, copy=False) for v in (mean, var)]
        if training:
            over = tuple(d for d in range(x.ndim) if d != 1) if spatial else (0,)
            current = [values.mean(axis=over).reshape(mean.shape), values.var(axis=over).reshape(var.shape)]
            kept = [r * momentum + c * (1 - momentum) for r, c in zip(running, current, strict=True)]
        else:
            current, kept = running, []
        center, spread, factor, shift = (
            np.asarray(v, wide).reshape(channel) for v in (*current, scale, bias)
        )
        y = (values - center) / np.sqrt(spread + wide.type(epsilon)) * factor + shift
        results = [y.astype(x.dtype, copy=False)]
        results += [v.astype(mean.dtype, copy=False) for v in (*kept, *current)]
        return tuple(results[:outputs])


class LpNormalization(OpRun):
    def _run(self, x: Tensor, axis: int = -1, p: int = 2) -> tuple[Tensor]:
        wide = np.abs(x.astype(accumulator(x.dtype), copy=False))
        if p == 1:
            norm = wide.sum(axis=axis, keepdims=True)
        else:
            norm = np.sqrt(np.square(wide).sum(axis=axis, keepdims=True))
        # "the output is defined to be zero to avoid division by zero"
        return (np.where(norm == 0, 0, x / np.where(norm == 0, 1, norm)).astype(x.dtype, copy=False),)


class MeanVarianceNormalization(OpRun):
    """By the formula, not by ONNX's function, whose E(X^2) - (EX)^2 cancels in single precision."""

    def _run(self, x: Tensor, axes: Sequence[int] = (0, 2, 3)) -> tuple[Tensor]:
        wide = x.astype(np.float64)
        deviation = wide - wide.mean(axis=tuple(axes), keepdims=True)
        spread = np.sqrt(np.square(deviation).mean(axis=tuple(axes), keepdims=True))
        return ((deviation / (spread + _EPSILON)).astype(x.dtype),)


_EPSILON = 1e-9
"""What ONNX's function of MeanVarianceNormalization adds, so that equal elements become 0."""


class _AlongAxis(OpRun):
    """Before opset 13 everything from `axis` on, 1 unless stated, counted as one dimension."""

    def _run(self, x: Tensor, axis: int = -1) -> tuple[Tensor]:
        if self.run_params["opsets"][""] >= 13:
            return (self._along(x, axis),)
        if not any(a.name == "axis" for a in self.onnx_node.attribute):
            axis = 1  # what was filled in is today's default
        rows = int(np.prod(x.shape[: axis if axis >= 0 else axis + x.ndim]))
        return (self._along(x.reshape(rows, -1), 1).reshape(x.shape),)

    def _along(self, x: Tensor, axis: int) -> Tensor:
        raise NotImplementedError


class Softmax(_AlongAxis):
    def _along(self, x: Tensor, axis: int) -> Tensor:
        wide = x.astype(accumulator(x.dtype), copy=False)
        powers = np.exp(wide - wide.max(axis=axis, keepdims=True, initial=-np.inf))
        return np.asarray(powers / powers.sum(axis=axis, keepdims=True)).astype(x.dtype, copy=False)


class LogSoftmax(_AlongAxis):
    def _along(self, x: Tensor, axis: int) -> Tensor:
        wide = x.astype(accumulator(x.dtype), copy=False)
        shifted = wide - wide.max(axis=axis, keepdims=True, initial=-np.inf)
        total = np.exp(shifted).sum(axis=axis, keepdims=True)
        return np.asarray(shifted - np.log(total)).astype(x.dtype, copy=False)


class Hardmax(_AlongAxis):
    def _along(self, x: Tensor, axis: int) -> Tensor:
        result = np.zeros_like(x)
        if x.size:
            np.put_along_axis(result, x.argmax(axis=axis, keepdims=True), 1, axis)
        return result
