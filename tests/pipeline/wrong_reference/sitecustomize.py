"""A reference that is wrong: on the path of a worker it has Softplus forget the logarithm."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from onnx.reference.op_run import OpRun

import collage_core.operators


class Softplus(OpRun):
    def _run(self, x: npt.NDArray[Any]) -> tuple[npt.NDArray[Any]]:
        return (np.exp(x) + 1,)


collage_core.operators.OPERATORS = (*collage_core.operators.OPERATORS, Softplus)
