"""Products of matrices."""

from __future__ import annotations

import numpy as np
from onnx.reference.op_run import OpRun

from collage_core.operators.windows import Tensor, accumulator

__all__ = ["Det"]


class Det(OpRun):
    def _run(self, x: Tensor) -> tuple[Tensor]:
        return (np.asarray(np.linalg.det(x.astype(accumulator(x.dtype), copy=False))).astype(x.dtype),)
