"""NonMaxSuppression: one box at a time, each compared with all others at once."""

from __future__ import annotations

import numpy as np
from onnx.reference.op_run import OpRun

from collage_core.operators.windows import Tensor

__all__ = ["NonMaxSuppression"]


class NonMaxSuppression(OpRun):
    def _run(
        self,
        boxes: Tensor,
        scores: Tensor,
        max_output_boxes_per_class: Tensor | None = None,
        iou_threshold: Tensor | None = None,
        score_threshold: Tensor | None = None,
        center_point_box: int = 0,
    ) -> tuple[Tensor]:
        most = _scalar(max_output_boxes_per_class, 0)
        overlap, least = _scalar(iou_threshold, 0), _scalar(score_threshold, -np.inf)
        selected: list[tuple[int, int, int]] = []
        for image, (corners, classes) in enumerate(zip(boxes, scores, strict=True)):
            low, high = _corners(corners.astype(np.float64), bool(center_point_box))
            for kind, of_class in enumerate(classes):
                # "Bounding boxes with score less than score_threshold are removed"; of equals the first wins.
                order = np.argsort(-of_class, kind="stable")
                left = order[of_class[order] >= least]
                taken = 0
                while left.size and taken < most:
                    best, left = left[0], left[1:]
                    selected.append((image, kind, int(best)))
                    taken += 1
                    left = left[_overlap(low, high, best, left) <= overlap]
        return (np.asarray(selected, np.int64).reshape(-1, 3),)


def _scalar(value: Tensor | None, absent: float) -> float:
    return absent if value is None or not value.size else value.reshape(-1)[0].item()


def _corners(boxes: Tensor, centered: bool) -> tuple[Tensor, Tensor]:
    """Lower and upper corner of each box [boxes, 2]; the given ones may be any diagonal pair."""
    first, second = boxes[:, :2], boxes[:, 2:]
    if centered:
        first, second = first - second / 2, first + second / 2
    return np.minimum(first, second), np.maximum(first, second)


def _overlap(low: Tensor, high: Tensor, one: int, others: Tensor) -> Tensor:
    """Intersection over union of one box with others; 0 where a box is empty."""
    common = np.minimum(high[one], high[others]) - np.maximum(low[one], low[others])
    shared = np.maximum(common, 0).prod(axis=1)
    area = (high - low).prod(axis=1)
    union = area[one] + area[others] - shared
    sound = (shared > 0) & (area[others] > 0) & (union > 0)
    return np.where(sound, shared / np.where(sound, union, 1), 0)
