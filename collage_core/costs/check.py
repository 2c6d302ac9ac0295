"""Comparing a kernel's answer with the reference's."""

from __future__ import annotations

import numpy as np

from collage_core.errors import Refusal
from collage_core.formats import Array

__all__ = ["compare", "tolerance"]

_TOLERANCES = {"float64": 1e-8, "float32": 1e-4, "float16": 1e-2, "bfloat16": 2e-2}


def tolerance(dtype: str) -> float:
    """Largest error at which numbers of that dtype still count as right; 0 (exact) for all that are not
    floats.
    """
    return _TOLERANCES.get(dtype, 0.0)


def compare(name: str, result: Array, expected: Array) -> tuple[float | None, Refusal | None]:
    """(error, why it is wrong or None) of a result against the reference's.

    error: max|difference| / max|reference| over the elements where the reference is finite (max|difference|
    where it is all zero); None where it cannot be told. NaN and infinity must be where the reference has
    them. The tolerance is that of the reference's dtype.
    """
    if result.shape != expected.shape:
        return None, Refusal(f"output {name!r} has shape {result.shape}, the reference's {expected.shape}")
    dtype = str(expected.dtype)
    allowed = tolerance(dtype)
    if dtype not in _TOLERANCES and expected.dtype.kind != "c":
        equal = bool(np.array_equal(result, expected))
        error = 0.0 if equal else _error(result.astype(np.float64), expected.astype(np.float64))
        return error, None if equal else Refusal(f"output {name!r} ({dtype}) differs from the reference's")
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, b = result.astype(wide), expected.astype(wide)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return None, Refusal(
            f"output {name!r} has NaN or infinity where the reference has none, or the reverse"
        )
    error = _error(a[finite], b[finite])
    if error > allowed:
        return error, Refusal(f"output {name!r} has error {error:.2g}, more than {allowed:g} for {dtype}")
    return error, None


def _error(result: Array, expected: Array) -> float:
    if not expected.size:
        return 0.0
    difference = float(np.max(np.abs(result - expected)))
    scale = float(np.max(np.abs(expected)))
    return difference / scale if scale else difference
