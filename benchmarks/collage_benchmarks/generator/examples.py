"""Cases one at a time, outside of a test: the same ones for the same seed."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from collage_benchmarks.generator.builder import Case

__all__ = ["example"]


def example(strategy: st.SearchStrategy[Case], number: int) -> Case:
    """The case that hypothesis draws for a number.

    Cases of different numbers are independent: in one run hypothesis would vary what it had before.
    """
    found: list[Case] = []

    @seed(number)
    @settings(
        max_examples=2,  # the first is always the simplest
        phases=[Phase.generate],
        database=None,
        deadline=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(case: Case) -> None:
        found.append(case)

    collect()
    return found[-1]
