"""Timed runs and what is said about them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

__all__ = ["Samples", "interquartile_range", "median_uncertainty"]


def interquartile_range(values: Sequence[float]) -> float:
    """0 for a single value."""
    if len(values) < 2:
        return 0.0
    first, _, third = quantiles(values, n=4, method="inclusive")
    return third - first


def median_uncertainty(spread: float, count: int) -> float:
    """How far off a median of `count` values may be whose interquartile range is `spread`, in its unit, when
    it is compared with another that is uncertain as well: 1.57 IQR / sqrt(count). Medians further apart than
    both uncertainties together differ at about the 95 % level (McGill, Tukey, Larsen 1978).
    """
    return 1.57 * spread / math.sqrt(max(count, 1))


@dataclass(frozen=True, slots=True)
class Samples:
    """Times of single runs, in the order in which they were taken.

    preempted: how many runs were disturbed (`Device.disturbances`); `time_bound` says what became of them.
    is_disturbed: whether those runs are among the times, because too few others were.
    """

    times_ms: tuple[float, ...]
    preempted: int = 0
    is_disturbed: bool = False

    @property
    def runs(self) -> int:
        return len(self.times_ms)

    @property
    def median_ms(self) -> float:
        return median(self.times_ms)

    @property
    def spread_ms(self) -> float:
        """Interquartile range; 0 for a single run."""
        return interquartile_range(self.times_ms)

    @property
    def relative_uncertainty(self) -> float:
        """`median_uncertainty`, relative to the median."""
        if self.runs < 2 or not self.median_ms:
            return math.inf
        return median_uncertainty(self.spread_ms, self.runs) / self.median_ms
