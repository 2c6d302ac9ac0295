"""Operators, or versions of them, that `onnx.reference` does not have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_dequantize_linear import DequantizeLinear_25
from onnx.reference.ops.op_dropout import Dropout_12

from collage_core.operators.windows import Tensor

__all__ = ["DequantizeLinear", "Dropout", "MaxRoiPool", "Scatter", "Unsqueeze"]


class DequantizeLinear(DequantizeLinear_25):
    """That of opset 25, whose attributes' defaults make it any earlier one: there it begins with 19."""


class Scatter(OpRun):
    """The former name of ScatterElements without a reduction."""

    def _run(self, data: Tensor, indices: Tensor, updates: Tensor, axis: int = 0) -> tuple[Tensor]:
        places: list[Tensor] = list(np.ogrid[tuple(slice(d) for d in indices.shape)])
        places[axis] = indices
        result = data.copy()
        result[tuple(places)] = updates
        return (result,)


class MaxRoiPool(OpRun):
    """As in Caffe, whose layer it is: regions and their bins end on whole elements, and an empty bin is 0."""

    def _run(
        self,
        x: Tensor,
        rois: Tensor,
        pooled_shape: Sequence[int] = (),
        spatial_scale: float = 1.0,
    ) -> tuple[Tensor]:
        result = np.zeros((len(rois), x.shape[1], *pooled_shape), x.dtype)
        # In single precision, as Caffe: what rounds to a half there may not in double.
        scaled = rois.astype(np.float32) * np.float32(spatial_scale)
        for number, (_, left, top, right, bottom) in enumerate(scaled):
            rows = _bins(top, bottom, pooled_shape[0], x.shape[2])
            columns = _bins(left, right, pooled_shape[1], x.shape[3])
            for i, row in enumerate(rows):
                for k, column in enumerate(columns):
                    region = x[int(rois[number, 0]), :, row, column]
                    if region.size:
                        result[number, :, i, k] = region.max(axis=(1, 2))
        return (result,)


def _bins(start: np.float32, end: np.float32, count: int, size: int) -> list[slice]:
    """The elements of each of `count` bins between two places, both included, along a dimension."""
    first, last = _rounded(start), _rounded(end)
    width = np.float32(max(last - first + 1, 1)) / np.float32(count)
    edges = [(int(np.floor(k * width)) + first, int(np.ceil((k + 1) * width)) + first) for k in range(count)]
    return [slice(min(max(a, 0), size), min(max(b, 0), size)) for a, b in edges]


def _rounded(number: np.float32) -> int:
    """Halves away from 0, as in C."""
    return int(np.trunc(number + np.copysign(np.float32(0.5), number)))


class Dropout(Dropout_12):
    """Before opset 12 it drops nothing, and before opset 10 the mask has the data's type."""

    def _run(self, *inputs: Any, **attributes: Any) -> Any:
        opset = self.run_params["opsets"][""]
        if opset >= 12:
            return super()._run(*inputs, **attributes)  # type: ignore[no-untyped-call]  # onnx has no types here
        (x,) = inputs
        return (x, np.ones(x.shape, bool if opset >= 10 else x.dtype))[: len(self.output)]


class Unsqueeze(OpRun):
    """Axes are an attribute before opset 13, and may come in any order: they count in the result."""

    def _run(self, x: Tensor, axes: Tensor | Sequence[int] = ()) -> tuple[Tensor]:
        return (np.expand_dims(x, tuple(np.asarray(axes, np.int64).reshape(-1).tolist())),)
