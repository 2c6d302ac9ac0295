"""Views."""

from __future__ import annotations

import math

from onnx.reference.op_run import OpRun

from collage_core.operators.windows import Tensor

__all__ = ["Flatten"]


class Flatten(OpRun):
    """Both sizes are computed: of nothing, NumPy cannot tell one from the other."""

    def _run(self, x: Tensor, axis: int = 1) -> tuple[Tensor]:
        axis = axis + x.ndim if axis < 0 else axis
        return (x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:])),)
