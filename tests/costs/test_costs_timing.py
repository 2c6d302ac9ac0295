"""Samples, the timing loop, cold caches, and buffers that notice trespass."""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from collage_run.devices.cpu import CpuDevice, CpuQueue
from collage_run.devices.guarded import GuardedBuffers
from hypothesis import given
from hypothesis import strategies as st

from collage_core.backend import Bound
from collage_core.costs import Policy, Samples, cache_sizes_bytes, time_bound
from collage_core.errors import BackendError
from collage_core.formats import Array, Format
from collage_core.worker import Worker, WorkerCrash

pytestmark = pytest.mark.alone

HOT = Policy()
COLD = Policy(evict_bytes=2 * cache_sizes_bytes()[-1])


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=40))
def test_samples_agree_with_numpy(times: list[float]) -> None:
    samples = Samples(tuple(times))
    assert samples.runs == len(times)
    assert samples.median_ms == pytest.approx(np.median(times))
    assert samples.spread_ms == pytest.approx(np.subtract(*np.percentile(times, [75, 25])), abs=1e-9)


@pytest.mark.parametrize("policy", [HOT, COLD], ids=["hot", "cold"])
def test_it_measures_what_the_clock_says(policy: Policy) -> None:
    def bound() -> None:
        end = time.perf_counter() + 2e-3
        while time.perf_counter() < end:
            pass

    # Of a cache of hundreds of MB, putting other data into it takes longer than a kernel may.
    samples = time_bound(bound, replace(policy, max_seconds=10.0))
    assert 2.0 <= min(samples.times_ms) < 2.5
    assert policy.min_runs <= samples.runs + samples.preempted
    assert samples.runs <= policy.max_runs


class _Slow(CpuQueue):
    """A queue whose device would wait for the host, if it were not held."""

    def __init__(self, told: list[str]) -> None:
        self.hold = lambda: told.append("hold")  # type: ignore[method-assign]
        self.mark = lambda: told.append("mark") or 0  # type: ignore[func-returns-value]
        self.synchronize = lambda: told.append("wait")  # type: ignore[method-assign]

    def elapsed_ms(self, first: int, last: int) -> float:
        return 1.0


class _Undisturbed(CpuDevice):
    """Whatever else runs here."""

    def disturbances(self) -> int:
        return 0


def test_a_device_is_held_until_all_that_is_timed_is_queued() -> None:
    told: list[str] = []
    policy = Policy(warmup_runs=1, min_runs=1, max_runs=1)
    samples = time_bound(lambda: told.append("run"), policy, device=_Undisturbed(), queue=_Slow(told))
    assert samples.times_ms == (1.0,)
    assert told == ["hold", "mark", "run", "mark", "wait"] * 2


def test_threads_that_waited_for_a_processor_tell_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collage_run.devices.cpu._TASKS", str(tmp_path))
    monkeypatch.setattr(
        "collage_run.devices.cpu.resource.getrusage", lambda who: SimpleNamespace(ru_nivcsw=5)
    )

    def count(*waited_ns: int) -> int:
        for number, ns in enumerate(waited_ns):
            (tmp_path / str(number)).mkdir(exist_ok=True)
            (tmp_path / str(number) / "schedstat").write_text(f"123456789 {ns} 42\n")
        (tmp_path / "7").mkdir(exist_ok=True)  # it has ended
        return CpuDevice().disturbances()

    assert count(300_000, 0) == 5
    assert count(300_000, 4_100_000) == 9
    monkeypatch.setattr("collage_run.devices.cpu._TASKS", str(tmp_path / "nowhere"))
    assert count() == 5


def test_a_slow_run_is_timed_once_or_twice() -> None:
    calls: list[int] = []

    def slow() -> None:
        calls.append(1)
        time.sleep(0.3)

    samples = time_bound(slow, Policy(max_seconds=0.2))
    assert samples.runs == 1
    assert len(calls) == 2
    assert samples.median_ms >= 300


def test_runs_stop_at_the_limits() -> None:
    random = np.random.default_rng(0)

    def noisy() -> None:
        time.sleep(random.choice([0.0001, 0.004]))

    many = time_bound(noisy, Policy(max_seconds=60, max_runs=40))
    assert many.runs == 40
    short = time_bound(noisy, Policy(max_seconds=0.05, max_runs=10_000))
    assert short.runs < 200


def test_tiny_runs_are_batched_when_hot_only() -> None:
    calls = 0

    def tiny() -> None:
        nonlocal calls
        calls += 1

    hot = time_bound(tiny, HOT)
    assert calls > 20 * hot.runs
    assert hot.median_ms < 1e-3
    calls = 0
    cold = time_bound(tiny, COLD)
    assert calls % 3 == 0, "two runs before each that is timed"
    assert calls >= 3 * (cold.runs + COLD.warmup_runs)


@pytest.mark.parametrize("policy", [HOT, COLD], ids=["hot", "cold"])
@pytest.mark.parametrize("failing_call", [0, 5])
def test_an_error_code_of_any_run_is_an_error(policy: Policy, failing_call: int) -> None:
    codes = iter([0] * failing_call + [5] + [0] * 1_000_000)
    assert gc.isenabled()
    with pytest.raises(BackendError, match="error code 5"):
        time_bound(lambda: next(codes), policy)
    assert gc.isenabled()


def test_weights_are_cold_and_activations_are_not() -> None:
    size = min(2 << 20, cache_sizes_bytes()[-1] // 8)
    random = np.random.default_rng(0)
    lines = random.permutation(size // 4 // 16) * 16
    result: Array = np.empty(lines.size, np.float32)

    def gather_from(data: Array) -> Bound:
        return lambda: np.take(data, lines, out=result, mode="clip") is None

    def drawn() -> Array:
        return random.standard_normal(size // 4, np.float32)

    def fastest_ms(policy: Policy, twin: Bound | None = None) -> float:
        """Of many runs, because whatever else runs on the machine can only make them slower."""
        policy = replace(policy, min_runs=30, max_runs=60, max_seconds=2.0)
        return min(time_bound(kernel, policy, twin).times_ms)

    kernel = gather_from(drawn())
    for _ in range(3):  # others may have the caches for a while
        hot = fastest_ms(HOT)
        data_is_its_own = fastest_ms(COLD, gather_from(drawn()))
        data_is_shared = fastest_ms(COLD)
        if data_is_its_own > 1.5 * hot and data_is_shared < 0.75 * data_is_its_own:
            break
    assert data_is_its_own > 1.5 * hot
    assert data_is_shared < 0.75 * data_is_its_own


def test_a_twin_runs_before_every_cold_run_and_is_not_timed() -> None:
    calls: list[str] = []

    def twin() -> None:
        calls.append("twin")
        time.sleep(2e-3)

    cold = time_bound(lambda: calls.append("timed"), COLD, twin)
    assert calls == ["twin", "twin", "timed"] * (len(calls) // 3)
    assert min(cold.times_ms) < 1.0
    calls.clear()
    time_bound(lambda: calls.append("timed"), HOT, twin)
    assert "twin" not in calls


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=4).flatmap(
        lambda s: st.tuples(st.just(s), st.permutations(range(len(s))))
    )
)
def test_guarded_buffers_notice_a_byte_beside_them(shape_and_layout: tuple[list[int], list[int]]) -> None:
    shape, layout = shape_and_layout
    format = Format.of("int16", shape, layout)
    buffers = GuardedBuffers(protect=False)
    arrays = [buffers.array(shape, format, f"a{k}") for k in range(2)]
    for a in arrays:
        assert a.shape == tuple(shape)
        a[...] = -1
        assert a.size == 0 or a.ctypes.data % 64 == 0
    assert buffers.trespass() is None
    raw = buffers.bytes(10, "raw")
    raw[:] = 7
    assert buffers.trespass() is None
    base = raw.base
    assert isinstance(base, np.ndarray)
    start = raw.ctypes.data - base.ctypes.data
    for place, where in (
        (start - 1, "before raw"),
        (start - 65536, "before raw"),
        (start + 10, "behind raw"),
        (start + 65536, "behind raw"),
    ):
        was = base[place]
        base[place] = 0
        assert buffers.trespass() == where
        base[place] = was
        assert buffers.trespass() is None


@pytest.mark.parametrize(
    ("size_bytes", "place", "outcome"),
    [
        (100, -1, "alive"),
        (100, 100 + 64, "alive"),
        (100, 4096 - 64, "killed by SIGSEGV"),
        (4096, 4096 + 63, "alive"),
        (4096, 4096 + 64, "killed by SIGSEGV"),
        (4096, -4097, "killed by SIGSEGV"),
        (0, 4096, "killed by SIGSEGV"),
    ],
)
def test_guard_regions_may_not_be_touched(size_bytes: int, place: int, outcome: str) -> None:
    with Worker() as worker:
        touch = f"""
import ctypes
from collage_run.devices.guarded import GuardedBuffers
raw = GuardedBuffers().bytes({size_bytes}, "raw")
ctypes.string_at(raw.ctypes.data + {place}, 1)
"""
        if outcome == "alive":
            worker.call(exec, touch)
        else:
            with pytest.raises(WorkerCrash, match=outcome):
                worker.call(exec, touch)


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").is_dir(), reason="no huge pages here")
def test_large_buffers_may_lie_on_huge_pages() -> None:
    """As an executable's arena does; of shared mappings few systems make any."""
    raw = GuardedBuffers().bytes(4 << 20, "raw")
    permissions, flags = _mapping(raw.ctypes.data)
    assert permissions == "rw-p"
    assert "hg" in flags
    raw = GuardedBuffers().bytes(4096, "raw")
    assert "hg" not in _mapping(raw.ctypes.data)[1]


def _mapping(address: int) -> tuple[str, list[str]]:
    """Permissions and flags of the mapping of this process that holds an address (proc(5), smaps)."""
    permissions = ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if "-" in first and not first.endswith(":"):
            start, end = (int(a, 16) for a in first.split("-"))
            permissions = rest[0] if start <= address < end else ""
        elif first == "VmFlags:" and permissions:
            return permissions, rest
    raise AssertionError(f"no mapping holds {address:#x}")
