"""Measuring jobs: every misbehaviour costs its own item and says why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from odd_items import PLUGIN, QUICK, item, measured

from collage_core.backend import Variant
from collage_core.costs import ConversionItem, KernelItem, MeasureJob, run_job
from collage_core.costs.processors import Attempt, Processors
from collage_core.costs.record import UNAVAILABLE
from collage_core.formats import channels_last, plain
from collage_core.ir import Graph
from collage_core.target import Target
from collage_core.worker import Worker

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
    ("bad alias", "wrong", "shares the buffer of input 'x'"),
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


def test_what_a_conversion_does_not_round_it_does_not_change(
    stored: tuple[Graph, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though that be less than a type's tolerance, which is for what rounds."""
    shape = (2, 3, 4, 8)
    items = [
        ConversionItem(n, "m", plain(dtype, shape), channels_last(dtype, shape))
        for n, dtype in enumerate(("float32", "bfloat16"))
    ]
    assert [r.status for r in measured(stored, items).values()] == ["ok", "ok"]
    monkeypatch.setenv("COLLAGE_TEST_SCALING_CONVERSION", "1")
    found = measured(stored, items)
    assert [r.status for r in found.values()] == ["wrong", "wrong"]
    assert "output 'm' has error 0.0" in str(found[1].reason)


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
