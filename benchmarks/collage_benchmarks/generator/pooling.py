"""Pooling: windows, whole images, and the way back."""

from __future__ import annotations

import numpy as np

from collage_benchmarks.generator.builder import Builder
from collage_benchmarks.generator.convolutions import Window, window
from collage_benchmarks.generator.domains import ANY, DISTINCT
from collage_benchmarks.generator.family import Family

__all__ = ["FAMILY"]

FAMILY = Family()


@FAMILY.add("AveragePool")
def average_pool(b: Builder) -> None:
    w = window(b, dilated=b.opset >= 19)
    x = b.operand(b.dtype("AveragePool"), (*b.sizes((1, 2), (1, 4)), *w.sizes))
    include = b.choice([None, 0, 1])
    b.node(
        "AveragePool",
        [x],
        kernel_shape=w.kernel,
        ceil_mode=_ceil(b, w),
        count_include_pad=include,
        **w.attributes,
    )


@FAMILY.add("MaxPool")
def max_pool(b: Builder) -> None:
    """Where several elements are the largest, ONNX does not say whose index is told: so all differ."""
    w = window(b)
    told = b.one_in(3)
    dtype = b.dtype("MaxPool", None, ("float32", "float64") if told else None)
    x = b.operand(dtype, (*b.sizes((1, 2), (1, 4)), *w.sizes), DISTINCT if told else ANY)
    order = b.choice([None, 0, 1]) if told else None
    b.node(
        "MaxPool",
        [x],
        [True, told],
        kernel_shape=w.kernel,
        ceil_mode=_ceil(b, w),
        storage_order=order,
        **w.attributes,
    )


@FAMILY.add("LpPool")
def lp_pool(b: Builder) -> None:
    later = b.opset >= 18
    w = window(b, dilated=later)
    x = b.operand(b.dtype("LpPool"), (*b.sizes((1, 2), (1, 4)), *w.sizes))
    ceil = _ceil(b, w) if later else None
    b.node("LpPool", [x], kernel_shape=w.kernel, ceil_mode=ceil, p=b.choice([None, 1, 2, 3]), **w.attributes)


def _ceil(b: Builder, w: Window) -> int | None:
    """Rounding up is for explicit pads; no stride so large that a window would begin beyond the array."""
    small = all(s <= k for s, k in zip(w.strides, w.kernel, strict=True))
    return b.choice([None, 0, 1]) if w.auto is None and small else b.choice([None, 0])


@FAMILY.add("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def whole(b: Builder, op: str) -> None:
    x = b.some(b.dtype(op), 3, 5)
    if op == "GlobalLpPool":
        b.node(op, [x], p=b.choice([None, 1, 2, 3]))
    else:
        b.node(op, [x])


@FAMILY.add("MaxUnpool")
def unpool(b: Builder) -> None:
    """Back from a pooling without overlap, whose indices are given."""
    n, c, h, w = b.sizes((1, 2), (1, 2), (1, 3), (1, 3))
    x = b.operand(b.dtype("MaxUnpool"), (n, c, h, w))
    planes = np.arange(n * c).reshape(n, c, 1, 1) * (4 * h * w)
    rows = 2 * np.arange(h).reshape(h, 1) + b.rng.integers(0, 2, (n, c, h, w))
    columns = 2 * np.arange(w) + b.rng.integers(0, 2, (n, c, h, w))
    places = b.input((planes + rows * 2 * w + columns).astype("int64"))
    shape = b.parameter([n, c, 2 * h, 2 * w]) if b.flag() else None
    b.node("MaxUnpool", [x, places, shape], kernel_shape=[2, 2], strides=[2, 2])


@FAMILY.add("MaxRoiPool")
def roi_pool(b: Builder) -> None:
    c, h, w = b.sizes((1, 3), (4, 9), (4, 9))
    x = b.operand(b.dtype("MaxRoiPool"), (1, c, h, w))
    count = b.integer(1, 3)
    starts = b.rng.integers(0, 2, (count, 2))
    ends = starts + b.rng.integers(1, 3, (count, 2))
    rois = np.concatenate([np.zeros((count, 1)), starts, ends], axis=1).astype(x.dtype)
    b.node("MaxRoiPool", [x, b.input(rois)], pooled_shape=[b.integer(1, 2), b.integer(1, 2)])
