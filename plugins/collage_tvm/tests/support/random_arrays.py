"""Arrays of random numbers for groups of several operators."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["RANDOM", "f"]

RANDOM = np.random.default_rng(11)
"""What every array here is drawn from, one after the other."""


def f(*shape: int) -> Any:
    """Normally distributed numbers in float32."""
    return RANDOM.standard_normal(shape).astype(np.float32)
