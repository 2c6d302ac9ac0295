"""Latencies made up for the evolutionary search."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from collage_core.search import Fitness, Genome

__all__ = ["KEEP", "OFFLOAD", "measured", "run_gains_ms"]

Latency = Callable[[Genome], float]


def measured(
    latency_ms: Latency, uncertainty_ms: float = 0.01, seconds: float = 1.0
) -> Callable[[Sequence[Genome]], list[Fitness]]:
    """An evaluation of genomes that finds these latencies."""
    return lambda genomes: [Fitness(latency_ms(g), uncertainty_ms, seconds) for g in genomes]


def run_gains_ms(genome: Genome) -> float:
    """20 ms, where a library costs 0.5 for every run of groups that it gets."""
    # It gains 0.2 on each of groups 4 to 9 and loses 0.3 on every other.
    # No group alone is worth it, nor is the whole.
    starts = sum(a and a != b for a, b in zip(genome, (0, *genome), strict=False))
    gains = sum(0.2 if 4 <= i <= 9 else -0.3 for i, digit in enumerate(genome) if digit)
    return 20.0 + 0.5 * starts - gains


KEEP, OFFLOAD = (0,) * 14, (1,) * 14
"""Fourteen groups, of which the library gets none, or all."""
