"""Resize and Upsample: one axis at a time, as weighted averages of neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx.numpy_helper import saturate_cast
from onnx.reference.op_run import OpRun

from collage_core.operators.windows import Tensor

__all__ = ["Resize", "Upsample", "cubic_weights"]


@dataclass(frozen=True, slots=True)
class _Sampling:
    """The attributes of Resize that say where an output element lies, and what its neighbours count."""

    mode: str = "nearest"
    coordinates: str = "half_pixel"
    nearest: str = "round_prefer_floor"
    cubic: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False
    extrapolation: float = 0.0


@dataclass(frozen=True, slots=True)
class _Axis:
    """One axis to resize. start, end: the region of interest, in parts of the input's length - 1."""

    axis: int
    size: int
    output: int
    scale: float
    start: float = 0.0
    end: float = 1.0


class Resize(OpRun):
    def _run(
        self,
        x: Tensor,
        *sources: Tensor | None,
        antialias: int = 0,
        axes: Sequence[int] | None = None,
        coordinate_transformation_mode: str = "half_pixel",
        cubic_coeff_a: float = -0.75,
        exclude_outside: int = 0,
        extrapolation_value: float = 0.0,
        keep_aspect_ratio_policy: str = "stretch",
        mode: str = "nearest",
        nearest_mode: str = "round_prefer_floor",
    ) -> tuple[Tensor]:
        if self.run_params["opsets"][""] < 11:  # inputs X and scales, and no attribute but the mode
            return (_upsampled(x, sources[0], mode),)
        roi, scales, sizes = (*sources, None, None, None)[:3]
        of = [a % x.ndim for a in axes] if axes else list(range(x.ndim))
        cropped = coordinate_transformation_mode == "tf_crop_and_resize"
        ends = np.asarray(roi, np.float64) if cropped and roi is not None else None
        starts = ends[: len(of)] if ends is not None else np.zeros(len(of))
        ends = ends[len(of) :] if ends is not None else np.ones(len(of))
        lengths = [x.shape[a] for a in of]
        if sizes is not None and sizes.size:
            factors, outputs = _of_sizes(lengths, sizes.tolist(), keep_aspect_ratio_policy)
        elif scales is not None:
            factors = scales.tolist()
            outputs = [int(n * s) for n, s in zip(lengths, factors, strict=True)]
        else:
            raise ValueError("Resize needs scales or sizes")
        sampling = _Sampling(
            mode,
            coordinate_transformation_mode,
            nearest_mode,
            cubic_coeff_a,
            bool(antialias),
            bool(exclude_outside),
            extrapolation_value,
        )
        plan = [
            _Axis(*values)
            for values in zip(of, lengths, outputs, factors, starts.tolist(), ends.tolist(), strict=True)
        ]
        return (_resized(x, plan, sampling),)


class Upsample(OpRun):
    def _run(
        self, x: Tensor, scale: Tensor | None = None, mode: str = "nearest", scales: Sequence[float] = ()
    ) -> tuple[Tensor]:
        return (_upsampled(x, np.asarray(scales, np.float32) if scale is None else scale, mode),)


def _upsampled(x: Tensor, scales: Tensor | None, mode: str) -> Tensor:
    """As ONNX's own conversion to opset 11 reads it, for opset 10 does not say."""
    if scales is None:
        raise ValueError("scales are missing")
    sampling = _Sampling(mode, "asymmetric", "floor")
    plan = [_Axis(a, n, int(n * s), s) for a, (n, s) in enumerate(zip(x.shape, scales.tolist(), strict=True))]
    return _resized(x, plan, sampling)


def _of_sizes(lengths: Sequence[int], sizes: Sequence[int], policy: str) -> tuple[list[float], list[int]]:
    factors = [s / n for s, n in zip(sizes, lengths, strict=True)]
    if policy == "stretch":
        return factors, list(sizes)
    scale = min(factors) if policy == "not_larger" else max(factors)
    return [scale] * len(factors), [int(np.floor(scale * n + 0.5)) for n in lengths]


def _resized(x: Tensor, plan: Sequence[_Axis], sampling: _Sampling) -> Tensor:
    # Nearest elements are moved, not computed: texts, and integers of any size, stay what they are.
    computed = sampling.mode != "nearest"
    result = x.astype(np.float64) if computed else x
    for axis in plan:
        if axis.size == axis.output and axis.scale == 1 and (axis.start, axis.end) == (0, 1):
            continue
        shape = [1] * x.ndim
        shape[axis.axis] = axis.output
        places = _places(axis, sampling.coordinates)
        taps, weights = _taps(places, axis, sampling)
        if not computed:
            result = result.take(taps[0], axis=axis.axis)
        else:
            result = np.asarray(
                sum(
                    result.take(t, axis=axis.axis) * w.reshape(shape)
                    for t, w in zip(taps, weights, strict=True)
                )
            )
        if sampling.coordinates == "tf_crop_and_resize":
            outside = ((places < 0) | (places > axis.size - 1)).reshape(shape)
            result = np.where(outside, np.asarray(sampling.extrapolation).astype(result.dtype), result)
    return np.asarray(saturate_cast(result, x.dtype)) if computed else result


def _places(axis: _Axis, coordinates: str) -> Tensor:
    """Where each output element lies in the input, float64 [output]."""
    out = np.arange(axis.output, dtype=np.float64)
    last = axis.size - 1
    # What the scale makes of the length, which may be a fraction. ONNX's text of align_corners divides by the
    # tensor's length instead, but its cases, both of them, by this.
    length = axis.scale * axis.size
    match coordinates:
        case "half_pixel":
            return (out + 0.5) / axis.scale - 0.5
        case "half_pixel_symmetric":
            # size / 2 * (1 - output / length) + half_pixel, which is rounded so often that it misses elements
            return (last + (2 * out + 1 - axis.output) / axis.scale) / 2
        case "pytorch_half_pixel":
            return (out + 0.5) / axis.scale - 0.5 if axis.output > 1 else np.zeros_like(out)
        case "align_corners":
            return out * last / (length - 1) if axis.output > 1 else np.zeros_like(out)
        case "asymmetric":
            return out / axis.scale
        case "tf_half_pixel_for_nn":
            return (out + 0.5) / axis.scale
        case "tf_crop_and_resize" if axis.output > 1:
            return axis.start * last + out * (axis.end - axis.start) * last / (axis.output - 1)
        case "tf_crop_and_resize":
            return np.full_like(out, 0.5 * (axis.start + axis.end) * last)
    raise ValueError(f"unknown coordinate_transformation_mode {coordinates!r}")


def _taps(places: Tensor, axis: _Axis, sampling: _Sampling) -> tuple[Tensor, Tensor]:
    """For each place the elements read [taps, output], within the input, and weights whose sum is 1."""
    if sampling.mode == "nearest":
        whole = _rounded(places, sampling.nearest)
        return np.clip(whole, 0, axis.size - 1).astype(np.intp)[None], np.ones((1, places.size))
    # A filter is stretched where it would otherwise skip elements.
    stretch = max(1.0, 1 / axis.scale) if sampling.antialias else 1.0
    reach = int(np.ceil((2 if sampling.mode == "cubic" else 1) * stretch))
    base = np.floor(places)
    taps = base + np.arange(1 - reach, reach + 1)[:, None]
    distance = np.abs(taps - places) / stretch
    if sampling.mode == "linear":
        weights = np.maximum(0, 1 - distance)
    elif sampling.mode == "cubic":
        weights = cubic_weights(distance, sampling.cubic)
    else:
        raise ValueError(f"unknown mode {sampling.mode!r}")
    if sampling.exclude_outside:
        weights = np.where((taps < 0) | (taps > axis.size - 1), 0, weights)
    total = weights.sum(axis=0)
    weights = weights / np.where(total == 0, 1, total)
    return np.clip(taps, 0, axis.size - 1).astype(np.intp), weights


def _rounded(places: Tensor, nearest: str) -> Tensor:
    match nearest:
        case "round_prefer_floor":
            return np.ceil(places - 0.5)
        case "round_prefer_ceil":
            return np.floor(places + 0.5)
        case "floor":
            return np.floor(places)
        case "ceil":
            return np.ceil(places)
    raise ValueError(f"unknown nearest_mode {nearest!r}")


def cubic_weights(distance: Tensor, a: float) -> Tensor:
    """The cubic filter of Keys (https://ieeexplore.ieee.org/document/1163711), equation 4."""
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0))
