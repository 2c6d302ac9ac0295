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
