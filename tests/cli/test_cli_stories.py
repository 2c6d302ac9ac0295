"""A user's way through the commands, each a process of its own, on one model optimised twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from collage_command import BRIEFLY
from onnx.reference import ReferenceEvaluator
from open_shape_models import open_shape_model, placed_on

from collage_core import Bundle, save
from collage_core.costs import CostDatabase
from collage_core.costs.ratio import sittings_of
from collage_core.costs.rounds import MOST_ROUNDS
from collage_core.target import Target

if TYPE_CHECKING:
    from collage_command import Collage, Optimised


@pytest.mark.ci
def test_the_second_run_measures_nothing(optimised: Optimised) -> None:
    first, second = optimised.first, optimised.second
    assert first["search"]["measured"] > 0
    assert first["search"]["cached"] == 0
    assert second["search"]["measured"] == 0
    assert second["search"]["measure_s"] == 0
    assert second["search"]["cached"] > 0
    assert second["search"]["counts"]["measured"] == 0
    assert 0 <= second["search"]["search_s"] < second["search"]["total_s"]
    same = ("groups", "conversions", "predicted_ms", "contenders", "beaten_by", "chosen", "max_rel_error")
    for key in same:
        assert second[key] == first[key]


@pytest.mark.ci
def test_comparisons_have_at_least_the_rounds_that_were_asked_for(optimised: Optimised) -> None:
    with CostDatabase(optimised.collage.home / "costs.sqlite") as database:
        compared = [i.record for i in database.items() if i.key.variant in ("choosing", "confirming")]
    sat = [sittings_of(record) for record in compared if record.ok]
    assert {len(sittings) for sittings in sat} == {2}
    rounds = [len(sitting.kept) for sittings in sat for sitting in sittings if sitting.turns]
    assert all(2 <= count <= MOST_ROUNDS for count in rounds)


@pytest.mark.ci
def test_what_optimize_prints(optimised: Optimised) -> None:
    report = optimised.second
    assert report["model"] == str(optimised.model)
    assert (report["device"], report["threads"]) == ("cpu", 1)
    libraries = {b["name"] for b in optimised.collage.json("backends")}
    assert {"collage"} < report["contenders"].keys() <= {"collage", "mix", *libraries}
    assert type(report["contenders"]["collage"]["median_ms"]) is float
    assert all(c["median_ms"] is None or c["median_ms"] > 0 for c in report["contenders"].values())
    assert type(report["predicted_ms"]) is float
    assert sum(len(g["nodes"]) for g in report["groups"]) == 12
    for group in report["groups"]:
        assert type(group["backend"]) is str
        assert len(group["nodes"]) == len(group["ops"]) > 0
        assert all(type(f) is str for side in ("inputs", "outputs") for f in group["formats"][side])
        assert group["cost_ms"] >= 0
    for conversion in report["conversions"]:
        assert all(type(conversion[k]) is str for k in ("value", "from", "to", "backend"))
        assert conversion["from"] != conversion["to"]
        assert conversion["cost_ms"] > 0
    types = {
        **dict.fromkeys(("candidates", "measured", "cached"), int),
        **dict.fromkeys(("measure_s", "search_s", "total_s"), float),
        "optimal": bool,
        "total_ms": float,
        "lower_bound_ms": float,
    }
    for key, kind in types.items():
        assert isinstance(report["search"][key], kind), key
    assert 0 <= report["max_abs_error"] < 1e-3
    assert 0 <= report["max_rel_error"] < 1e-4
    total = sum(part["cost_ms"] for part in (*report["groups"], *report["conversions"]))
    assert report["predicted_ms"] == pytest.approx(total)


@pytest.mark.ci
def test_run_gives_the_numbers_of_the_model(optimised: Optimised) -> None:
    collage = optimised.collage
    image = np.random.default_rng(3).standard_normal((1, 3, 16, 16), dtype=np.float32)
    folder = collage.folder / "lr=0.1"  # "=" in a path
    folder.mkdir()
    np.save(folder / "image.npy", image)
    arguments = ["--input", f"image={folder}/image.npy", "--output", f"logits={folder}/logits.npy"]
    report = collage.json("run", optimised.bundle, *arguments, "--repeat", "5")
    assert report["runs"] == 5
    assert report["latency_ms"] > 0
    found = np.load(folder / "logits.npy")
    (expected,) = map(np.asarray, ReferenceEvaluator(onnx.load(optimised.model)).run(None, {"image": image}))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    summary = report["outputs"]["logits"]
    assert (summary["dtype"], summary["shape"]) == ("float32", [1, 10])
    assert summary["file"] == f"{folder}/logits.npy"
    assert summary["max"] == float(found.max())
    assert "logits" in collage.run("run", optimised.bundle, "--input", f"image={folder}/image.npy")


@pytest.mark.ci
def test_bench_against_a_peer(optimised: Optimised) -> None:
    report = optimised.collage.json("bench", optimised.bundle, "--against", "onnxruntime", "--rounds", "4")
    contenders = {"collage", "peer:onnxruntime"}
    assert report["contenders"].keys() == contenders
    assert report["ratio_to_best_peer"] == report["contenders"]["peer:onnxruntime"]["ratio"]
    runs = [c["runs"] for c in report["contenders"].values()]
    assert all(2 * 3 <= n <= 2 * MOST_ROUNDS * 16 for n in runs)
    assert report["max_rel_error"]["peer:onnxruntime"] < 1e-4
    assert report["failed"] == {}
    assert report["threads"] == 1


@pytest.mark.ci
def test_bench_of_several_requests_at_a_time(optimised: Optimised) -> None:
    arguments = ("bench", optimised.bundle, "--rounds", "2", "--concurrency", "2")
    report = optimised.collage.json(*arguments, "--against", "onnxruntime,openvino")
    peers = {f"peer:{name}{how}" for name in ("onnxruntime", "openvino") for how in ("", ", one session")}
    if Target.default().threads == 1:
        peers = {name for name in peers if name.endswith("one session")}
    assert report["contenders"].keys() == {"collage", *peers}
    assert report["concurrency"] == 2
    assert report["failed"] == {}
    assert report["disagrees"] == {}
    text = optimised.collage.run(*arguments, "--against", "onnxruntime")
    assert "2 requests at a time; answered in a second: collage " in text


@pytest.mark.ci
def test_peers_of_a_bundle_load_the_original(optimised: Optimised, tmp_path: Path) -> None:
    model = onnx.load(optimised.model)
    weights = [onnx.numpy_helper.to_array(t) for t in model.graph.initializer]
    for tensor, array in zip(model.graph.initializer, weights, strict=True):
        if array.dtype == np.float32:
            tensor.CopyFrom(onnx.numpy_helper.from_array(2 * array, tensor.name))
    onnx.save(model, tmp_path / "other.onnx")
    against = ("bench", optimised.bundle, "--against", "onnxruntime", "--rounds", "2", "--json", "--original")
    report = json.loads(optimised.collage.run(*against, optimised.model))
    assert not report["disagrees"]
    report = json.loads(optimised.collage.run(*against, tmp_path / "other.onnx", code=1))
    assert "more than" in report["disagrees"]["peer:onnxruntime"]


@pytest.mark.ci
def test_peers_of_open_outputs_load_what_has_known_shapes(collage: Collage, tmp_path: Path) -> None:
    model = open_shape_model("detector")
    onnx.save(model, tmp_path / "m.onnx")
    save(Bundle(*placed_on(model, "onnxruntime")), tmp_path / "m.collage")
    against = ("--against", "onnxruntime", "--rounds", "2", "--original", tmp_path / "m.onnx")
    report = collage.json("bench", tmp_path / "m.collage", *against)
    assert report["max_rel_error"]["peer:onnxruntime"] < 1e-4


@pytest.mark.ci
def test_backends(optimised: Optimised) -> None:
    report = optimised.collage.json("backends")
    by_name = {b["name"]: b for b in report if b["kind"] not in ("peer", "plugin")}
    assert {"reference", "dnnl", "tvm"} <= by_name.keys()
    keys = {"name", "kind", "version", "library_version", "devices", "available", "reason"}
    assert all(b.keys() >= keys for b in report)
    assert by_name["reference"]["kind"] == "reference"
    assert by_name["dnnl"]["available"] is True
    assert by_name["dnnl"]["reason"] is None
    assert by_name["dnnl"]["devices"] == ["cpu"]
    assert "onnxruntime" in {p["name"] for p in report if p["kind"] == "peer"}
    assert not [p for p in report if p["kind"] == "plugin"], "no plugin has failed"
    text = optimised.collage.run("backends")
    assert all(name in text for name in by_name)


@pytest.mark.ci
def test_explain(optimised: Optimised) -> None:
    explained = optimised.collage.json("explain", optimised.bundle)
    assert explained.pop("dataflow")["operators"]
    assert explained == optimised.second
    text = optimised.collage.run("explain", optimised.bundle)
    for group in optimised.second["groups"]:
        assert group["nodes"][-1] in text
    assert "groups in order" in text
    assert "nothing is fused into its input" in text


@pytest.mark.ci
def test_costs_go_out_and_come_in(optimised: Optimised) -> None:
    collage = optimised.collage
    # Where other tests have added costs, there may be a better answer now, and more to measure for it.
    now = collage.json("optimize", optimised.model, *BRIEFLY)
    shown = collage.json("costs", "show")
    assert shown["file"] == str(collage.home / "costs.sqlite")
    assert {"kind", "backend", "status", "count"} == shown["costs"][0].keys()
    count = sum(row["count"] for row in shown["costs"])

    exported = collage.folder / "costs.jsonl"
    collage.run("costs", "export", exported)
    lines = exported.read_text().splitlines()
    assert len(lines) == count
    assert collage.run("costs", "export") == exported.read_text()
    assert collage.run("costs", "export", "/proc/self/fd/1").startswith(exported.read_text()), "a pipe"
    assert all(isinstance(json.loads(line), dict) for line in lines)

    other = collage.folder / "other.sqlite"
    assert collage.run("costs", "--costs", other, "import", exported).startswith(f"{count} costs merged")
    arguments = ("optimize", optimised.model, *BRIEFLY, "--costs", other)
    report = collage.json(*arguments)
    assert report["search"]["measured"] == 0
    assert report["groups"] == now["groups"]

    # Answers found while something had failed go with what failed.
    records = [json.loads(line)["record"] for line in lines]
    failed = sum(r["status"] != "ok" or bool(r["details"].get("failed")) for r in records)
    assert collage.run("costs", "--costs", other, "prune", "--failed").startswith(f"{failed} costs removed")
    of_tvm = sum(row["count"] for row in shown["costs"] if row["backend"] == "tvm" and row["status"] == "ok")
    assert collage.run("costs", "--costs", other, "prune", "--backend", "tvm").startswith(f"{of_tvm} costs")
    assert collage.run("costs", "--costs", other, "prune", "--older-than", "1").startswith("0 costs")
    with CostDatabase(other) as database:
        assert len(database) == count - failed - of_tvm


@pytest.mark.ci
def test_texts_for_people(optimised: Optimised, tmp_path: Path) -> None:
    bundle = tmp_path / "m.collage"
    optimised.collage.run("optimize", optimised.model, *BRIEFLY)  # other tests may have added costs
    text = optimised.collage.run("optimize", optimised.model, *BRIEFLY, "-o", bundle)
    assert text.startswith(f"{optimised.model} on cpu, 1 thread\n")
    assert "collage" in text
    assert f"saved as {bundle}; " in text
    assert "answers checked: against the reference, within " in text
    explained = optimised.collage.run("explain", bundle)
    assert " 0 measured" in explained
    assert "largest difference from the reference" in explained
    assert "not saved" in optimised.collage.run("optimize", optimised.model, *BRIEFLY)
    version = optimised.collage.run("--version").strip()
    assert version[0].isdigit()


@pytest.mark.ci
def test_a_bundle_is_a_file_of_its_own(optimised: Optimised, tmp_path: Path, collage: Collage) -> None:
    moved = tmp_path / "elsewhere.collage"
    moved.write_bytes(optimised.bundle.read_bytes())
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 16, 16), np.float32))
    report: Any = collage.json("run", moved, "--input", f"image={tmp_path}/x.npy")
    assert report["outputs"]["logits"]["file"] is None


@pytest.mark.slow
def test_calibration_is_measured_once_and_is_not_stale(
    collage: Collage, optimised: Optimised, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLLAGE_CALIBRATION")
    arguments = ("optimize", optimised.model, *BRIEFLY)
    first, second = collage.json(*arguments), collage.json(*arguments)
    assert first["search"]["measured"] > optimised.first["search"]["measured"]
    assert second["search"]["measured"] == 0
    assert second["prediction"]["transitions"] == first["prediction"]["transitions"]
    assert collage.run("costs", "prune", "--stale").startswith("0 costs removed")
