"""How long an optimization may take, and how much of that is gone."""

from __future__ import annotations

import math
from collections.abc import Callable

from collage_core import clock

__all__ = ["Budget"]


class Budget:
    """Seconds from now on; None for no limit. clock: seconds, from anywhere."""

    def __init__(self, limit_s: float | None = None, clock: Callable[[], float] = clock.monotonic) -> None:
        self.limit_s = limit_s
        self._clock = clock
        self._begun_s = clock()

    @property
    def spent_s(self) -> float:
        return self._clock() - self._begun_s

    def left_s(self, share: float = 1.0) -> float:
        """Seconds until `share` of it is gone; inf without a limit, never below 0."""
        return math.inf if self.limit_s is None else max(0.0, share * self.limit_s - self.spent_s)

    def is_over(self, share: float = 1.0) -> bool:
        return self.left_s(share) <= 0.0
