"""Measuring jobs as a whole: who carries them, which workers they leave, and the values recorded for them."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from odd_items import PLUGIN, QUICK, item, measured
from onnx import TensorProto, helper
from processes import state_of

from collage_core.costs import (
    CostRecord,
    KernelItem,
    MeasureJob,
    Policy,
    Recording,
    record,
    run_job,
    synthesise_inputs,
)
from collage_core.costs.measure import Measuring
from collage_core.costs.record import RACED_OUT
from collage_core.errors import CollageError, UnknownBackendError
from collage_core.ir import Graph, from_model, save_stored
from collage_core.target import Target
from collage_core.worker import RemoteError

pytestmark = pytest.mark.ci

SpawningExecutor = partial(ProcessPoolExecutor, 2, multiprocessing.get_context("spawn"))
GOOD_PLUGIN = "costs_faulty_backends"


@pytest.mark.alone
@pytest.mark.parametrize("interrupted", [False, True])
def test_a_job_that_looks_at_the_processors_leaves_nothing_behind(
    stored: tuple[Graph, Path, Path], monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    monkeypatch.setenv("COLLAGE_SETTLING_LIMIT_S", "0.5")
    before = _children(), os.sched_getaffinity(0)
    if interrupted:
        with pytest.raises(KeyboardInterrupt):
            _interrupted(stored)
    else:
        assert all(r.ok for r in measured(stored, [item(stored[0], k, "r") for k in range(3)]).values())
    assert (_children(), os.sched_getaffinity(0)) == before


def _interrupted(stored: tuple[Graph, Path, Path]) -> None:
    def interrupt(index: int, record: CostRecord) -> None:
        raise KeyboardInterrupt

    job = MeasureJob(stored[1], stored[2], "Odd", Target(), QUICK, (item(stored[0], 0, "r"),), (PLUGIN,))
    run_job(job, interrupt)


@pytest.mark.parametrize("executor", [ThreadPoolExecutor, SpawningExecutor])
def test_any_executor_carries_jobs(
    stored: tuple[Graph, Path, Path], executor: Callable[[], Executor]
) -> None:
    graph, graph_path, values_path = stored
    items = tuple(item(graph, k, "r", "crash" if k == 1 else "right") for k in range(3))
    job = MeasureJob(graph_path, values_path, "odd", Target(), QUICK, items, (PLUGIN,))
    with executor() as pool:
        results = [f.result() for f in [pool.submit(run_job, job) for _ in range(2)]]
    for records in results:
        assert [r.status for _, r in records] == ["ok", "crashed", "ok"]


def test_an_unknown_backend_is_refused_at_once(stored: tuple[Graph, Path, Path]) -> None:
    with pytest.raises(UnknownBackendError, match="'nobody'"):
        run_job(MeasureJob(stored[1], stored[2], "nobody", Target(), QUICK, ()))


def test_an_interrupt_between_items_keeps_what_was_measured(stored: tuple[Graph, Path, Path]) -> None:
    graph, graph_path, values_path = stored
    kept = []

    def interrupt(index: int, cost: CostRecord) -> None:
        kept.append(cost.status)
        if index == 1:
            raise KeyboardInterrupt

    items = tuple(item(graph, k, "r") for k in range(4))
    with pytest.raises(KeyboardInterrupt):
        run_job(MeasureJob(graph_path, values_path, "odd", Target(), QUICK, items, (PLUGIN,)), interrupt)
    assert kept == ["ok", "ok"]


def _job(stored: tuple[Graph, Path, Path], backend: str, *dos: str, policy: Policy = QUICK) -> MeasureJob:
    graph, graph_path, values_path = stored
    items = tuple(item(graph, k, "r", do) for k, do in enumerate(dos))
    return MeasureJob(graph_path, values_path, backend, Target(), policy, items, (PLUGIN, GOOD_PLUGIN))


def _children() -> set[int]:
    """Of all threads of this process."""
    return {int(pid) for t in Path("/proc/self/task").glob("*/children") for pid in t.read_text().split()}


@pytest.mark.alone
def test_a_worker_serves_one_job_after_the_other(stored: tuple[Graph, Path, Path]) -> None:
    before = _children()
    with closing(Measuring()) as measuring:
        assert _children() == before, "none is started for nothing"
        assert [r.status for _, r in measuring.run(_job(stored, "odd", "right"))] == ["ok"]
        (first,) = _children() - before
        assert state_of(first) == "T", "until the next job"
        assert [r.status for _, r in measuring.run(_job(stored, "odd", "right", "nan", "decline"))] == [
            "ok",
            "wrong",
            "declined",
        ]
        (after_nan,) = _children() - before
        assert after_nan != first, "what has spoilt a worker is not held against the next"
        measuring.run(_job(stored, "good", "right"))
        assert len(_children() - before) == 2, "each backend has its own"
        assert all(state_of(pid) == "T" for pid in _children() - before)
        again = measuring.run(_job(stored, "odd", "right"))
        assert [r.status for _, r in again] == ["ok"]
        assert after_nan in _children() - before
        assert len(_children() - before) == 2
    assert _children() == before
    measuring.close()  # once more


@pytest.mark.alone
def test_workers_that_will_be_needed_are_started_together(stored: tuple[Graph, Path, Path]) -> None:
    before = _children()
    jobs = [_job(stored, backend, "right") for backend in ("odd", "good")]
    with closing(Measuring()) as measuring:
        measuring.start(jobs[:1])
        assert _children() == before, "alone it is started when it is run"
        measuring.start(jobs)
        started = _children() - before
        assert len(started) == 2
        assert all(state_of(pid) == "T" for pid in started)
        for job in jobs:
            assert [r.status for _, r in measuring.run(job)] == ["ok"]
        assert _children() - before == started
    assert _children() == before


@pytest.mark.alone
def test_a_worker_that_died_is_replaced_for_the_next_job(stored: tuple[Graph, Path, Path]) -> None:
    before = _children()
    with closing(Measuring()) as measuring:
        measuring.run(_job(stored, "odd", "right"))
        (first,) = _children() - before
        os.kill(first, signal.SIGKILL)
        assert [r.status for _, r in measuring.run(_job(stored, "odd", "right"))] == ["ok"]
        assert first not in _children() - before
    assert _children() == before


@pytest.mark.alone
def test_an_interrupted_job_leaves_a_worker_for_the_next_or_none(stored: tuple[Graph, Path, Path]) -> None:
    def interrupt(index: int, cost: CostRecord) -> None:
        raise KeyboardInterrupt

    before = _children()
    with closing(Measuring()) as measuring:
        with pytest.raises(KeyboardInterrupt):
            measuring.run(_job(stored, "odd", "right", "right"), interrupt)
        (worker,) = _children() - before
        assert state_of(worker) == "T"
        assert [r.status for _, r in measuring.run(_job(stored, "odd", "right"))] == ["ok"]
        assert _children() - before == {worker}
    assert _children() == before


@pytest.mark.parametrize("enough_ms", [0.0, 1e9])
def test_who_is_far_behind_is_raced_out(stored: tuple[Graph, Path, Path], enough_ms: float) -> None:
    policy = Policy(warmup_runs=1, min_runs=15, max_runs=20, max_seconds=60.0)
    job = _job(stored, "odd", "right", policy=policy)
    job = replace(
        job, items=tuple(replace(i, enough_ms=enough_ms) for i in job.items if isinstance(i, KernelItem))
    )
    ((_, found),) = run_job(job)
    assert found.ok
    assert found.median_ms is not None
    assert found.details.get(RACED_OUT, False) == (enough_ms == 0.0)
    assert (found.runs < policy.min_runs) == (enough_ms == 0.0)


def test_a_recording_holds_every_value(stored: tuple[Graph, Path, Path]) -> None:
    graph, _, values_path = stored
    recording = Recording(values_path)
    assert set(recording.names) == {"x", "r", "m", "y"}
    assert "w" not in recording
    x, w = recording.load("x"), graph.constants["w"]
    assert isinstance(x, np.memmap)
    assert not x.flags.writeable
    np.testing.assert_array_equal(recording.load("r"), np.maximum(x, 0))
    np.testing.assert_allclose(
        recording.load("y"), np.maximum(x, 0) @ w + np.maximum(x, 0), rtol=1e-5, atol=1e-5
    )
    with pytest.raises(CollageError, match="'w' was not recorded"):
        recording.load("w")


def test_recording_refuses_bad_inputs(stored: tuple[Graph, Path, Path], tmp_path: Path) -> None:
    with pytest.raises(RemoteError, match=r"'x' must be float32\[2,3,4,8\]; it is missing"):
        record(stored[1], {}, tmp_path)
    with pytest.raises(RemoteError, match="it is float64"):
        record(stored[1], {"x": np.zeros((2, 3, 4, 8))}, tmp_path)
    with pytest.raises(CollageError, match="no recorded values"):
        Recording(tmp_path)


def test_recording_keeps_odd_types_and_shapes(tmp_path: Path) -> None:
    proto = helper.make_graph(
        [
            helper.make_node("Cast", ["s"], ["b"], name="to bfloat16", to=TensorProto.BFLOAT16),
            helper.make_node("Cast", ["b"], ["y"], name="back", to=TensorProto.FLOAT),
            helper.make_node("Identity", ["e"], ["a/b: c"], name="empty"),
        ],
        "odd",
        [
            helper.make_tensor_value_info("s", TensorProto.FLOAT, []),
            helper.make_tensor_value_info("e", TensorProto.INT64, [0, 3]),
        ],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, []),
            helper.make_tensor_value_info("a/b: c", TensorProto.INT64, [0, 3]),
        ],
    )
    model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", 18)])
    onnx.checker.check_model(model)
    graph = from_model(model)
    save_stored(graph, tmp_path / "graph")
    inputs = synthesise_inputs(graph)
    recording = record(tmp_path / "graph", inputs, tmp_path / "values")
    assert str(recording.load("b").dtype) == "bfloat16"
    np.testing.assert_allclose(recording.load("b").astype(np.float32), inputs["s"], rtol=1e-2)
    assert recording.load("a/b: c").shape == (0, 3)
