"""Pooling, one kernel position at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from onnx.reference.op_run import OpRun

from collage_core.operators.windows import Tensor, Windows, accumulator

__all__ = ["AveragePool", "LpPool", "MaxPool"]


class MaxPool(OpRun):
    def _run(
        self,
        x: Tensor,
        auto_pad: str | None = None,
        ceil_mode: int | None = 0,
        dilations: Sequence[int] | None = None,
        kernel_shape: Sequence[int] = (),
        pads: Sequence[int] | None = None,
        storage_order: int | None = 0,
        strides: Sequence[int] | None = None,
    ) -> tuple[Tensor, ...]:
        windows = Windows.of(
            x.shape[2:],
            kernel_shape,
            strides=strides,
            dilations=dilations,
            pads=pads,
            auto_pad=auto_pad,
            ceil_mode=bool(ceil_mode),
        )
        lowest = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
        taps = windows.taps(windows.pad(x, lowest))
        _, first = next(taps)
        if len(self.output) == 1 or not self.output[1]:
            best = first.copy()
            for _, tap in taps:
                np.maximum(best, tap, out=best)
            return (best,)
        places = windows.taps(windows.pad(_element_indices(x.shape, bool(storage_order)), -1))
        best, where = first.copy(), next(places)[1].copy()
        for (_, tap), (_, place) in zip(taps, places, strict=True):
            # A place in the padding loses against any element, even one that is the lowest number itself.
            better = (place >= 0) & ((tap > best) | (where < 0))
            best[better], where[better] = tap[better], place[better]
        return best, where


def _element_indices(shape: tuple[int, ...], column_major: bool) -> Tensor:
    """Position of each element in the flattened value; column-major: the first dimension runs fastest."""
    images, channels, *spatial = shape
    order: Literal["F", "C"] = "F" if column_major else "C"
    plane = np.arange(int(np.prod(spatial)), dtype=np.int64).reshape(spatial, order=order)
    starts = np.arange(images * channels, dtype=np.int64).reshape(images, channels, *([1] * len(spatial)))
    return np.asarray(starts * plane.size + plane)


def _sums(windows: Windows, padded: Tensor) -> Tensor:
    """What each window reads, added up: [N, C, *output]."""
    total = np.zeros((*padded.shape[:2], *windows.output), padded.dtype)
    for _, tap in windows.taps(padded):
        total += tap
    return total


class AveragePool(OpRun):
    def _run(
        self,
        x: Tensor,
        auto_pad: str | None = None,
        ceil_mode: int | None = 0,
        count_include_pad: int | None = 0,
        dilations: Sequence[int] | None = None,
        kernel_shape: Sequence[int] = (),
        pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[Tensor]:
        windows = Windows.of(
            x.shape[2:],
            kernel_shape,
            strides=strides,
            dilations=dilations,
            pads=pads,
            auto_pad=auto_pad,
            ceil_mode=bool(ceil_mode),
        )
        wide = accumulator(x.dtype)
        total = _sums(windows, windows.pad(x.astype(wide, copy=False), 0))
        # Padding counts where the node says so; what lies beyond it never does.
        counted = windows.pad(np.ones((1, 1, *x.shape[2:]), wide), 1 if count_include_pad else 0, 0)
        return ((total / _sums(windows, counted)).astype(x.dtype, copy=False),)


class LpPool(OpRun):
    def _run(
        self,
        x: Tensor,
        auto_pad: str | None = None,
        ceil_mode: int | None = 0,
        dilations: Sequence[int] | None = None,
        kernel_shape: Sequence[int] = (),
        p: int = 2,
        pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[Tensor]:
        windows = Windows.of(
            x.shape[2:],
            kernel_shape,
            strides=strides,
            dilations=dilations,
            pads=pads,
            auto_pad=auto_pad,
            ceil_mode=bool(ceil_mode),
        )
        wide = accumulator(x.dtype)
        total = _sums(windows, windows.pad(np.abs(x.astype(wide, copy=False)) ** p, 0))
        return ((total ** wide.type(1 / p)).astype(x.dtype, copy=False),)
