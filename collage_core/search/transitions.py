"""What an executable costs beyond its kernels: the paper's epsilon (section 4.2), but measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Transitions"]


@dataclass(frozen=True, slots=True)
class Transitions:
    """group_ms: by backend, what each of its groups and conversions takes in an executable beyond what it
    takes alone. crossing_ms: by backend, once per value that it produces and some group of another one reads.
    """

    group_ms: Mapping[str, float] = field(default_factory=dict)
    crossing_ms: Mapping[str, float] = field(default_factory=dict)

    def in_executable_ms(self, backend: str, cost_ms: float) -> float:
        """What a group or conversion takes there that takes `cost_ms` alone."""
        return cost_ms + self.group_ms.get(backend, 0.0)

    def crossed_ms(self, source: str, reader: str) -> float:
        """What a value takes in place on its way from one backend to another: a share of each. Who leaves a
        backend pays for both of its own (`crossing_ms`), having entered it for nothing.
        """
        return 0.5 * (self.crossing_ms.get(source, 0.0) + self.crossing_ms.get(reader, 0.0))
