"""Reading elements at places that are data."""

from __future__ import annotations

import numpy as np
from onnx.reference.op_run import OpRun

from collage_core.operators.windows import Tensor

__all__ = ["GatherElements"]


class GatherElements(OpRun):
    def _run(self, x: Tensor, indices: Tensor, axis: int = 0) -> tuple[Tensor]:
        places: list[Tensor] = list(np.ogrid[tuple(slice(d) for d in indices.shape)])
        places[axis] = indices
        return (x[tuple(places)],)
