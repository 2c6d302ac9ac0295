"""Places that are data, and where data is."""

from __future__ import annotations

import numpy as np
from onnx.reference.op_run import OpRun

from collage_core.operators.windows import Tensor

__all__ = ["GatherElements", "OneHot", "Unique"]


class GatherElements(OpRun):
    def _run(self, x: Tensor, indices: Tensor, axis: int = 0) -> tuple[Tensor]:
        places: list[Tensor] = list(np.ogrid[tuple(slice(d) for d in indices.shape)])
        places[axis] = indices
        return (x[tuple(places)],)


class OneHot(OpRun):
    def _run(self, indices: Tensor, depth: Tensor, values: Tensor, axis: int = -1) -> tuple[Tensor]:
        count = int(np.asarray(depth).reshape(-1)[0])
        off, on = values
        places = np.expand_dims(indices.astype(np.int64), axis)
        places = np.where((places >= -count) & (places < 0), places + count, places)
        shape = [1] * places.ndim
        shape[axis] = count
        return (np.where(places == np.arange(count).reshape(shape), on, off).astype(values.dtype),)


class Unique(OpRun):
    def _run(self, x: Tensor, axis: int | None = None, sorted: int = 1) -> tuple[Tensor, ...]:
        flat = x.reshape(-1) if axis is None else x
        y, first, places, counts = np.unique(
            flat, return_index=True, return_inverse=True, return_counts=True, axis=axis
        )
        places = places.reshape(-1)
        if not sorted:
            order = np.argsort(first)
            y, first, counts = y.take(order, axis=axis or 0), first[order], counts[order]
            places = np.argsort(order)[places]
        results = (y, *(v.astype(np.int64) for v in (first, places, counts)))
        return results[: len(self.output)]
