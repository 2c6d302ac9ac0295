"""Timed runs and what is said about them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median, quantiles

__all__ = ["Samples"]


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
        """Half the 95 % confidence interval of the median, relative to it: 1.57 IQR / sqrt(runs) (McGill,
        Tukey, Larsen 1978).
        """
        if self.runs < 2 or not self.median_ms:
            return math.inf
        return 1.57 * self.spread_ms / math.sqrt(self.runs) / self.median_ms
