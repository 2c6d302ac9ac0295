"""Timing one bound kernel in this process."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from functools import partial

from collage_core import clock
from collage_core.backend import Bound
from collage_core.costs.record import Policy
from collage_core.costs.samples import Samples
from collage_core.devices import IMMEDIATE, CpuDevice, Device, Queue
from collage_core.errors import BackendError
from collage_core.formats import CPU

__all__ = ["time_bound"]

_BATCH_NS = 100_000
"""Runs shorter than this are timed several at a time when caches are hot: reading the clock costs 0.05 us."""
_LONGEST_BATCH = 10_000
_UNDISTURBED_RUNS = 5
_TWIN_RUNS = 2
_RACED_RUNS = 3
_HOST = CpuDevice()


def time_bound(
    bound: Bound,
    policy: Policy,
    twin: Bound | None = None,
    enough_ms: float = math.inf,
    *,
    device: Device = _HOST,
    queue: Queue = IMMEDIATE,
) -> Samples:
    """Run `bound` until its median is known to `policy.target_relative_spread`, or `max_runs` or
    `max_seconds` are used up. At least one run is timed, even where it alone takes longer than max_seconds.

    With `policy.evict_bytes`, caches are as in the executable before each run. That much other memory is read
    (64 MiB take under 2 ms, so that the library's threads still spin as they do between two kernels), then
    `twin` runs: the same kernel with the same buffers and constants of its own. So activations lie where the
    library's threads have left them, and constants are as cold as between two runs of the executable. One run
    of the twin is not enough: a cache through which much has streamed takes in other data reluctantly. None
    for kernels without constants to speak of, which are their own twins. Otherwise runs follow each other,
    the shortest in batches whose mean is one sample.

    device, queue: where `bound` works. What it takes is what lies between two marks of the queue, so that of
    what is queued only the device's own time counts.

    enough_ms: a kernel of which not one of three runs takes less is not run any more: a rival is far faster.

    A run during which the device was disturbed says nothing about the kernel. On the CPU another process took
    a processor away from this one: a team of spinning threads then waits for the next timer tick, 4 ms or
    more. Or this process was stopped (`clock`). Such a run is left out as long as enough others remain, and
    counted in `Samples.preempted`; `Samples.is_disturbed` where they do not.

    BackendError if a run returns an error code.
    """
    run_ns = partial(_run_ns, queue)
    prepare = _cooler(twin or bound, policy, device, queue) if policy.evict_bytes else _nothing

    def disturbances() -> int:
        return device.disturbances() + clock.pauses()

    collecting = gc.isenabled()
    gc.disable()
    try:
        longest_batch = _LONGEST_BATCH if device.name == CPU else 1  # it is held for one launch
        return _time(partial(run_ns, bound), prepare, disturbances, policy, enough_ms, longest_batch)
    finally:
        if collecting:
            gc.enable()


def _time(
    run_ns: Callable[[int], float],
    prepare: Callable[[], object],
    disturbances: Callable[[], int],
    policy: Policy,
    enough_ms: float,
    longest_batch: int,
) -> Samples:
    start_ns = clock.perf_counter_ns()
    deadline_ns = start_ns + policy.max_seconds * 1e9
    batch = 1
    for _ in range(policy.warmup_runs):
        prepare()
        once_ns = run_ns(1)
        if not policy.evict_bytes:
            batch = min(max(1, round(_BATCH_NS / max(once_ns, 1))), longest_batch)
        if clock.perf_counter_ns() > deadline_ns - once_ns:
            break
    times_ms: list[float] = []
    preempted_ms: list[float] = []
    while True:
        prepare()
        before = disturbances()
        time_ms = run_ns(batch) / 1e6
        (times_ms if disturbances() == before else preempted_ms).append(time_ms)
        late = clock.perf_counter_ns() > deadline_ns
        if late or len(times_ms) >= policy.max_runs or _is_far_behind(times_ms, enough_ms):
            return _undisturbed(times_ms, preempted_ms)
        if len(times_ms) >= policy.min_runs:
            samples = Samples(tuple(times_ms), len(preempted_ms))
            if samples.relative_uncertainty <= policy.target_relative_spread:
                return samples


def _is_far_behind(times_ms: list[float], enough_ms: float) -> bool:
    return len(times_ms) == _RACED_RUNS and min(times_ms) > enough_ms


def _undisturbed(times_ms: list[float], preempted_ms: list[float]) -> Samples:
    """The runs that nothing disturbed, if they are enough to speak for themselves; else all."""
    if not preempted_ms or len(times_ms) >= _UNDISTURBED_RUNS:
        return Samples(tuple(times_ms), len(preempted_ms))
    return Samples(tuple(times_ms + preempted_ms), len(preempted_ms), is_disturbed=True)


def _run_ns(queue: Queue, bound: Bound, batch: int) -> float:
    """Mean time of `batch` runs."""
    mark = queue.mark
    paused_ns = clock.paused_ns()
    queue.hold()
    if batch == 1:
        before = mark()
        code = bound()
        after = mark()
    else:
        code = None
        before = mark()
        for _ in range(batch):
            code = bound() or code
        after = mark()
    queue.synchronize()
    if code:
        raise BackendError(f"the kernel returned error code {code!r}")
    elapsed_ns = queue.elapsed_ms(before, after) * 1e6
    paused_ns = clock.paused_ns() - paused_ns
    # Another device goes on meanwhile; and a pause may lie between two looks at clocks, not in the run.
    return (elapsed_ns - paused_ns if queue is IMMEDIATE and elapsed_ns > paused_ns else elapsed_ns) / batch


def _nothing() -> None:
    return None


def _cooler(twin: Bound, policy: Policy, device: Device, queue: Queue) -> Callable[[], object]:
    device.evict(policy.evict_bytes, queue)  # once before it is timed: it may have to make room

    def cool() -> None:
        device.evict(policy.evict_bytes, queue)
        for _ in range(_TWIN_RUNS):
            if _run_ns(queue, twin, 1) > policy.max_seconds * 1e9:
                break  # so long a run leaves nothing of what was there before

    return cool
