"""The least time that a group could take: counted work, measured peaks."""

from __future__ import annotations

from pathlib import Path

import onnx.parser
import pytest

from collage_core.costs import CostDatabase
from collage_core.costs.roofline import PEAKS, Peaks, Work, machine_peaks, work_of
from collage_core.ir import Graph, Subgraph, from_model
from collage_core.target import Target


def _graph(text: str) -> Graph:
    return from_model(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> g {text}'))


@pytest.mark.parametrize(
    ("text", "flops", "elements"),
    [
        (
            "(float[1,8,10,10] x, float[16,4,3,3] w) => (float y) { y = Conv<group=2>(x, w) }",
            2 * 16 * 8 * 8 * 4 * 9,
            800 + 576 + 1024,
        ),
        (
            "(float[1,8,5,5] x, float[8,6,2,2] w) => (float y) { y = ConvTranspose<strides=[2,2]>(x, w) }",
            2 * 8 * 5 * 5 * 6 * 4,
            200 + 192 + 600,
        ),
        (
            "(float[3,4,5] x, float[3,5,6] w) => (float y) { y = MatMul(x, w) }",
            2 * 3 * 4 * 6 * 5,
            60 + 90 + 72,
        ),
        (
            "(float[5,4] x, float[5,6] w) => (float y) { y = Gemm<transA=1>(x, w) }",
            2 * 4 * 6 * 5,
            20 + 30 + 24,
        ),
        ("(float[7,9] x) => (float y) { r = Relu(x) y = Exp(r) }", 2 * 63, 2 * 63),
        # Of a table nobody knows which rows; what a stride passes over, or nobody asks for, is not read.
        ("(float[1000,8] x, int64[3] i) => (float y) { y = Gather(x, i) }", 24, 2 * 3 + 24),
        ("(float[9,8] x, int64[3] i) => (float y) { r = Relu(x) y = Gather(r, i) }", 72 + 24, 2 * 3 + 24),
        (
            "(float[9,8] x, int64[3] i) => (float r, float y) { r = Relu(x) y = Gather(r, i) }",
            72 + 24,
            72 + 2 * 3 + 72 + 24,
        ),
        ("(float[9,8] x, int64[3] i) => (float y, float z) { y = Gather(x, i) z = Neg(x) }", 96, 174),
        ("(float[6,8] x) => (float y) { y, z = Split<axis=0, num_outputs=2>(x) }", 48, 24 + 24),
        ("(float[1,8,10,10] x, float[4,8,1,1] w) => (float y) { y = Conv<strides=[2,2]>(x, w) }", 1600, 332),
        (
            "(float[1,1,12] x, float[1,1,3] w) => (float y) { y = Conv<strides=[4],dilations=[2]>(x, w) }",
            12,
            10,
        ),
        ("(float[1,1,10] x, float[1,1,3] w) => (float y) { y = Conv<strides=[3]>(x, w) }", 18, 9 + 3 + 3),
        ("(float[1,1,5] x) => (float y) { y = MaxPool<kernel_shape=[1],strides=[2]>(x) }", 3, 3 + 3),
        (
            "(float[1,1,3] x, float[1,1,1] w) => (float y) { y = ConvTranspose<strides=[2]>(x, w) }",
            2 * 3,
            3 + 1 + 5,
        ),
        ("(float[10,4] x) => (float y) { y = Transpose(x) }", 40, 80),
        ("(float[10,4] x) => (float y) { y = ReduceMax<keepdims=0>(x) }", 1, 41),
    ],
)
def test_work_is_counted(text: str, flops: int, elements: int) -> None:
    graph = _graph(text)
    assert work_of(Subgraph(graph, graph.all_nodes)) == Work(flops, 4 * elements)


def test_arithmetic_or_bytes_are_the_limit() -> None:
    peaks = Peaks(100.0, {1000: 50.0, 10**6: 10.0})
    assert peaks.least_ms(Work(2 * 10**9, 500)) == pytest.approx(20.0)
    assert peaks.least_ms(Work(0, 1000)) == pytest.approx(1000 / 50e9 * 1e3)
    assert peaks.least_ms(Work(0, 2000)) == pytest.approx(2000 / 10e9 * 1e3), "it fits into no smaller cache"
    assert peaks.least_ms(Work(0, 10**9)) == pytest.approx(100.0)


def test_a_kernel_that_beats_the_peaks_raises_them() -> None:
    peaks = Peaks(100.0, {1000: 50.0, 10**6: 10.0})
    fast, slow = (Work(4 * 10**9, 2000), 20.0), (Work(10, 500), 1.0)
    assert peaks.raised([fast, slow]) == Peaks(200.0, peaks.copy_gb_per_s)
    raised = peaks.raised([(Work(10, 2000), 1e-4)])
    assert raised.gflops == 100.0
    assert raised.copy_gb_per_s == pytest.approx({1000: 50.0, 10**6: 20.0})


def test_peaks_are_measured_once_and_kept(tmp_path: Path) -> None:
    target = Target("cpu", 1)
    with CostDatabase(tmp_path / "c.sqlite") as database:
        peaks = machine_peaks(target, database)
        assert [c.key.kind for c in database.items()] == [PEAKS]
        assert machine_peaks(target, database) == peaks
    assert 1 < peaks.gflops < 1e5
    assert all(0.5 < gb_per_s < 1e5 for gb_per_s in peaks.copy_gb_per_s.values())
    small, *_, large = sorted(peaks.copy_gb_per_s)
    assert small < large
    assert peaks.copy_gb_per_s[small] > 0.5 * peaks.copy_gb_per_s[large], "caches are no slower than memory"
