"""Compiling ahead: in several processes, before anything is timed, and what goes wrong costs itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from costs_ahead_backend import COMPILES, LOG, compilers, lines
from processes import gone, wait_until

from collage_core.backend import Variant, plain_variant
from collage_core.costs import ConversionItem, KernelItem, MeasureJob, Policy, record, run_job
from collage_core.costs.ahead import AheadCompiler
from collage_core.formats import channels_last, plain
from collage_core.ir import Graph, Subgraph, from_model, save_stored
from collage_core.target import Target

pytestmark = pytest.mark.ci

PLUGIN = "costs_ahead_backend"
QUICK = Policy(warmup_runs=1, min_runs=3, max_runs=3, max_seconds=0.1)
MANY = 60
"""More than are measured without compiling ahead, by two workers fewer than a batch."""
_SHAPE = (2, 3, 4, 8)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Graph, Path, Path]:
    """A Relu, stored and recorded."""
    text = '<ir_version: 10, opset_import: ["" : 20]> g (float[2,3,4,8] x) => (float y) { y = Relu(x) }'
    graph = from_model(onnx.parser.parse_model(text))
    folder = tmp_path_factory.mktemp("stored")
    save_stored(graph, folder / "graph")
    inputs = {"x": np.random.default_rng(0).standard_normal(_SHAPE, np.float32)}
    record(folder / "graph", inputs, folder / "values")
    return graph, folder / "graph", folder / "values"


@pytest.fixture(autouse=True)
def _two_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOG, str(tmp_path / "log"))
    monkeypatch.setenv(COMPILES, "1")
    monkeypatch.setattr("collage_core.costs.ahead.os.sched_getaffinity", lambda _: {0, 1})


def job(stored: tuple[Graph, Path, Path], do: Sequence[str], limit_bytes: int | None = None) -> MeasureJob:
    """An item for each thing to do, numbered."""
    graph, graph_path, values_path = stored
    formats = plain_variant(Subgraph(graph, graph.all_nodes))
    items = []
    for number, ahead in enumerate(do):
        options = (("number", str(number)), ("ahead", ahead))
        variant = Variant(formats.inputs, formats.outputs, options)
        items.append(KernelItem(number, tuple(n.id for n in graph.nodes), variant))
    return MeasureJob(
        graph_path,
        values_path,
        "ahead",
        Target(),
        QUICK,
        tuple(items),
        (PLUGIN,),
        item_limit_s=77.0,
        memory_limit_bytes=limit_bytes,
    )


def compiled() -> list[int]:
    return sorted(int(number) for what, number, _, _ in lines() if what == "compile")


def test_many_kernels_are_compiled_by_two_processes_while_nothing_is_timed(
    stored: tuple[Graph, Path, Path],
) -> None:
    records = run_job(job(stored, ["meet"] * MANY))
    assert all(r.ok for _, r in records), records
    assert compiled() == list(range(MANY))
    assert len(compilers()) == 2
    log = lines()
    assert {state for what, _, _, state in log if what == "compile"} == {"locked"}
    runs = [line for line in log if line[0] == "run"]
    assert {int(number) for _, number, _, _ in runs} == set(range(MANY))
    assert log.index(runs[0]) == MANY, "a batch is compiled before the first of it is measured"
    assert {state for _, _, _, state in runs} == {"T"}, "who compiles is stopped while something is timed"
    assert all(map(gone, compilers()))


def test_a_batch_is_measured_before_the_next_is_compiled(
    stored: tuple[Graph, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collage_core.costs.ahead._BATCH", 20)
    run_job(job(stored, ["right"] * MANY))
    log = [(what, int(number)) for what, number, _, _ in lines()]
    second = min(
        position for position, (what, number) in enumerate(log) if what == "compile" and number >= 40
    )
    for what in ("compile", "run"):
        assert {number for done, number in log[:second] if done == what} == set(range(40))
    assert compiled() == list(range(MANY))


@pytest.mark.parametrize("why", ["few", "it does not", "one processor", "memory"])
def test_no_process_is_started_that_is_not_worth_it(
    stored: tuple[Graph, Path, Path], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "it does not":
        monkeypatch.delenv(COMPILES)
    if why == "one processor":
        monkeypatch.setattr("collage_core.costs.ahead.os.sched_getaffinity", lambda _: {0})
    asked = job(stored, ["right"] * (10 if why == "few" else MANY), 1 << 30 if why == "memory" else None)
    with AheadCompiler(asked) as compiler:
        assert tuple(compiler.in_batches(asked.items)) == asked.items
    assert compiled() == []


def test_once_there_are_workers_they_compile_the_few_as_well(stored: tuple[Graph, Path, Path]) -> None:
    asked = job(stored, ["right"] * 5)
    with AheadCompiler(asked) as compiler:
        compiler.compile(asked.items[:2])
        first = compilers()
        assert tuple(compiler.in_batches(asked.items[2:])) == asked.items[2:]
        assert first <= compilers()
    assert compiled() == list(range(5))


def test_those_that_came_before_count(stored: tuple[Graph, Path, Path]) -> None:
    asked = job(stored, ["right"] * 20)
    with AheadCompiler(asked) as compiler:
        assert tuple(compiler.in_batches(asked.items[:10])) == asked.items[:10]
        assert compiled() == [], "too few for two workers"
        assert tuple(compiler.in_batches(asked.items[10:])) == asked.items[10:]
    assert compiled() == list(range(10, 20))


def test_conversions_are_handed_on(stored: tuple[Graph, Path, Path]) -> None:
    asked = job(stored, ["right"] * 2)
    to = channels_last("float32", _SHAPE)
    conversion = ConversionItem(7, "x", plain("float32", _SHAPE), to)
    items = (asked.items[0], conversion, asked.items[1])
    with AheadCompiler(asked) as compiler:
        compiler.compile(items[1:2])
        assert compilers() == set()
        compiler.compile(items[:1])
        assert tuple(compiler.in_batches(items)) == items
    assert Counter(compiled()) == {0: 2, 1: 1}


def test_what_goes_wrong_costs_its_own_item(stored: tuple[Graph, Path, Path]) -> None:
    do = [("raise", "crash", "exit", "right")[k % 4] for k in range(20)]
    done: list[int] = []
    asked = job(stored, do)
    with AheadCompiler(asked, on_done=done.append) as compiler:
        compiler.compile(asked.items)
    assert compiled() == list(range(20))
    assert done == list(range(1, 21))


def test_measuring_tells_what_went_wrong(stored: tuple[Graph, Path, Path]) -> None:
    do = ["raise" if k % 10 == 0 else "crash" if k % 10 == 5 else "right" for k in range(MANY)]
    records = dict(run_job(job(stored, do)))
    for k, what in enumerate(do):
        assert records[k].status == ("failed" if what == "raise" else "ok")
    assert records[0].reason == "BackendError: it does not compile"


def test_a_backend_that_only_hangs_is_not_waited_for_without_end(
    stored: tuple[Graph, Path, Path], hanging_clock: None
) -> None:
    asked = job(stored, ["right", *["hang"] * 3, *["right"] * 5])
    with AheadCompiler(asked, processes=1) as compiler:  # the clock makes all that run at the same time late
        compiler.compile(asked.items)
        assert compiled() == [0, 1, 2, 3]
        compiler.compile(asked.items)
        assert compiled() == [0, 1, 2, 3]


def test_an_interrupt_ends_what_is_being_compiled(stored: tuple[Graph, Path, Path]) -> None:
    def interrupt(done: int) -> None:
        raise KeyboardInterrupt

    asked = job(stored, ["meet", *["sleep"] * 5])
    with pytest.raises(KeyboardInterrupt), AheadCompiler(asked, on_done=interrupt) as compiler:
        compiler.compile(asked.items)
    assert len(compiled()) < 6, "nobody begins another"
    assert wait_until(lambda: all(map(gone, compilers())))


def test_where_no_worker_can_be_had_nothing_is_told(stored: tuple[Graph, Path, Path], tmp_path: Path) -> None:
    asked = job((stored[0], tmp_path / "no graph", stored[2]), ["right"] * 3)
    with AheadCompiler(asked) as compiler:
        compiler.compile(asked.items)
        compiler.compile(asked.items)
    assert compiled() == []
