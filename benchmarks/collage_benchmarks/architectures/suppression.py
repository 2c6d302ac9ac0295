"""Suppression of boxes as an operator of PyTorch's, and what it is in ONNX.

That of torchvision cannot be had here: its wheels on PyPI belong to PyTorch's CUDA build, and do not load
beside the CPU build.
"""

from __future__ import annotations

import onnxscript
import torch
from onnxscript import FLOAT, INT64
from onnxscript import opset18 as op
from torch import Tensor

__all__ = ["TRANSLATIONS", "suppressed"]

_ALL = 2**31 - 1


@torch.library.custom_op("collage_benchmarks::suppressed", mutates_args=())  # type: ignore[untyped-decorator]
def suppressed(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Indices of the boxes (x1, y1, x2, y2) that no kept one of a higher score overlaps by more than that."""
    kept: list[int] = []
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    for i in scores.argsort(descending=True).tolist():
        low, high = torch.maximum(boxes[kept, :2], boxes[i, :2]), torch.minimum(boxes[kept, 2:], boxes[i, 2:])
        common = (high - low).clamp(min=0.0).prod(1)
        if not bool((common > iou_threshold * (areas[kept] + areas[i] - common)).any()):
            kept.append(i)
    return torch.tensor(kept, dtype=torch.int64)


@suppressed.register_fake  # type: ignore[untyped-decorator]
def _(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    return boxes.new_empty([torch.library.get_ctx().new_dynamic_size()], dtype=torch.int64)


@onnxscript.script()  # type: ignore[untyped-decorator]
def _translated(boxes: FLOAT, scores: FLOAT, iou_threshold: float) -> INT64:
    most = op.Constant(value_ints=[_ALL])
    least = op.CastLike(iou_threshold, scores)
    zeros, two = op.Constant(value_ints=[0]), op.Constant(value_ints=[2])
    axes = op.Constant(value_ints=[0, 1])
    chosen = op.NonMaxSuppression(op.Unsqueeze(boxes, zeros), op.Unsqueeze(scores, axes), most, least)
    return op.Squeeze(op.Gather(chosen, two, axis=1), op.Constant(value_ints=[1]))


TRANSLATIONS = {torch.ops.collage_benchmarks.suppressed.default: _translated}
"""For `torch.onnx.export`."""
