"""A call that is repeated until a clock can tell how long it took."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import repeat

import numpy as np

from collage_core.costs.check import compare_all
from collage_core.errors import CollageError
from collage_core.formats import Array

__all__ = ["CALLS", "NOTE", "Batch", "call_s", "check"]

CALLS, NOTE = "calls", "note"
"""What a batch tells beside its times, among its outputs."""

_TIMED_S = 200e-6
"""A run is at least that long."""


class Batch:
    """A `Runnable` whose run is as many calls as take 200 us or more.

    Its outputs are what the report needs beside the times (`CALLS`: how many calls a run is; `NOTE`: a line
    about what was called): the answers have been checked where they are, for some are as large as the caches
    are not.
    """

    def __init__(
        self,
        call: Callable[[], object],
        note: str = "",
        within: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """within: makes the context that a run's calls are made in."""
        self._call = call
        self._note = note
        self._within = within
        with within():
            self._calls = max(1, math.ceil(_TIMED_S / call_s(call)))

    def run(self) -> None:
        call = self._call
        with self._within():
            for _ in repeat(None, self._calls):
                call()

    def outputs(self) -> dict[str, Array]:
        return {CALLS: np.array(self._calls), NOTE: np.array(self._note)}


def call_s(call: Callable[[], object], runs: int = 5, least_s: float = 0.02) -> float:
    """Seconds of one call, after warming up for `least_s`: the fastest of `runs` runs of a tenth of that."""
    calls = 0
    start = time.perf_counter()
    while (taken_s := time.perf_counter() - start) < least_s or not calls:
        call()
        calls += 1
    per_run = max(1, round(calls * least_s / taken_s / 10))

    def timed() -> float:
        before = time.perf_counter()
        for _ in repeat(None, per_run):
            call()
        return (time.perf_counter() - before) / per_run

    return min(timed() for _ in range(runs))


def check(answers: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    """CollageError if an answer is not NumPy's."""
    if (reason := compare_all(answers, expected).reason) is not None:
        raise CollageError(reason)
