"""The cases say the same in ONNX, NumPy and torch, and what is said about their times is right."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from collage_benchmarks.kernels import CASES, Case, Column, Limits, Row, chosen, measure_case
from collage_benchmarks.kernels import arithmetic as a
from collage_benchmarks.kernels import movement as m
from collage_benchmarks.kernels import reductions as r
from collage_benchmarks.kernels import windows as w
from collage_benchmarks.kernels.bare import open_bare
from collage_benchmarks.kernels.batch import CALLS, Batch
from collage_benchmarks.kernels.contenders import open_backend, open_numpy, open_torch
from collage_benchmarks.kernels.measure import misses
from collage_benchmarks.kernels.verdicts import BANDWIDTH_KINDS, bandwidth_miss, torch_miss
from collage_benchmarks.networks import NETWORKS

from collage_core.costs.check import compare_all
from collage_core.errors import CollageError, UnknownBackendError
from collage_core.ir import from_model, save_stored
from collage_core.ir.passes import normalise
from collage_core.plugins import default_registry
from collage_core.reference import evaluate
from collage_core.target import Target

TARGET = Target("cpu", 2)
BENCHMARKS = Path(__file__).parents[1]
SCRIPT = BENCHMARKS / "kernels" / "bench_kernels.py"
TINY = [
    a.add_relu("tiny", 3, 5),
    a.several_in_and_out("tiny", 3, 5),
    a.long_chain("tiny", 3, 5),
    a.diamond("tiny", 3, 5),
    a.bias("tiny", 3, 5),
    a.rows_and_columns("tiny", 3, 5),
    a.gelu_erf("tiny", 3, 5),
    a.gelu_tanh("tiny", 3, 5),
    a.silu("tiny", 3, 5),
    a.hard_swish("tiny", 3, 5),
    a.mish("tiny", 3, 5),
    r.mean("tiny_last", (1,), 3, 5),
    r.mean("tiny_middle", (1, 2), 2, 3, 4, 5),
    r.mean("tiny_all", (0, 1), 3, 5),
    r.softmax("tiny", 2, 3, 5),
    r.log_softmax("tiny", 3, 5),
    r.masked_softmax("tiny", 2, 5),
    r.layer_norm("tiny", 3, 8),
    r.layer_norm_decomposed("tiny", 3, 8),
    r.argmax("tiny", 3, 7),
    r.cumsum("tiny", 3, 7),
    w.max_pool("tiny_nchw", 1, 3, 8, 7),
    w.max_pool("tiny_nhwc", 1, 3, 8, 7, channels_last=True),
    w.average_pool("tiny_nchw", 1, 3, 5, 7),
    w.average_pool("tiny_nhwc", 1, 3, 5, 7, channels_last=True),
    w.global_average_pool("tiny_nchw", 2, 3, 5, 7),
    w.global_average_pool("tiny_nhwc", 2, 3, 5, 7, channels_last=True),
    w.convolution("tiny", 4, 4, 6),
    w.convolution("tiny", 6, 2, 5),
    w.batched_matmul("tiny", 2, 3, 4, 5),
    m.transpose("tiny_2d", (1, 0), 3, 5),
    m.transpose("tiny_4d", (0, 2, 3, 1), 2, 3, 4, 5),
    m.concat("tiny", 1, 2, 3, 4),
    m.split("tiny", 3, 4),
    m.slice_inner("tiny", 2, 3, 5, 6),
    m.pad("tiny", 2, 3, 4, 5),
    m.gather("tiny", 6, 9, 4),
    m.resize_nearest("tiny", 1, 2, 3, 4),
    m.resize_linear("tiny", 1, 2, 3, 4),
]
tiny = pytest.mark.parametrize("case", TINY, ids=lambda c: c.name)


def test_every_family_has_a_tiny_case() -> None:
    assert {c.family for c in TINY} == {c.family for c in CASES.values()}


def test_the_catalogue_has_the_sizes_that_are_wanted() -> None:
    assert len(CASES) >= 25
    largest = [max(d.size_bytes for d in c.inputs.values()) for c in CASES.values()]
    assert min(largest) <= 10 << 10
    assert 100e6 <= max(largest) <= 110e6
    for kind in BANDWIDTH_KINDS:
        assert any(n >= 50e6 for n, c in zip(largest, CASES.values(), strict=True) if c.kind == kind)


@tiny
def test_numpy_agrees_with_the_reference(case: Case) -> None:
    arrays = case.arrays()
    expected = case.expected(arrays)
    graph = case.graph(arrays)
    found = evaluate(graph, {name: arrays[name] for name in case.inputs})
    assert compare_all(expected, found).reason is None
    for name, array in expected.items():
        assert array.dtype == graph.type_of(name).dtype
        assert array.size < 2 or array.std() > 0


@tiny
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_torch_agrees_with_numpy(case: Case) -> None:
    assert open_torch(case, 2, compiled=False).outputs()[CALLS] > 0  # raises where they differ


@pytest.mark.parametrize("name", ["add_relu/10kB", "softmax/12x128x128"])
@pytest.mark.parametrize("backend", ["tvm", "dnnl"])
def test_backends_run_cases(name: str, backend: str) -> None:
    batch = open_backend(default_registry().backend(backend), CASES[name], TARGET)
    batch.run()
    assert "float32:plain" in str(batch.outputs()["note"])


def test_channels_last_cases_run_channels_last() -> None:
    case = w.max_pool("tiny", 1, 16, 8, 7, channels_last=True)
    assert case.arrays()["x"].strides[1] == 4
    batch = open_backend(default_registry().backend("tvm"), case, TARGET)
    assert "float32:0231" in str(batch.outputs()["note"])


def test_wrong_answers_are_not_timed() -> None:
    case = dataclasses.replace(TINY[0], numpy=lambda x, y: np.maximum(x + y, 0) * 1.001)
    for backend in ("tvm", "dnnl"):
        with pytest.raises(CollageError, match=r"has error .* more than"):
            open_backend(default_registry().backend(backend), case, TARGET)


def test_declined_cases_say_why() -> None:
    with pytest.raises(CollageError, match=r"declined: .*Gather"):
        open_backend(default_registry().backend("dnnl"), m.gather("tiny", 6, 9, 4), TARGET)


def test_runs_are_long_enough_to_be_timed() -> None:
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1

    batch = Batch(call)
    expected = int(batch.outputs()[CALLS])
    assert expected > 1000  # a call takes some 50 ns
    calls = 0
    batch.run()
    assert calls == expected
    assert open_numpy(CASES["transpose/2d_9MB"]).outputs()[CALLS] == 1


def test_bytes_are_those_that_must_move() -> None:
    def moved(case: Case) -> int:
        return case.bytes(case.expected(case.arrays()))

    assert moved(a.add_relu("tiny", 3, 5)) == 3 * 15 * 4
    assert moved(a.bias("tiny", 3, 5)) == (2 * 15 + 5) * 4
    assert moved(r.argmax("tiny", 3, 7)) == 21 * 4 + 3 * 8
    assert moved(m.slice_inner("tiny", 1, 1, 4, 5)) == 2 * 6 * 4
    assert moved(m.gather("tiny", 6, 9, 4)) == 2 * 6 * 4 * 4 + 6 * 8


def test_limits() -> None:
    limits = Limits()
    assert bandwidth_miss(30.0, 50.0, limits) is None
    assert bandwidth_miss(29.0, 50.0, limits) == "58% of a copy's bandwidth"
    assert torch_miss(110.0, {"torch": 120.0, "compile": 100.0}, limits) is None
    assert torch_miss(111.0, {"torch": 120.0, "compile": 100.0}, limits) == "11% slower than compile"
    assert torch_miss(14.0, {"torch": 10.0}, limits) is None
    assert torch_miss(15.5, {"torch": 10.0}, limits) == "5.5 us slower than torch"


def test_what_cannot_be_judged_is_missed() -> None:
    fast, slow = Column(10.0, 1.0, 9, 20), Column(100.0, 1.0, 9, 2)
    declined, absent = Column(reason="declined: no"), Column(reason="torch is not installed")

    def of(
        columns: dict[str, Column], streams: bool = False, copy_gb_s: float | None = None
    ) -> Sequence[str]:
        return misses(Row("c/1", "concat", 300_000, columns, copy_gb_s), streams, Limits())

    assert of({"tvm": fast, "torch": slow, "compile": fast}) == ()
    assert of({"tvm": slow, "torch": slow, "compile": fast}) == ("90.0 us slower than compile",)
    assert of({"tvm": declined, "torch": slow}, streams=True) == ("declined: no",)
    assert of({"tvm": fast, "torch": slow, "compile": absent}) == ("compile: torch is not installed",)
    assert of({"tvm": fast}, streams=True) == ("no copy to compare with",)
    assert of({"tvm": fast}, streams=True, copy_gb_s=49.0) == ()  # 300 kB in 10 us are 30 GB/s
    assert of({"tvm": fast}, streams=True, copy_gb_s=51.0) == ("59% of a copy's bandwidth",)
    assert of({"torch": slow}) == ()


def test_names_and_families_choose() -> None:
    assert [c.name for c in chosen(["softmax", "add_relu/10kB"])] == [
        "add_relu/10kB",
        "softmax/12x128x128",
        "softmax/wide_16MB",
    ]
    assert chosen([]) == list(CASES.values())
    with pytest.raises(ValueError, match="no case or family 'soft'"):
        chosen(["soft"])


def test_a_case_is_measured_in_every_library() -> None:
    row = measure_case(
        CASES["add_relu/10kB"],
        ("tvm", "torch", "numpy", "dnnl"),
        {"torch": "torch is not installed"},
        threads=2,
        rounds=2,
        limits=Limits(),
    )
    for name in ("tvm", "numpy", "dnnl"):
        column = row.columns[name]
        assert column.reason is None
        assert 2 * 3 <= column.runs <= 2 * 16
        assert column.median_us is not None
        assert 0.01 < column.median_us < 1e5
    assert row.moved_bytes == 3 * 16 * 160 * 4
    assert row.copy_gb_s is None
    assert row.misses == ("torch: torch is not installed",)


def test_the_script_tells_what_is_wrong() -> None:
    for arguments, message in ((["nonsense"], "no case or family"), (["--libraries", "x"], "no library")):
        done = subprocess.run(
            [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert message in done.stderr


def test_every_product_of_a_model_runs_bare(tmp_path: Path) -> None:
    graph = normalise(from_model(NETWORKS["tiny_encoder"].build()))
    save_stored(graph, tmp_path / "graph")
    bare = open_bare(tmp_path / "graph", "dnnl", TARGET)  # raises where an answer is wrong
    assert len(bare.calls) == sum(n.op_type == "MatMul" for n in graph.nodes) > 2
    assert not any(call() for call in bare.calls)
    bare.run()
    with pytest.raises(UnknownBackendError):
        open_bare(tmp_path / "graph", "nobody", TARGET)


@pytest.mark.slow
@pytest.mark.alone
def test_the_script_tells_what_a_network_takes_beyond_its_products(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    arguments = ["--network", "tiny_encoder", "--rounds", "2", "--costs", str(tmp_path / "costs.sqlite")]
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "bert_matmuls.py"), *arguments, "--json", str(report)],
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(report.read_text())
    assert list(found["median_ms"]) == ["whole", "bare products", "onnxruntime"]
    assert all(ms > 0 for ms in found["median_ms"].values())
    met = found["beyond_ms"] <= 5 and found["ratio"] >= 1.1
    assert done.returncode == (0 if met else 1)
    assert ("MISSED" in done.stdout) != met
    # In the same unit: of ten microseconds a part is timed as it comes, and one interrupt is longer than all.
    whole_ms, parts_ms = found["median_ms"]["whole"], sum(ms for _, ms in found["parts"].values())
    assert whole_ms / 10 < parts_ms < whole_ms * 10
