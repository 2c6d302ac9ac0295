"""Where a resized element comes from, per axis: told without TVM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from collage_core.formats import Array
from collage_core.ir import Operator
from collage_tvm.axes import text_of

__all__ = ["Resampling", "check_resize", "resamplings_of"]

_NEAREST: Mapping[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
_POLICIES = ("stretch", "not_larger", "not_smaller")


@dataclass(frozen=True, eq=False)
class Resampling:
    """One axis: output element o is low[o] * (1 - weight[o]) + high[o] * weight[o], positions (int64) inside
    the input. weight (float64): None where only low is read."""

    low: Array
    high: Array
    weight: Array | None


_Positions = Callable[[Array, float, int, int], Array]


def _align_corners(o: Array, scale: float, size: int, outputs: int) -> Array:
    length = scale * size
    return np.zeros_like(o) if length == 1 else o * (size - 1) / (length - 1)


def _half_pixel(o: Array, scale: float, size: int, outputs: int) -> Array:
    return (o + 0.5) / scale - 0.5


def _half_pixel_symmetric(o: Array, scale: float, size: int, outputs: int) -> Array:
    # The middle of the output lies over the middle of the input, although the output's length was rounded.
    # size / 2 * (1 - outputs / (scale * size)) + half_pixel, rounded once: sizes are small whole numbers.
    return (size - 1 + (2 * o + 1 - outputs) / scale) / 2


def _pytorch_half_pixel(o: Array, scale: float, size: int, outputs: int) -> Array:
    return np.zeros_like(o) if outputs == 1 else _half_pixel(o, scale, size, outputs)


_POSITIONS: Mapping[str, _Positions] = {
    "align_corners": _align_corners,
    "asymmetric": lambda o, scale, size, outputs: o / scale,
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _half_pixel_symmetric,
    "pytorch_half_pixel": _pytorch_half_pixel,
}


def check_resize(op: Operator) -> str | None:
    """Why a Resize or Upsample is declined, or None; dtypes are the caller's."""
    mode = text_of(op, "mode", "nearest")
    if mode not in ("nearest", "linear"):
        return f"resizing of mode {mode!r} is not compiled"
    if op.attribute("antialias", 0):
        return "resizing with antialias is not compiled"
    if op.attribute("exclude_outside", 0):
        return "resizing with exclude_outside is not compiled"
    positions = text_of(op, "coordinate_transformation_mode", "half_pixel")
    if positions not in _POSITIONS:
        return f"resizing with coordinate_transformation_mode {positions!r} is not compiled"
    rounding = text_of(op, "nearest_mode", "round_prefer_floor")
    if rounding not in _NEAREST:
        return f"resizing with nearest_mode {rounding!r} is not compiled"
    policy = text_of(op, "keep_aspect_ratio_policy", "stretch")
    if policy not in _POLICIES:
        return f"resizing with keep_aspect_ratio_policy {policy!r} is not compiled"
    for k, what in zip(range(1, len(op.node.inputs)), _parameters(op), strict=False):
        name = op.node.inputs[k]
        if name and what != "region" and not op.graph.is_constant(name):
            return f"the {what} are not constant"
    return None


def resamplings_of(op: Operator) -> tuple[Resampling | None, ...]:
    """For every axis where its elements come from; None where the axis stays as it is."""
    type = op.input_type(0)
    assert type is not None
    shape, result = type.static_shape, op.output_type().static_shape
    # Upsample, and Resize before it said how, do as `asymmetric` and `floor` do
    simple = op.op_type == "Upsample" or op.graph.opsets.get("", 13) < 11
    positions = "asymmetric" if simple else text_of(op, "coordinate_transformation_mode", "half_pixel")
    rounding = "floor" if simple else text_of(op, "nearest_mode", "round_prefer_floor")
    linear = text_of(op, "mode", "nearest") == "linear"
    found: list[Resampling | None] = []
    for scale, size, outputs in zip(_scales(op, shape), shape, result, strict=True):
        if size == outputs and np.isclose(scale, 1.0, rtol=1e-9):
            found.append(None)
            continue
        x = _POSITIONS[positions](np.arange(outputs, dtype=np.float64), scale, size, outputs)
        low = np.floor(x) if linear else _NEAREST[rounding](x)
        inside = [np.clip(p, 0, size - 1).astype(np.int64) for p in (low, low + linear)]
        weight = x - low if linear and (inside[0] != inside[1]).any() else None
        found.append(Resampling(inside[0], inside[1], weight))
    return tuple(found)


def _scales(op: Operator, shape: tuple[int, ...]) -> list[float]:
    """Output length over input length along every axis, as the node states it."""
    given = {
        what: np.ravel(op.graph.constants[name]).tolist()
        for name, what in zip(op.node.inputs[1:], _parameters(op), strict=False)
        if name and what != "region" and op.graph.constants[name].size
    }
    if (attribute := op.attribute("scales")) is not None:
        given["scales"] = list(attribute)
    named = op.attribute("axes")
    axes = [a % len(shape) for a in named] if named is not None else list(range(len(shape)))
    if "sizes" in given:
        own = {a: n / shape[a] for a, n in zip(axes, given["sizes"], strict=True)}
        policy = text_of(op, "keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            chosen = min(own.values()) if policy == "not_larger" else max(own.values())
            own = dict.fromkeys(own, chosen)
    else:
        own = dict(zip(axes, given["scales"], strict=True))
    return [float(own.get(a, 1.0)) for a in range(len(shape))]


def _parameters(op: Operator) -> tuple[str, ...]:
    """What the inputs after the first are."""
    old = op.op_type == "Upsample" or op.graph.opsets.get("", 13) < 11
    return ("scales",) if old else ("region", "scales", "sizes")
