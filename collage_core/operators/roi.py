"""RoiAlign: regions of images, resampled by products with matrices of bilinear weights."""

from __future__ import annotations

import numpy as np
from onnx.reference.op_run import OpRun

from collage_core.operators.windows import Tensor

__all__ = ["RoiAlign"]


class RoiAlign(OpRun):
    def _run(
        self,
        x: Tensor,
        rois: Tensor,
        batch_indices: Tensor,
        coordinate_transformation_mode: str = "half_pixel",
        mode: str = "avg",
        output_height: int = 1,
        output_width: int = 1,
        sampling_ratio: int = 0,
        spatial_scale: float = 1.0,
    ) -> tuple[Tensor]:
        # Opset 10 has no shift and no attribute for it.
        shifted = self.run_params["opsets"][""] >= 16 and coordinate_transformation_mode == "half_pixel"
        bins = (output_height, output_width)
        result = np.zeros((len(rois), x.shape[1], *bins), np.float64)
        corners = rois.astype(np.float64) * spatial_scale - (0.5 if shifted else 0)
        for out, region, image in zip(result, corners, x[batch_indices], strict=True):
            # Corners come as x, y of the first and of the last.
            starts, ends = region[1::-1], region[:1:-1]
            sizes = ends - starts if shifted else np.maximum(ends - starts, 1)
            points = [
                sampling_ratio or int(np.ceil(size / bin)) for size, bin in zip(sizes, bins, strict=True)
            ]
            if min(points) <= 0:
                continue  # an empty region without a number of points: nothing to average
            rows, columns = (
                _bilinear(start, size, bin * count, length)
                for start, size, bin, count, length in zip(
                    starts, sizes, bins, points, image.shape[1:], strict=True
                )
            )
            wide = image.astype(np.float64)
            shape = (-1, bins[0], points[0], bins[1], points[1])
            if mode == "avg":
                sampled = (rows[0] + rows[1]) @ wide @ (columns[0] + columns[1]).T
                out[...] = sampled.reshape(shape).mean(axis=(2, 4))
            else:
                # By the text the maximum of what is interpolated; by ONNX's case, of the four parts of each.
                parts = np.stack([r @ wide @ c.T for r in rows for c in columns]).max(axis=0)
                out[...] = parts.reshape(shape).max(axis=(2, 4))
        return (result.astype(x.dtype),)


def _bilinear(start: float, size: float, count: int, length: int) -> tuple[Tensor, Tensor]:
    """Weights [count, length] of the elements below and above `count` places, even over `size` from `start`.

    A place further than one element outside has no weight; one outside by less is at the border.
    """
    places = start + (np.arange(count) + 0.5) * size / count
    inside = (places >= -1) & (places <= length)
    places = np.clip(places, 0, length - 1)
    lower = np.floor(places).astype(np.intp)
    ratio = places - lower
    below, above = np.zeros((count, length)), np.zeros((count, length))
    every = np.arange(count)
    below[every, lower] = np.where(inside, 1 - ratio, 0)
    above[every, np.minimum(lower + 1, length - 1)] = np.where(inside, ratio, 0)
    return below, above
