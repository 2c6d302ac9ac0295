"""Softmax and its kin at every opset, and local response normalisation."""

from __future__ import annotations

import numpy as np
from onnx.reference.op_run import OpRun

from collage_core.operators.windows import Tensor, accumulator

__all__ = ["LRN", "Hardmax", "LogSoftmax", "Softmax"]


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
        powers = np.exp(wide - wide.max(axis=axis, keepdims=True))
        return np.asarray(powers / powers.sum(axis=axis, keepdims=True)).astype(x.dtype, copy=False)


class LogSoftmax(_AlongAxis):
    def _along(self, x: Tensor, axis: int) -> Tensor:
        wide = x.astype(accumulator(x.dtype), copy=False)
        shifted = wide - wide.max(axis=axis, keepdims=True)
        total = np.exp(shifted).sum(axis=axis, keepdims=True)
        return np.asarray(shifted - np.log(total)).astype(x.dtype, copy=False)


class Hardmax(_AlongAxis):
    def _along(self, x: Tensor, axis: int) -> Tensor:
        result = np.zeros_like(x)
        np.put_along_axis(result, x.argmax(axis=axis, keepdims=True), 1, axis)
        return result
