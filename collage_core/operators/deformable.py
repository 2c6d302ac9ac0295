"""Convolution whose windows read between elements, at places moved by data."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from collage_core.operators.convolution import with_bias
from collage_core.operators.sampling import neighbours
from collage_core.operators.windows import Tensor, Windows, accumulator

__all__ = ["DeformConv"]


class DeformConv(OpRun):
    """offset: [N, offset groups x kernel positions x rank, *output], how far each position is moved.

    mask: [N, offset groups x kernel positions, *output], what each counts.
    """

    def _run(
        self,
        x: Tensor,
        w: Tensor,
        offset: Tensor,
        b: Tensor | None = None,
        mask: Tensor | None = None,
        dilations: Sequence[int] | None = None,
        group: int = 1,
        kernel_shape: Sequence[int] | None = None,
        offset_group: int = 1,
        pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[Tensor]:
        windows = Windows.of(x.shape[2:], w.shape[2:], strides=strides, dilations=dilations, pads=pads)
        wide = accumulator(x.dtype)
        images, channels, *size = x.shape
        rank, output = len(size), windows.output
        positions = np.indices(windows.kernel).reshape(rank, -1, *[1] * rank)
        starts = np.indices(output)
        grid = (images, offset_group, positions.shape[1], *output)
        moved = offset.astype(wide).reshape(*grid[:3], rank, *output)
        share = np.ones(grid, wide) if mask is None else mask.astype(wide).reshape(grid)
        axes = [
            neighbours(
                moved[:, :, :, d]
                + positions[d] * windows.dilations[d]
                + starts[d] * windows.strides[d]
                - windows.head[d],
                n,
                "linear",
                "zeros",
            )
            for d, n in enumerate(size)
        ]
        sources = x.astype(wide).reshape(images, offset_group, -1, *size)
        image, part, *_ = np.ogrid[tuple(map(slice, grid))]
        columns = np.zeros((*grid, channels // offset_group), wide)
        for taps in product(*axes):
            index: list[Any] = [place for place, _ in taps]
            weight = np.prod([weight for _, weight in taps], axis=0) * share
            # Advanced indices on both sides of the channels: those come last.
            columns += sources[(image, part, slice(None), *index)] * weight[..., None]
        rows = np.moveaxis(columns, -1, 2).reshape(images, group, -1, int(np.prod(output)))
        weights = w.astype(wide).reshape(group, w.shape[0] // group, -1)
        result = (weights @ rows).reshape(images, w.shape[0], *output)
        return (with_bias(result, b).astype(x.dtype, copy=False),)
