"""What a genome is, and what its evaluation has shown."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Fitness", "Genome"]

Genome = tuple[int, ...]
"""One digit per group: 0 keeps it, k gives it to library k."""


@dataclass(frozen=True, slots=True)
class Fitness:
    """The measured latency of a genome, or the reason why it has none.

    median_ms: None where it could not be built or answered wrongly; then `reason` says why. uncertainty_ms:
    by how much the median may be off, either way, whatever others are off by. seconds: what the evaluation
    took of the budget.
    """

    median_ms: float | None
    uncertainty_ms: float = 0.0
    seconds: float = 0.0
    reason: str | None = None

    def __post_init__(self) -> None:
        numbers = (self.median_ms or 0.0, self.uncertainty_ms, self.seconds)
        if not all(0.0 <= number < math.inf for number in numbers):
            raise ValueError(f"times must be finite and not negative: {self}")

    def beats(self, other: Fitness) -> bool:
        """Whether it is faster by more than their difference may be off (both uncertainties in quadrature,
        for they are independent), or has a latency and the other none.

        Neither beating the other is a tie, and ties are not transitive: a is as good as b, b as c, and yet a
        may beat c.
        """
        if self.median_ms is None or other.median_ms is None:
            return self.median_ms is not None and other.median_ms is None
        return other.median_ms - self.median_ms > math.hypot(self.uncertainty_ms, other.uncertainty_ms)
