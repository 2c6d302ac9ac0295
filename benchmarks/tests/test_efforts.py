"""What each effort takes and brings: the steps, what is recorded of them, and the tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
from collage_benchmarks.evidence import replaying
from collage_benchmarks.evidence.efforts import collect_efforts
from collage_benchmarks.evidence.efforts_table import bounds_table, efforts_table
from collage_benchmarks.evidence.records import write_record
from collage_benchmarks.evidence.running import Tools
from collage_benchmarks.evidence.runs import Run
from fake_collage import COMMIT, calls

from collage_core import Target, optimize
from collage_core.pipeline.effort import THOROUGH
from collage_core.report.summary import optimization_json
from collage_core.runtime.bundle import Bundle, save

_MODEL = """<ir_version: 10, opset_import: ["" : 20]> g (float[64,64] x) => (float[64,64] y) {
    a = MatMul(x, x) b = Relu(a) c = MatMul(b, x) d = Relu(c) e = MatMul(d, x) f = Relu(e) y = MatMul(f, x)
}"""


@pytest.mark.slow
def test_each_effort_is_run_and_compared(
    tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is measured without looking at the processors is of another machine than the steps' own.
    monkeypatch.delenv("COLLAGE_SETTLING_LIMIT_S", raising=False)
    found = optimize(
        onnx.parser.parse_model(_MODEL),
        backends=["reference", "dnnl"],
        target=Target("cpu", 1),
        costs=tmp_path / "known.sqlite",
        effort=THOROUGH,
        rounds=2,
    )
    report = optimization_json(found, "m.onnx")
    save(Bundle(found.graph, found.placement, report), tmp_path / "bundle")
    record = collect_efforts("tiny_conv", COMMIT, tools)
    optimized = [c for c in record["commands"] if "optimize" in c]
    assert optimized == [
        f"collage optimize tiny_conv.onnx --effort {effort} -o {name}.collage --json"
        for name, effort in (("quick",) * 2, ("normal",) * 2, ("thorough",) * 2, ("again", "normal"))
    ]
    homes = [variables["COLLAGE_HOME"] for call, variables in calls(tmp_path) if call[0] == "optimize"]
    assert len(set(homes)) == 3
    assert homes[1] == homes[3], "what is run again knows its costs"
    assert record["efforts"].keys() == {"quick", "normal", "thorough", "again"}
    assert all(0.0 < e["usable_s"] < 60.0 for e in record["efforts"].values())
    # Of one placement there is one to run.
    assert {c["ratio"] for c in record["compared"].values()} == {1.0}
    cells = [cell.strip() for cell in efforts_table([record]).splitlines()[-1].split("|")[1:-1]]
    assert (cells[0], cells[5], cells[7]) == ("tiny_conv", "the same", "the same")
    assert cells[9:11] == ["1.2 (3)", "3 of 12 (25%)"]
    replayed = record["replayed"]
    # Bounds are drawn from what was measured: where that was disturbed, they may hide a rival nearly equal.
    # That they hide none where nothing disturbs is tested on declared costs.
    assert replayed["proven"]["ms"] == pytest.approx(replayed["full_ms"], rel=0.01)
    assert replayed["within"]["ms"] <= 1.01 * replayed["full_ms"]
    for bounded in (replayed["proven"], replayed["within"]):
        assert 0 < bounded["measured"] <= bounded["offered"]
        assert 0.0 < bounded["seconds"] <= replayed["seconds"]
    cells = [cell.strip() for cell in bounds_table([record]).splitlines()[-1].split("|")[1:-1]]
    measured, offered = replayed["proven"]["measured"], replayed["proven"]["offered"]
    assert cells[3:5] == [str(offered), f"{measured} ({measured / offered:.0%})"]
    assert float(cells[6]) == pytest.approx(replayed["proven"]["ms"] / replayed["full_ms"], abs=1e-4)
    informed = replayed["informed"].values()
    assert all(found["ms"] == pytest.approx(replayed["full_ms"], rel=0.01) for found in informed)
    # Better bounds need not measure less: of costs nearly equal, which is measured first is chance.
    assert all(0 < found["measured"] <= offered for found in informed)
    assert cells[-1] == ", ".join(f"{found['measured'] / offered:.0%}" for found in informed)
    del replayed["informed"]  # of records from before
    assert bounds_table([record]).endswith("| - |")
    path = write_record(tmp_path / "efforts", record)
    assert json.loads(path.read_text()) == record


def test_an_effort_that_fails_is_recorded(told: dict[str, Any], tools: Tools, tmp_path: Path) -> None:
    (tmp_path / "told.json").write_text(json.dumps({**told, "failing": "optimize"}))
    record = collect_efforts("tiny_conv", COMMIT, tools)
    assert record["failed"]["step"] == "quick"
    assert record["compared"] is None
    assert "quick failed (1): collage: model went wrong" in efforts_table([record])
    assert "No run is recorded yet" in bounds_table([record])
    assert Run(record).is_failed


def test_what_is_not_known_cannot_be_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLLAGE_HOME", str(tmp_path / "home"))
    model = onnx.parser.parse_model(_MODEL)
    found = optimize(model, backends=["reference"], costs=tmp_path / "c.sqlite", rounds=0)
    save(Bundle(found.graph, found.placement), tmp_path / "m.collage")
    assert replaying.main([str(tmp_path / "m.collage")]) == 1
    assert "no cost of this model is known here" in capsys.readouterr().err
    assert replaying.main([]) == 2
