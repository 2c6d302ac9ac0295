"""What numbers a generated tensor holds: ranges in which an operator's answer is well defined."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collage_core.formats import Array

__all__ = ["ABOVE_ONE", "ANY", "DISTINCT", "INSIDE_ONE", "NONZERO", "POSITIVE", "SMALL", "Domain"]

_STEP = 1 / 64
"""Floats lie between the multiples of this, so that rounding errors carry none over an integer or a half."""


@dataclass(frozen=True, slots=True)
class Domain:
    """Numbers between `low` and `high` that are at least `away` from zero; `distinct`: no two alike.

    Integers are the whole numbers among them, without the negative ones where the dtype has none.
    """

    low: float = -2.0
    high: float = 2.0
    away: float = 0.0
    distinct: bool = False

    def holds(self, array: Array) -> bool:
        """Whether every element lies within."""
        if array.dtype == bool:
            return not self.distinct
        numbers = array.astype(np.float64)
        if not array.size:
            return True
        if not np.isfinite(numbers).all() or numbers.min() < self.low or numbers.max() > self.high:
            return False
        if self.away and np.abs(numbers).min() < self.away:
            return False
        if not self.distinct:
            return True
        gaps = np.diff(np.sort(numbers, axis=None))
        return gaps.size == 0 or bool(gaps.min() > 1e-2)

    def sample(self, rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Array:
        """An array of such numbers. Distinct ones may leave the range, if they are many."""
        size = int(np.prod(shape, dtype=np.int64))
        kind = np.dtype(dtype)
        if kind.kind == "b":
            return rng.integers(0, 2, shape).astype(bool)
        if self.distinct:
            first = 0 if kind.kind == "u" else -(size // 2)
            order = rng.permutation(size).reshape(shape) + first
            return (order * (1 if kind.kind in "iu" else _STEP)).astype(kind)
        if kind.kind in "iu":
            least = 0.0 if kind.kind == "u" else self.low
            numbers = np.arange(np.ceil(max(self.low, least)), np.floor(self.high) + 1)
            numbers = numbers[np.abs(numbers) >= self.away]
            return rng.choice(numbers, shape).astype(kind)
        count = int((self.high - self.low) / _STEP)
        numbers = self.low + (np.arange(count) + 0.5) * _STEP
        numbers = numbers[np.abs(numbers) >= self.away + _STEP]
        found = rng.choice(numbers, shape)
        if kind != np.float16:
            found = found + rng.uniform(-_STEP / 8, _STEP / 8, shape)
        return np.asarray(found).astype(kind)


ANY = Domain()
SMALL = Domain(0, 3)
POSITIVE = Domain(0.25, 4.0)
NONZERO = Domain(-4.0, 4.0, away=0.5)
INSIDE_ONE = Domain(-0.9, 0.9)
ABOVE_ONE = Domain(1.1, 4.0)
DISTINCT = Domain(-2000, 2000, distinct=True)
