"""Grids of places, and elements of the input at places that are data: between elements, beyond the border."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from collage_core.operators.resize import cubic_weights
from collage_core.operators.windows import Tensor

__all__ = ["AffineGrid", "GridSample", "neighbours"]

_CUBIC = -0.75


class AffineGrid(OpRun):
    def _run(self, theta: Tensor, size: Tensor, align_corners: int = 0) -> tuple[Tensor]:
        images, _, *sizes = size.tolist()
        axes = []
        for n in sizes:
            # From edge to edge, or from center to center; of one element alone the center is at -1.
            step = 2 / max(1, n - 1) if align_corners else 2 / n
            axes.append(np.arange(n) * step - 1 + (0 if align_corners else step / 2))
        grid = np.stack([*np.meshgrid(*axes, indexing="ij")[::-1], np.ones(sizes)], axis=-1)
        result = grid.reshape(-1, len(sizes) + 1) @ theta.astype(np.float64).swapaxes(1, 2)
        return (result.reshape(images, *sizes, len(sizes)).astype(theta.dtype),)


class GridSample(OpRun):
    def _run(
        self,
        x: Tensor,
        grid: Tensor,
        align_corners: int = 0,
        mode: str | None = "linear",
        padding_mode: str = "zeros",
    ) -> tuple[Tensor]:
        images, channels, *size = x.shape
        output = grid.shape[1:-1]
        # Opset 16 has names for two dimensions. Coordinates come innermost dimension first.
        mode = (mode or "linear").removeprefix("bi")
        flat = grid.reshape(images, -1, len(size))[..., ::-1].astype(np.float64)
        axes = [
            neighbours(
                _denormalised(flat[..., d], n, bool(align_corners)),
                n,
                mode,
                padding_mode,
                bool(align_corners),
            )
            for d, n in enumerate(size)
        ]
        computed = x if mode == "nearest" else x.astype(np.float64)
        image = np.arange(images)[:, None]
        total = np.zeros((images, flat.shape[1], channels), computed.dtype)
        for taps in product(*axes):
            index: list[Any] = [place for place, _ in taps]
            # Advanced indices on both sides of the channels: those come last.
            values = computed[(image, slice(None), *index)]
            if mode == "nearest":
                inside = np.logical_and.reduce([weight != 0 for _, weight in taps])
                total = np.where(inside[..., None], values, total)
            else:
                total += values * np.prod([weight for _, weight in taps], axis=0)[..., None]
        result = np.moveaxis(total, 2, 1).reshape(images, channels, *output)
        return (result.astype(x.dtype, copy=False),)


def _denormalised(at: Tensor, size: int, align: bool) -> Tensor:
    """From -1 to 1 between the outermost elements' centers (`align`) or edges, to elements."""
    return (at + 1) / 2 * (size - 1) if align else ((at + 1) * size - 1) / 2


def neighbours(
    places: Tensor, size: int, mode: str, padding: str, align: bool = False
) -> list[tuple[Tensor, Tensor]]:
    """What each place reads along a dimension: index and weight of each neighbour, both like `places`.

    padding: `zeros`, where a neighbour outside has weight 0; `border` or `reflection`. align: places are
    outside beyond the outermost elements' centers rather than beyond their edges.
    """
    low, high = (0.0, size - 1.0) if align else (-0.5, size - 0.5)
    if mode == "nearest":
        places = np.rint(places)  # halves to the even one, says ONNX
    outside = (places < low) | (places > high)
    if padding == "border":
        places = np.where(outside, np.clip(places, 0, size - 1), places)
    elif padding == "reflection":
        places = np.where(outside, _reflected(places, low, high), places)
    base = np.floor(places)
    taps = []
    for step, weight in _weights(places - base, mode):
        # What is no number has no place, and stays no number by its weight.
        tap = np.nan_to_num(base + step, posinf=size, neginf=-1)
        if padding == "reflection":
            tap = np.where((tap < low) | (tap > high), _reflected(tap, low, high), tap)
        elif padding == "zeros":
            weight = np.where((tap < 0) | (tap > size - 1), 0, weight)
        taps.append((np.clip(tap, 0, size - 1).astype(np.intp), weight))
    return taps


def _weights(ratio: Tensor, mode: str) -> list[tuple[int, Tensor]]:
    """Neighbours, counted from the element before a place, and their weights."""
    match mode:
        case "nearest":
            return [(0, np.ones_like(ratio))]
        case "linear":
            return [(0, 1 - ratio), (1, ratio)]
        case "cubic":
            return [(step, cubic_weights(np.abs(step - ratio), _CUBIC)) for step in range(-1, 3)]
    raise ValueError(f"unknown mode {mode!r}")


def _reflected(places: Tensor, low: float, high: float) -> Tensor:
    """Reflected by the borders until within them; with nothing between the borders that is `low`."""
    if high == low:
        return np.full_like(places, low)
    span = high - low
    away = np.mod(places - low, 2 * span)
    return np.asarray(low + np.where(away > span, 2 * span - away, away))
