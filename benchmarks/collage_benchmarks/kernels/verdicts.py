"""Which cases are as fast as they have to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["BANDWIDTH_KINDS", "Limits", "bandwidth_miss", "torch_miss"]

BANDWIDTH_KINDS = frozenset({"elementwise", "broadcast", "transpose", "concat", "pooling"})
"""Kinds of cases that are to run at a copy's pace when their tensors are larger than the caches."""


@dataclass(frozen=True, slots=True)
class Limits:
    """copy_share: of a copy's bandwidth, at least. torch_ratio: times the best of torch, at most; below
    `short_us` of that, `torch_us` more than it.
    """

    copy_share: float = 0.6
    torch_ratio: float = 1.1
    short_us: float = 50.0
    torch_us: float = 5.0


def bandwidth_miss(ours_gb_s: float, copy_gb_s: float, limits: Limits) -> str | None:
    """Why a case that is to run at a copy's pace does not; None if it does."""
    share = ours_gb_s / copy_gb_s
    return None if share >= limits.copy_share else f"{share:.0%} of a copy's bandwidth"


def torch_miss(ours_us: float, torch_us: Mapping[str, float], limits: Limits) -> str | None:
    """Why a case is slower than it may be beside torch; None if it is not.

    torch_us: by name; not empty.
    """
    name, best_us = min(torch_us.items(), key=lambda t: t[1])
    short = best_us < limits.short_us
    most_us = best_us + limits.torch_us if short else best_us * limits.torch_ratio
    if ours_us <= most_us:
        return None
    excess = f"{ours_us - best_us:.1f} us" if short else f"{ours_us / best_us - 1:.0%}"
    return f"{excess} slower than {name}"
