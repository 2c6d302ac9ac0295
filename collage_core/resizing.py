"""Where a Resize's answer hangs on how its positions are rounded, told from the node alone: libraries that
compute them in float32, or from the sizes instead of the scales, read other elements than ONNX says."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from collage_core.ir import Operator

__all__ = ["doubtful_resize"]

_NEAR = 1e-4
"""Of an element's distance: closer to the border between two elements, float32 may fall on the other side."""
_KNOWN = ("align_corners", "asymmetric", "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")
"""Transformations of coordinates whose positions are told here."""


def doubtful_resize(op: Operator) -> str | None:
    """Why a library might read other elements for a Resize or Upsample, or None.

    Of computed scales it says little.
    """
    x, y = op.input_type(0), op.output_type()
    if x is None or len(x.shape) != len(y.shape) or x.symbolic_dims or y.symbolic_dims:
        return None
    how = _text(
        op, "coordinate_transformation_mode", "half_pixel" if op.op_type == "Resize" else "asymmetric"
    )
    mode = _text(op, "mode", "nearest")
    if mode != "nearest" and x.dtype.startswith(("int", "uint")):
        return f"means of {x.dtype}, cut off, hang on their last bits"
    name = _scales(op)
    if name and not op.graph.is_constant(name):
        return "align_corners with scales that are computed" if how == "align_corners" else None
    sizes = list(zip(x.static_shape, y.static_shape, strict=True))
    resized = [sizes[a] for a in _axes(op, len(sizes))]
    is_stretched = _text(op, "keep_aspect_ratio_policy", "stretch") == "stretch"
    # ONNX's scale is that of one of them then, and libraries take each one's own.
    if not is_stretched and len({Fraction(outputs, size) for size, outputs in resized if size}) > 1:
        return "sizes of one ratio that were rounded"
    given = _given_scales(op, name, len(sizes))
    for axis, (size, outputs) in enumerate(sizes):
        if not size:
            continue
        scale = outputs / size if given is None else given.get(axis, 1.0)
        if scale == 1.0:
            continue
        if outputs == size:
            return f"a scale of {scale:g} that leaves {size} elements"
        if how == "align_corners" and scale * size != outputs:
            return f"align_corners with a scale of {scale:g} for {size} elements"
        to_one = outputs == 1 and how == "pytorch_half_pixel"
        if to_one and (mode == "cubic" or op.attribute("antialias", 0)):
            return "pytorch_half_pixel down to one element"
        if mode == "nearest" and how in _KNOWN:
            positions = _positions(how, size, outputs, scale)
            on_borders = how == "half_pixel_symmetric" and scale * size != outputs  # its offset is rounded
            if _near_borders(positions, _text(op, "nearest_mode", "round_prefer_floor"), on_borders):
                return f"the nearest elements at a scale of {scale:g} hang on the last bits of positions"
    return None


def _scales(op: Operator) -> str:
    """The name of the input of scales, "" if there is none: of Resize since opset 11 the third, before that
    the second."""
    position = 2 if op.op_type == "Resize" and op.graph.opsets.get("", 11) >= 11 else 1
    name = op.node.inputs[position] if len(op.node.inputs) > position else ""
    return "" if name and op.graph.is_constant(name) and not op.graph.constants[name].size else name


def _given_scales(op: Operator, name: str, rank: int) -> dict[int, float] | None:
    """Scales by axis, where they are given and not sizes."""
    if name:
        data = [float(s) for s in op.graph.constants[name].reshape(-1)]
    elif (listed := op.attribute("scales")) is not None:
        data = [float(s) for s in listed]
    else:
        return None
    return dict(zip(_axes(op, rank), data, strict=False))


def _axes(op: Operator, rank: int) -> list[int]:
    """To which scales or sizes are given."""
    axes = op.attribute("axes")
    return list(range(rank)) if axes is None else [a % rank for a in axes]


def _positions(
    how: str, size: int, outputs: int, scale: float
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    o = np.arange(outputs, dtype=np.float64)
    if how == "align_corners":
        return o * (size - 1) / max(outputs - 1, 1)
    if how == "asymmetric":
        return o / scale
    if how == "pytorch_half_pixel" and outputs == 1:
        return np.zeros(1)
    if how == "half_pixel_symmetric":
        return (size - 1 + (2 * o + 1 - outputs) / scale) / 2
    return (o + 0.5) / scale - 0.5


def _near_borders(
    positions: np.ndarray[tuple[int], np.dtype[np.float64]], rounding: str, on_borders: bool
) -> bool:
    """Whether any lies close to a place where rounding changes; just on it counts if `on_borders`."""
    shifted = positions - (0.5 if rounding.startswith("round") else 0.0)
    distance = np.abs(shifted - np.round(shifted))
    near = distance < _NEAR * np.maximum(1.0, np.abs(positions))
    return bool(np.any(near & ((distance > 0) | on_borders)))


def _text(op: Operator, name: str, default: str) -> str:
    value = op.attribute(name, default)
    return value.decode() if isinstance(value, bytes) else str(value)
