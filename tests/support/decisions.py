"""What was decided where the reference and ONNX Runtime disagree: docs/operators-decisions.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

__all__ = ["BY_ID", "DECISIONS", "EXCUSES", "excused"]

DECISIONS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "docs" / "operators-decisions.json").read_text(encoding="utf-8")
)
BY_ID = {d["id"]: d for d in DECISIONS}

Tensors = list[npt.NDArray[Any]]


def _span(inputs: Tensors, stated: dict[str, Any]) -> list[tuple[int, int, int, int]]:
    """Of each spatial dimension of a pool: size, stride, what a window spans, and the dilation."""
    size = inputs[0].shape[2:]
    strides, dilations = (stated.get(k, [1] * len(size)) for k in ("strides", "dilations"))
    return [
        (n, s, (k - 1) * d + 1, d)
        for n, s, k, d in zip(size, strides, stated["kernel_shape"], dilations, strict=True)
    ]


def _same(stated: dict[str, Any]) -> bool:
    return stated.get("auto_pad") in (b"SAME_UPPER", b"SAME_LOWER")


def _same_padding_below_zero(inputs: Tensors, stated: dict[str, Any]) -> bool:
    return _same(stated) and any((-(-n // s) - 1) * s + e < n for n, s, e, _ in _span(inputs, stated))


def _same_padding_dilated(inputs: Tensors, stated: dict[str, Any]) -> bool:
    return _same(stated) and any(d > 1 for _, _, _, d in _span(inputs, stated))


def _valid_and_ceil(inputs: Tensors, stated: dict[str, Any]) -> bool:
    return stated.get("auto_pad") == b"VALID" and bool(stated.get("ceil_mode"))


def _padding_alone(inputs: Tensors, stated: dict[str, Any]) -> bool:
    """Dilated windows step over what little there is between their elements."""
    return any(d > 1 and n < d for n, _, _, d in _span(inputs, stated))


def _scales(inputs: Tensors, stated: dict[str, Any]) -> Tensors:
    """The scales of a Resize, of every dimension: 1 for those that are not among its axes."""
    rank = inputs[0].ndim
    axes = list(stated.get("axes", range(rank)))
    found = []
    for v in inputs[1:]:
        if v.dtype == np.float32 and v.size == len(axes):  # a region has two numbers for each
            scales = np.ones(rank, np.float32)
            scales[axes] = v
            found.append(scales)
    return found


def _aligned_corners_of_a_fraction(inputs: Tensors, stated: dict[str, Any]) -> bool:
    aligned = stated.get("coordinate_transformation_mode") == b"align_corners"
    return aligned and any((v * inputs[0].shape % 1).any() for v in _scales(inputs, stated))


def _length_kept(inputs: Tensors, stated: dict[str, Any]) -> bool:
    """A scale that is not 1 keeps a length."""
    shape = inputs[0].shape
    return any(((v != 1) & (np.floor(v * shape) == shape)).any() for v in _scales(inputs, stated))


def _cropped_length_kept(inputs: Tensors, stated: dict[str, Any]) -> bool:
    """A part of a dimension is resized to all of its length."""
    if stated.get("coordinate_transformation_mode") != b"tf_crop_and_resize":
        return False
    shape = np.asarray(inputs[0].shape)
    start, end = np.split(inputs[1], 2)
    last = inputs[-1]
    sizes = last if last.dtype == np.int64 else np.floor(last * shape)
    return bool(((sizes == shape) & ((start != 0) | (end != 1))).any())


def _cubic_beyond_the_border(inputs: Tensors, stated: dict[str, Any]) -> bool:
    cubic = stated.get("mode") in (b"cubic", b"bicubic") and stated.get("padding_mode") == b"border"
    return cubic and bool((np.abs(inputs[1]) > 1).any())


def _aspect_of_negative_axes(inputs: Tensors, stated: dict[str, Any]) -> bool:
    kept = stated.get("keep_aspect_ratio_policy", b"stretch") != b"stretch"
    return kept and any(a < 0 for a in stated.get("axes", ()))


def _groups_far_from_zero(inputs: Tensors, stated: dict[str, Any]) -> bool:
    """Deviations that are lost in the mean of squares, which is what ONNX Runtime has."""
    x = inputs[0].astype(np.float64)
    groups = x.reshape(x.shape[0], stated["num_groups"], -1)
    return bool((np.abs(groups).max(-1) > 20 * groups.std(-1)).any())


EXCUSES: dict[str, Callable[[Tensors, dict[str, Any]], bool]] = {
    "pool-negative-same-padding": _same_padding_below_zero,
    "pool-same-padding-dilated": _same_padding_dilated,
    "pool-valid-ceil": _valid_and_ceil,
    "max-pool-of-padding-alone": _padding_alone,
    "group-normalization-cancellation": _groups_far_from_zero,
    "grid-sample-border-cubic": _cubic_beyond_the_border,
    "resize-negative-axes-aspect": _aspect_of_negative_axes,
    "resize-align-corners-fraction": _aligned_corners_of_a_fraction,
    "resize-length-kept": _length_kept,
    "resize-crop-length-kept": _cropped_length_kept,
    "lstm-clip-of-cell": lambda inputs, stated: "clip" in stated,
    "reduce-log-sum-exp-integers": lambda inputs, stated: inputs[0].dtype.kind in "iu",
}
"""Which cases of its operators a decision is about."""


def excused(model: onnx.ModelProto, given: Mapping[str, npt.NDArray[Any]]) -> bool:
    """Whether the model's last node is one in which the two are known to differ."""
    node = model.graph.node[-1]
    values = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer} | dict(given)
    inputs = [values[v] for v in node.input if v in values]
    stated = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return any(
        node.op_type in BY_ID[d]["operator"].split(", ") and applies(inputs, stated)
        for d, applies in EXCUSES.items()
    )
