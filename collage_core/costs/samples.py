"""Timed runs and what is said about them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median, quantiles

__all__ = ["Samples", "median_uncertainty_ms"]


def median_uncertainty_ms(spread_ms: float, runs: int) -> float:
    """Half the 95 % confidence interval of a median of `runs` runs whose interquartile range is `spread_ms`:
    1.57 IQR / sqrt(runs) (McGill, Tukey, Larsen 1978).
    """
    return 1.57 * spread_ms / math.sqrt(max(runs, 1))


@dataclass(frozen=True, slots=True)
class Samples:
    """Times of single runs, in the order in which they were taken.

    preempted: how many runs were disturbed by other processes; `time_bound` says what became of them.
    """

    times_ms: tuple[float, ...]
    preempted: int = 0

    @property
    def runs(self) -> int:
        return len(self.times_ms)

    @property
    def median_ms(self) -> float:
        return median(self.times_ms)

    @property
    def spread_ms(self) -> float:
        """Interquartile range; 0 for a single run."""
        if self.runs < 2:
            return 0.0
        first, _, third = quantiles(self.times_ms, n=4, method="inclusive")
        return third - first

    @property
    def median_uncertainty(self) -> float:
        """`median_uncertainty_ms`, relative to the median."""
        if self.runs < 2 or not self.median_ms:
            return math.inf
        return median_uncertainty_ms(self.spread_ms, self.runs) / self.median_ms
