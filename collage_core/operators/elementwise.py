"""Elementwise operators on values of any rank, 0 included, and of shapes of which none is the result's."""

from __future__ import annotations

import functools

import numpy as np
from onnx.reference.op_run import OpRun

from collage_core.operators.windows import Tensor, accumulator

__all__ = ["Mean", "PRelu", "Pow", "Softsign"]


class Mean(OpRun):
    def _run(self, *values: Tensor) -> tuple[Tensor]:
        dtype = values[0].dtype
        total = functools.reduce(np.add, (v.astype(accumulator(dtype), copy=False) for v in values))
        return (np.asarray(total / len(values)).astype(dtype, copy=False),)


class Softsign(OpRun):
    def _run(self, x: Tensor) -> tuple[Tensor]:
        wide = np.asarray(x, accumulator(x.dtype))
        return (np.asarray(wide / (1 + np.abs(wide))).astype(x.dtype, copy=False),)


class PRelu(OpRun):
    """x where x >= 0, whatever the slope: 0 times infinity is no number."""

    def _run(self, x: Tensor, slope: Tensor) -> tuple[Tensor]:
        return (np.where(x >= 0, x, x * slope).astype(x.dtype, copy=False),)


class Pow(OpRun):
    """Integers to a negative power are cut off, as where they are cast."""

    def _run(self, x: Tensor, exponent: Tensor) -> tuple[Tensor]:
        if x.dtype.kind in "iu" and exponent.dtype.kind == "i" and (exponent < 0).any():
            whole = np.power(x, np.maximum(exponent, 0))
            fractions = np.trunc(np.float_power(x, np.minimum(exponent, 0))).astype(x.dtype)
            return (np.where(exponent < 0, fractions, whole).astype(x.dtype),)
        return (np.asarray(np.power(x, exponent)).astype(x.dtype, copy=False),)
