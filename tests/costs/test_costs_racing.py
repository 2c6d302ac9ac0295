"""Races: a kernel that is far slower than a rival is not timed any further than it takes to see that."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from collage_run.devices import CpuDevice, CpuQueue

from collage_core.backend import Bound
from collage_core.costs import Policy
from collage_core.costs.timing import time_bound

_POLICY = Policy(warmup_runs=2, min_runs=10, max_runs=20, max_seconds=1e9)


class _Clock:
    """Time passes while kernels run, and nowhere else. preempted: numbers of the timed runs of which the
    system says that another process has had the processor.
    """

    def __init__(self) -> None:
        self.now_ns = 0
        self.runs = 0
        self.preempted: set[int] = set()

    def kernel(self, *times_ms: float) -> Bound:
        """Takes these one after the other, the last one ever after; the warm-up counts."""
        left = list(times_ms)

        def run() -> None:
            self.runs += 1
            self.now_ns += round((left.pop(0) if len(left) > 1 else left[0]) * 1e6)

        return run

    def preemptions(self) -> int:
        return sum(number < self.runs for number in self.preempted)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr("collage_core.clock.perf_counter_ns", lambda: clock.now_ns)
    monkeypatch.setattr(CpuQueue, "mark", lambda queue: clock.now_ns)
    monkeypatch.setattr(CpuDevice, "disturbances", lambda device: clock.preemptions())
    return clock


def test_who_is_far_behind_leaves_after_three_runs(clock: _Clock) -> None:
    samples = time_bound(clock.kernel(2.0), _POLICY, enough_ms=1.0)
    assert samples.times_ms == (2.0, 2.0, 2.0)
    assert clock.runs == _POLICY.warmup_runs + 3


@pytest.mark.parametrize("enough_ms", [2.0, 3.0, math.inf])
def test_who_is_not_is_timed_as_ever(clock: _Clock, enough_ms: float) -> None:
    assert time_bound(clock.kernel(2.0), _POLICY, enough_ms=enough_ms).runs == _POLICY.min_runs


@pytest.mark.parametrize("fast_run", [2, 3, 4])
def test_one_fast_run_of_three_keeps_it_in(clock: _Clock, fast_run: int) -> None:
    """Numbers 2, 3 and 4 are the first that are timed."""
    times_ms = [2.0] * fast_run + [0.9, 2.0]
    assert time_bound(clock.kernel(*times_ms), _POLICY, enough_ms=1.0).runs == _POLICY.min_runs


def test_what_comes_later_is_too_late(clock: _Clock) -> None:
    assert time_bound(clock.kernel(*[2.0] * 5, 0.5), _POLICY, enough_ms=1.0).runs == 3


def test_a_fast_warm_up_run_is_none(clock: _Clock) -> None:
    assert time_bound(clock.kernel(0.5, 0.5, 2.0), _POLICY, enough_ms=1.0).runs == 3


def test_runs_that_were_disturbed_say_nothing(clock: _Clock) -> None:
    """They are slow through no fault of the kernel's: three others decide."""
    clock.preempted = {2, 3, 4}
    times_ms = [1.0, 1.0, 9.0, 9.0, 9.0, 1.0]
    assert time_bound(clock.kernel(*times_ms), _POLICY, enough_ms=2.0).median_ms == 1.0
    clock.runs, clock.preempted = 0, {3}
    samples = time_bound(clock.kernel(9.0), _POLICY, enough_ms=2.0)
    assert (samples.runs, samples.preempted, samples.is_disturbed) == (4, 1, True)
    clock.runs, clock.preempted = 0, set()
    assert not time_bound(clock.kernel(9.0), _POLICY, enough_ms=2.0).is_disturbed


def test_a_device_tells_of_its_own_disturbances(clock: _Clock) -> None:
    """The processor's say nothing of work on another one."""

    class _Throttled(CpuDevice):
        def disturbances(self) -> int:
            return clock.runs > 3

    clock.preempted = {2, 4, 5}
    times_ms = [1.0, 1.0, 1.0, 9.0, 1.0]
    samples = time_bound(clock.kernel(*times_ms), _POLICY, device=_Throttled())
    assert samples.preempted == 1
    assert 9.0 not in samples.times_ms


def test_a_twin_does_not_take_part(clock: _Clock) -> None:
    twin_runs = []
    policy = replace(_POLICY, evict_bytes=64)
    samples = time_bound(clock.kernel(2.0), policy, lambda: twin_runs.append(0.0), enough_ms=1.0)
    assert samples.runs == 3
    assert len(twin_runs) == 2 * (policy.warmup_runs + 3)
