"""Convolution and its transpose, by matrix products over whole images."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from collage_core.operators.windows import Tensor, TransposedWindows, Windows, accumulator, inner, strided

__all__ = ["Conv", "ConvTranspose", "with_bias"]


class Conv(OpRun):
    def _run(
        self,
        x: Tensor,
        w: Tensor,
        b: Tensor | None = None,
        auto_pad: str | None = None,
        dilations: Sequence[int] | None = None,
        group: int = 1,
        kernel_shape: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[Tensor]:
        windows = Windows.of(
            x.shape[2:], w.shape[2:], strides=strides, dilations=dilations, pads=pads, auto_pad=auto_pad
        )
        wide = accumulator(x.dtype)
        padded = windows.pad(x.astype(wide, copy=False), 0)
        rows = w.shape[1] * int(np.prod(w.shape[2:]))
        weights = w.astype(wide, copy=False).reshape(group, w.shape[0] // group, rows)
        result = np.empty((x.shape[0], w.shape[0], *windows.output), wide)
        channels = x.shape[1] // group
        for image, out in zip(padded, result, strict=True):
            # One group's columns at a time: all of a 3-D network's together would take gigabytes.
            columns = np.empty((channels, *windows.kernel, *windows.output), wide)
            for g in range(group):
                for position, tap in windows.taps(image[g * channels : (g + 1) * channels]):
                    place: tuple[Any, ...] = (slice(None), *position)
                    columns[place] = tap
                per_group = out.reshape(group, w.shape[0] // group, -1)
                np.matmul(weights[g], columns.reshape(rows, -1), out=per_group[g])
        return (with_bias(result, b).astype(x.dtype, copy=False),)


class ConvTranspose(OpRun):
    def _run(
        self,
        x: Tensor,
        w: Tensor,
        b: Tensor | None = None,
        auto_pad: str | None = None,
        dilations: Sequence[int] | None = None,
        group: int = 1,
        kernel_shape: Sequence[int] | None = None,
        output_padding: Sequence[int] | None = None,
        output_shape: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[Tensor]:
        size, kernel = x.shape[2:], w.shape[2:]
        strides = strides or [1] * len(size)
        dilations = dilations or [1] * len(size)
        windows = TransposedWindows(
            strides=strides,
            dilations=dilations,
            pads=pads,
            auto_pad=auto_pad,
            output_padding=output_padding,
            output_shape=output_shape,
        )
        head, output, full = windows.extent(size, kernel)

        wide = accumulator(x.dtype)
        per_group = w.shape[1]
        sources = x.astype(wide, copy=False).reshape(x.shape[0], group, x.shape[1] // group, -1)
        weights = w.astype(wide, copy=False).reshape(group, x.shape[1] // group, -1)
        columns = np.matmul(weights.transpose(0, 2, 1), sources).reshape(
            x.shape[0], group * per_group, *kernel, *size
        )
        # Everything that any tap writes or the caller asks for; the result is cut out of it.
        room = [max(f, h + o) for f, h, o in zip(full, head, output, strict=True)]
        canvas = np.zeros((x.shape[0], group * per_group, *room), wide)
        for position in product(*map(range, kernel)):
            taken: tuple[Any, ...] = (slice(None), slice(None), *position)
            canvas[inner(map(strided, position, dilations, size, strides))] += columns[taken]
        result = canvas[inner(slice(h, h + o) for h, o in zip(head, output, strict=True))]
        return (with_bias(np.ascontiguousarray(result), b).astype(x.dtype, copy=False),)


def with_bias(result: Tensor, bias: Tensor | None) -> Tensor:
    """`result` [N, C, ...] and one number for each channel."""
    if bias is None:
        return result
    shape = (1, -1, *([1] * (result.ndim - 2)))
    return np.asarray(result + bias.astype(result.dtype, copy=False).reshape(shape))
