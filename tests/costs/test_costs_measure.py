"""Measuring jobs: every misbehaviour costs its own item and says why."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from processes import state_of

from collage_core.backend import Variant, plain_variant
from collage_core.costs import (
    ConversionItem,
    CostRecord,
    KernelItem,
    MeasureJob,
    Policy,
    Recording,
    record,
    run_job,
    synthesise_inputs,
)
from collage_core.costs.job import MeasureItem
from collage_core.costs.measure import Measuring
from collage_core.costs.processors import Attempt, Processors
from collage_core.costs.record import RACED_OUT, UNAVAILABLE
from collage_core.device import Target
from collage_core.errors import CollageError, UnknownBackendError
from collage_core.formats import channels_last, plain
from collage_core.ir import Graph, Subgraph, from_model, save_stored
from collage_core.worker import RemoteError, Worker

SpawningExecutor = partial(ProcessPoolExecutor, 2, multiprocessing.get_context("spawn"))
QUICK = Policy(warmup_runs=1, min_runs=3, max_runs=5, max_seconds=0.1)
PLUGIN, GOOD_PLUGIN = "costs_odd_backend", "costs_faulty_backends"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Graph, Path, Path]:
    """x -> Relu r -> MatMul m (weights) -> Add a (with r's output broadcast) -> y, stored and recorded."""
    weights = np.random.default_rng(0).standard_normal((8, 8), np.float32)
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="r"),
        helper.make_node("MatMul", ["r", "w"], ["m"], name="m"),
        helper.make_node("Add", ["m", "r"], ["y"], name="a"),
    ]
    proto = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 4, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3, 4, 8])],
        [numpy_helper.from_array(weights, "w")],
    )
    graph = from_model(helper.make_model(proto, opset_imports=[helper.make_opsetid("", 18)]))
    folder = tmp_path_factory.mktemp("stored")
    save_stored(graph, folder / "graph")
    record(folder / "graph", synthesise_inputs(graph), folder / "values")
    return graph, folder / "graph", folder / "values"


def item(graph: Graph, index: int, name: str, do: str = "right") -> MeasureItem:
    ids = (graph.node_named(name).id,)
    formats = plain_variant(Subgraph(graph, ids))
    return KernelItem(index, ids, Variant(formats.inputs, formats.outputs, (("do", do),)))


def measured(
    stored: tuple[Graph, Path, Path], items: Sequence[MeasureItem], limit_s: float = 120.0
) -> dict[int, CostRecord]:
    _, graph_path, values_path = stored
    job = MeasureJob(
        graph_path, values_path, "Odd", Target(), QUICK, tuple(items), (PLUGIN,), item_limit_s=limit_s
    )
    assert len(pickle.dumps(job)) < 10_000
    seen: list[int] = []
    records = run_job(job, lambda index, _: seen.append(index))
    assert [i for i, _ in records] == [i.index for i in items]
    assert sorted(seen) == sorted(i.index for i in items)
    return dict(records)


MISBEHAVIOURS = [
    ("raise", "failed", "BackendError: no kernel for this shape"),
    ("decline", "declined", "only a slow kernel for this shape"),
    ("crash", "crashed", "killed by SIGSEGV (segmentation fault)"),
    ("crash at build", "crashed", "string_at"),
    ("exit", "crashed", "exit code 7"),
    ("hang", "timeout", "no answer within 77 s"),
    ("wrong", "wrong", "output 'r' has error 0.01, more than 0.0001 for float32"),
    ("nan", "wrong", "output 'r' has NaN or infinity"),
    ("write nothing", "wrong", "output 'r' has NaN or infinity"),
    ("change input", "wrong", "it changed its input 'x'"),
    ("change input later", "wrong", "it changed its input 'x'"),
    ("overrun", "wrong", "it wrote outside its buffers, behind output 'r'"),
    ("underrun", "wrong", "it wrote outside its buffers, before input 'x'"),
    (
        "far overrun",
        "wrong",
        "it wrote outside its buffers, behind output 'r' (killed by SIGSEGV (segmentation fault))",
    ),
    ("far underrun later", "wrong", "it wrote outside its buffers, before input 'x'"),
    ("far overread", "crashed", "it reads outside its buffers: the worker process died: killed by SIGSEGV"),
    ("late", "wrong", "output 'r' changed after the call had returned"),
    ("late later", "wrong", "output 'r' changed after the call had returned"),
    ("right and then nothing", "wrong", "output 'r' has NaN or infinity"),
    ("crash later", "crashed", "SIGSEGV"),
    ("crash when freed", "crashed", "SIGSEGV"),
    ("right once", "wrong", "output 'r' has error"),
    ("error code", "failed", "error code 42"),
    ("late error code", "failed", "error code 43"),
    ("bad alias", "wrong", "when it shares the buffer of input 'x'"),
]


@pytest.mark.parametrize("do", ["right", "alias"])
def test_what_is_measured_again_starts_from_its_inputs(
    stored: tuple[Graph, Path, Path], monkeypatch: pytest.MonkeyPatch, do: str
) -> None:
    monkeypatch.setattr(Processors, "attempts", lambda *_, **__: map(Attempt, (0, 1)))
    found = measured(stored, [item(stored[0], 0, "r", do)])[0]
    assert found.ok, found.reason
    assert found.details["retaken"] == 1


def test_what_was_moved_to_the_end_says_so(
    stored: tuple[Graph, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def attempts(processors: Processors, worker: Worker, *, as_it_comes: bool) -> Iterator[Attempt]:
        yield Attempt(3, moved=True)

    monkeypatch.setattr(Processors, "attempts", attempts)
    found = measured(stored, [item(stored[0], 0, "r")])[0]
    assert found.ok, found.reason
    assert found.details["moved"] is True


def test_wrong_numbers_are_not_measured_again(
    stored: tuple[Graph, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Processors, "attempts", lambda *_, **__: map(Attempt, (0, 1)))
    found = measured(stored, [item(stored[0], 0, "r", "wrong")])[0]
    assert found.status == "wrong"
    assert found.details["retaken"] == 0


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


@pytest.mark.ci
def test_every_misbehaviour_costs_its_own_item_only(
    stored: tuple[Graph, Path, Path], hanging_clock: None
) -> None:
    graph = stored[0]
    bad = [item(graph, k, "r", do) for k, (do, _, _) in enumerate(MISBEHAVIOURS)]
    good = [item(graph, k, "r") for k in range(100, 100 + len(bad), 4)]
    mixed = [i for k, g in enumerate(good) for i in (*bad[4 * k : 4 * k + 4], g)]
    records = measured(stored, mixed, limit_s=77.0)
    for k, (do, status, reason) in enumerate(MISBEHAVIOURS):
        found = records[k]
        assert found.status == status, (do, found)
        assert found.reason is not None
        assert reason in found.reason, (do, found.reason)
        assert found.median_ms is None
        assert not found.ok
    assert all(records[i.index].ok for i in good)


@pytest.mark.parametrize("do", ["right", "nearly right", "alias", "print", "environment"])
@pytest.mark.parametrize("name", ["r", "m", "a"])
def test_what_is_right_is_timed(stored: tuple[Graph, Path, Path], do: str, name: str) -> None:
    found = measured(stored, [item(stored[0], 5, name, do)])[5]
    assert found.ok, found
    assert found.median_ms is not None
    assert found.spread_ms is not None
    assert 0 < found.runs * found.median_ms / 1e3 < found.seconds
    assert found.spread_ms >= 0
    assert QUICK.min_runs <= found.runs <= QUICK.max_runs
    assert found.error is not None
    assert found.error < 1e-5
    assert (found.error > 1e-7) == (do == "nearly right")
    assert found.seconds > 0
    assert found.details["workspace_bytes"] == 256


def test_conversions_are_measured(stored: tuple[Graph, Path, Path]) -> None:
    shape = (2, 3, 4, 8)
    to = channels_last("float32", shape)
    from_ = plain("float32", shape)
    half = plain("float16", shape)
    items = [
        ConversionItem(0, "m", from_, to),
        ConversionItem(1, "x", to, from_),
        ConversionItem(2, "x", from_, half),
    ]
    records = measured(stored, items)
    assert records[0].ok
    assert records[1].ok
    assert records[0].error == records[1].error == 0
    assert records[2].status == "declined"


def test_layouts_reach_the_kernel(stored: tuple[Graph, Path, Path]) -> None:
    graph = stored[0]
    ids = (graph.node_named("r").id,)
    last = channels_last("float32", (2, 3, 4, 8))
    items = [KernelItem(0, ids, Variant((last,), (plain("float32", (2, 3, 4, 8)),)))]
    assert measured(stored, items)[0].ok


def test_what_the_backend_declines_is_not_built(
    stored: tuple[Graph, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLAGE_TEST_DECLINED", "Relu,Add")
    graph = stored[0]
    records = measured(stored, [item(graph, 0, "r", "crash"), item(graph, 1, "m"), item(graph, 2, "a")])
    assert [records[i].status for i in range(3)] == ["declined", "ok", "declined"]
    assert records[0].reason == "r: not today"


def test_a_crash_of_the_batch_question_costs_nobody(
    stored: tuple[Graph, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLAGE_TEST_DECLINED", "!")
    records = measured(stored, [item(stored[0], 0, "r"), item(stored[0], 1, "m")])
    assert records[0].ok
    assert records[1].ok


def test_a_crash_that_an_earlier_item_caused_is_not_held_against_the_later(
    stored: tuple[Graph, Path, Path],
) -> None:
    records = measured(stored, [item(stored[0], 0, "r", "poison"), item(stored[0], 1, "m")])
    assert records[0].ok
    assert records[1].ok


def test_a_session_that_cannot_open_says_nothing_about_the_items(
    stored: tuple[Graph, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Worker] = []

    def start(*args: Any, **kwargs: Any) -> Worker:
        started.append(Worker(*args, **kwargs))
        return started[-1]

    monkeypatch.setattr("collage_core.costs.host.Worker", start)
    graph, graph_path, values_path = stored
    items = tuple(item(graph, k, "r") for k in range(50))
    job = MeasureJob(graph_path, values_path / "no", "odd", Target(), QUICK, items, (PLUGIN,))
    records = run_job(job)
    assert len(started) == 1, "nobody tries again"
    assert all(r.status == UNAVAILABLE and "no recorded values" in (r.reason or "") for _, r in records)


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


def test_a_leaking_kernel_does_not_use_up_the_limit_of_the_next(stored: tuple[Graph, Path, Path]) -> None:
    graph, graph_path, values_path = stored
    items = tuple(item(graph, k, "r", "leak") for k in range(4))
    limit = 1 << 30
    job = MeasureJob(
        graph_path, values_path, "odd", Target(), QUICK, items, (PLUGIN,), memory_limit_bytes=limit
    )
    assert all(r.ok for _, r in run_job(job))


def test_allocation_without_end_is_stopped_at_the_limit(stored: tuple[Graph, Path, Path]) -> None:
    graph, graph_path, values_path = stored
    items = (item(graph, 0, "r", "allocate"), item(graph, 1, "r"))
    job = MeasureJob(
        graph_path, values_path, "odd", Target(), QUICK, items, (PLUGIN,), memory_limit_bytes=500 << 20
    )
    records = dict(run_job(job))
    assert records[0].status == "crashed"
    assert "it used more than 500 MiB of memory" in (records[0].reason or "")
    assert records[1].ok


def test_a_backend_that_only_hangs_is_not_waited_for_without_end(
    stored: tuple[Graph, Path, Path], hanging_clock: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = stored[0]
    items = [
        item(graph, 0, "r"),
        item(graph, 1, "r", "nan"),
        *(item(graph, k, "r", "hang") for k in range(2, 6)),
    ]
    assert [r.status for r in measured(stored, items, limit_s=77.0).values()][2:] == ["timeout"] * 4
    monkeypatch.setenv("COLLAGE_TEST_HANGING", "1")
    records = measured(stored, [item(graph, k, "r") for k in range(40)], limit_s=77.0)
    assert [r.status for r in records.values()] == ["timeout"] * 3 + [UNAVAILABLE] * 37
    assert records[3].reason == "not tried: the first 3 all gave no answer within 77 s"


def test_a_conversion_that_crashes_costs_no_kernel(
    stored: tuple[Graph, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLAGE_TEST_CRASHING_CONVERSION", "1")
    graph, graph_path, values_path = stored
    shape = (2, 3, 4, 8)
    items = (
        item(graph, 0, "r"),
        ConversionItem(1, "m", plain("float32", shape), channels_last("float32", shape)),
        item(graph, 2, "m"),
    )
    policy = replace(QUICK, evict_bytes=1 << 20)
    job = MeasureJob(graph_path, values_path, "odd", Target(), policy, items, (PLUGIN,))
    assert [r.status for _, r in run_job(job)] == ["ok", "crashed", "ok"]


def test_a_backend_that_cannot_name_its_environment_costs_itself(
    stored: tuple[Graph, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLAGE_TEST_ENVIRONMENT", "raise")
    found = measured(stored, [item(stored[0], 0, "r")])[0]
    assert found.status == UNAVAILABLE
    assert "RuntimeError: no licence" in (found.reason or "")


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
