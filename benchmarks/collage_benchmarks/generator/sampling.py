"""Operators that sample images at places between their elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from collage_benchmarks.generator.builder import FLOATS, Builder, Value
from collage_benchmarks.generator.domains import Domain
from collage_benchmarks.generator.family import Family

__all__ = ["FAMILY"]

FAMILY = Family()

_COORDINATES = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric")
_NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@FAMILY.add("Resize")
def resize(b: Builder) -> None:
    """To twice, half or other sizes. The places are exact, or far from where the nearest element changes."""
    mode = b.choice([None, "nearest", "linear", "cubic"])
    nearest = mode in (None, "nearest")
    dtype = b.dtype("Resize", "T1", (*FLOATS, "int32", "uint8", "int8") if nearest else FLOATS)
    x = b.operand(dtype, (*b.sizes((1, 2), (1, 3)), *(b.choice([2, 3, 4, 7]) for _ in range(2))))
    attributes: dict[str, Any] = {"mode": mode}
    known = _COORDINATES if b.opset >= 19 else _COORDINATES[:4]
    attributes["coordinate_transformation_mode"] = b.choice([None, *known])
    if nearest:
        attributes["nearest_mode"] = b.choice([None, *_NEAREST])
    if mode == "cubic":
        attributes["cubic_coeff_a"] = b.choice([None, -0.5])
        attributes["exclude_outside"] = b.choice([None, 0, 1])
    if b.opset >= 18 and mode in ("linear", "cubic"):
        attributes["antialias"] = b.choice([None, 0, 1])
    some_axes = b.opset >= 18 and b.one_in(3)
    if some_axes:
        attributes["axes"] = b.choice([[2, 3], [3, 2], [-2, -1], [3]])
    axes = attributes.get("axes", [0, 1, 2, 3])
    assert isinstance(axes, list)
    factors = [1.0 if a in (0, 1) else b.choice([2.0, 0.5, 3.0, 1.0, 1.5]) for a in axes]
    empty: Value | None = None
    if b.flag():
        b.node("Resize", [x, empty, b.constant(np.asarray(factors, "float32"))], **attributes)
        return
    sizes = [max(1, int(x.shape[a] * f)) for a, f in zip(axes, factors, strict=True)]
    if b.opset >= 18 and some_axes and b.flag():
        attributes["keep_aspect_ratio_policy"] = b.choice(["stretch", "not_larger", "not_smaller"])
    b.node("Resize", [x, empty, empty, b.parameter(sizes)], **attributes)


@FAMILY.add("GridSample")
def grid_sample(b: Builder) -> None:
    """Nearest neighbours are asked for on places that are no halves."""
    names = ("linear", "nearest", "cubic") if b.opset >= 20 else ("bilinear", "nearest", "bicubic")
    mode = b.choice([None, *names])
    spatial = 3 if b.opset >= 20 and mode in (None, "linear", "nearest") and b.one_in(4) else 2
    n, c = b.sizes((1, 2), (1, 3))
    x = b.operand(b.dtype("GridSample", "T1", FLOATS), (n, c, *(b.integer(2, 5) for _ in range(spatial))))
    grid_type = b.dtype("GridSample", "T2") if b.opset >= 16 else x.dtype
    shape = (n, *(b.integer(1, 4) for _ in range(spatial)), spatial)
    grid = b.fresh(grid_type, shape, Domain(-1.2, 1.2))
    padding = b.choice([None, "zeros", "border", "reflection"])
    b.node("GridSample", [x, grid], mode=mode, padding_mode=padding, align_corners=b.choice([None, 0, 1]))


@FAMILY.add("AffineGrid")
def affine_grid(b: Builder) -> None:
    spatial = b.choice([2, 3])
    n = b.integer(1, 2)
    theta = b.operand(b.dtype("AffineGrid"), (n, spatial, spatial + 1))
    size = b.parameter([n, b.integer(1, 3), *(b.integer(2, 5) for _ in range(spatial))])
    b.node("AffineGrid", [theta, size], align_corners=b.choice([None, 0, 1]))


@FAMILY.add("RoiAlign")
def roi_align(b: Builder) -> None:
    n, c, h, w = b.sizes((1, 2), (1, 3), (4, 9), (4, 9))
    x = b.operand(b.dtype("RoiAlign"), (n, c, h, w))
    count = b.integer(1, 3)
    starts = Domain(0, 2).sample(b.rng, x.dtype, (count, 2))
    rois = np.concatenate([starts, starts + Domain(1, 4).sample(b.rng, x.dtype, (count, 2))], axis=1)
    batch = b.rng.integers(0, n, count).astype("int64")
    attributes: dict[str, Any] = {"mode": b.choice([None, "avg", "max"])}
    for name in ("output_height", "output_width"):
        attributes[name] = b.choice([None, 1, 2, 3])
    attributes["sampling_ratio"] = b.choice([None, 0, 1, 2])
    attributes["spatial_scale"] = b.choice([None, 1.0, 0.5])
    if b.opset >= 16:
        attributes["coordinate_transformation_mode"] = b.choice([None, "half_pixel", "output_half_pixel"])
    b.node("RoiAlign", [x, b.input(rois.astype(x.dtype)), b.input(batch)], **attributes)


@FAMILY.add("Col2Im")
def col2im(b: Builder) -> None:
    block = [b.integer(1, 3), b.integer(1, 3)]
    pads = [b.integer(0, k - 1) for k in (*block, *block)]
    strides = [b.integer(1, 2), b.integer(1, 2)]
    image = [k + b.integer(0, 4) for k in block]
    places = 1
    for i in range(2):
        places *= (image[i] + pads[i] + pads[i + 2] - block[i]) // strides[i] + 1
    x = b.operand(b.dtype("Col2Im"), (b.integer(1, 2), b.integer(1, 3) * block[0] * block[1], places))
    b.node("Col2Im", [x, b.parameter(image), b.parameter(block)], pads=pads, strides=strides)
