"""What tests of the backend and of its bfloat16 give to groups."""

from __future__ import annotations

import numpy as np

from collage_core.formats import Array
from collage_core.target import Target

__all__ = ["NOTHING", "TARGET", "f"]

NOTHING = np.empty(0, np.uint8)
"""The workspace of kernels that need none."""
TARGET = Target("cpu", 2)
"""Two threads, where nothing may be rounded."""


def f(*shape: int) -> Array:
    """Normally distributed numbers in float32, the same every time."""
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)
