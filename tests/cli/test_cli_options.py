"""What the options of `collage optimize` ask for is what the placement does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import onnx.parser
import pytest

from collage_core.cli.main import main
from collage_core.runtime import read

if TYPE_CHECKING:
    from collage_command import Optimised

    from tests.cli.conftest import Mistake, Place

_OPEN = """<ir_version: 10, opset_import: ["" : 20]> g (float[batch,3] x, float[batch,3] z) => (float y) {
    [sum] s = Add(x, z)
    [same] i = Identity(s)
    [relu] y = Relu(i)
}"""


@pytest.fixture
def open_model(tmp_path: Path) -> Path:
    path = tmp_path / "open.onnx"
    onnx.save(onnx.parser.parse_model(_OPEN), path)
    return path


def _backend_of(report: Any) -> dict[str, str]:
    return {node: g["backend"] for g in report["groups"] for node in g["nodes"]}


def _optimize(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Any:
    assert main(["optimize", *map(str, arguments), "--threads", "1", "--rounds", "4", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.ci
def test_backends_that_may_take_part(place: Place) -> None:
    report = place("--backends", "DNNL")
    assert set(_backend_of(report).values()) <= {"dnnl", "view", "reference"}
    assert {c["backend"] for c in report["conversions"]} <= {"dnnl"}
    assert {s["backend"] for s in report["singles"]} <= {"dnnl", "reference"}


@pytest.mark.ci
def test_a_backend_kept_out(place: Place) -> None:
    report = place("--exclude", "tvm")
    assert "tvm" not in _backend_of(report).values()
    assert "dnnl" in _backend_of(report).values()


@pytest.mark.ci
def test_a_backend_kept_from_an_operator_and_a_node_pinned(place: Place, optimised: Optimised) -> None:
    before = _backend_of(optimised.second)
    was = before["/maxpool/MaxPool"]
    assert was in ("dnnl", "tvm")
    known = optimised.collage.stored()
    report = place(
        "--exclude", f"{was}:MaxPool", "--pin", "/block/relu/Relu=TVM", "--pin", "/fc/Gemm=reference"
    )
    after = _backend_of(report)
    assert after["/maxpool/MaxPool"] != was
    assert after["/block/relu/Relu"] == "tvm"
    assert after["/fc/Gemm"] == "reference"
    (fallback,) = [f for f in report["fallback"] if f["node"] == "/fc/Gemm"]
    assert "tvm" in fallback["declined"]
    stored = optimised.collage.stored()
    assert known.items() <= stored.items(), "what was known is not measured again"
    assert report["search"]["measured"] == len(stored) - len(known)
    assert report["search"]["cached"] > 0


@pytest.mark.ci
def test_pins_that_cannot_be(optimised: Optimised, mistake: Mistake) -> None:
    model = optimised.model
    assert "no node is named 'nope'" in mistake("optimize", model, "--pin", "nope=dnnl")
    said = mistake("optimize", model, "--pin", "/conv1/Conv=quick")
    assert said.startswith("collage: unknown backend 'quick'; installed: cublas, ")
    said = mistake("optimize", model, "--pin", "/Flatten=dnnl")
    assert "node '/Flatten' (Flatten) is pinned to 'dnnl', which does not offer to run it: Flatten" in said
    said = mistake("optimize", model, "--backends", "dnnl", "--pin", "/maxpool/MaxPool=tvm")
    assert "is pinned to 'tvm', which does not take part" in said
    assert "expected NAME=VALUE" in mistake("optimize", model, "--pin", "/conv1/Conv")
    assert "given twice" in mistake("optimize", model, "--pin", "a=tvm", "--pin", "a=dnnl")


@pytest.mark.ci
def test_shapes(
    open_model: Path, mistake: Mistake, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    said = mistake("optimize", open_model)
    assert "batch" in said
    assert "'x'" in said or "input x" in said
    assert "whole numbers" in mistake("optimize", open_model, "--shape", "x=2,three")
    assert "no such input; its inputs: x, z" in mistake("optimize", open_model, "--shape", "q=2,3")
    assert "x=batch,3" in mistake("optimize", open_model, "--shape", "x=2,4")
    assert mistake("optimize", open_model, "--shape", "x=2,3", "--shape", "z=4,3")

    bundle = tmp_path / "two.collage"
    _optimize(capsys, open_model, "--backends", "reference", "--shape", "x=2x3", "-o", bundle)
    graph = read(bundle).graph
    assert [graph.shape_of(v) for v in (*graph.inputs, *graph.outputs)] == [(2, 3)] * 3


@pytest.mark.ci
def test_passes(open_model: Path, mistake: Mistake, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (open_model, "--backends", "reference", "--shape", "x=2,3")
    assert _backend_of(_optimize(capsys, *arguments)).keys() == {"sum", "relu"}
    report = _optimize(capsys, *arguments, "--skip-pass", "drop-identities")
    assert _backend_of(report).keys() == {"sum", "same", "relu"}
    said = mistake("optimize", open_model, "--skip-pass", "drop-everything")
    assert "unknown pass 'drop-everything'; known: dead-code, " in said
    assert ", drop-identities, " in said


def test_threads(open_model: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["optimize", str(open_model), "--backends", "reference", "--shape", "x=2,3"]
    bundle = tmp_path / "m.collage"
    assert main([*arguments, "--threads", "2", "-o", str(bundle)]) == 0
    assert "on cpu, 2 threads" in capsys.readouterr().out
    assert read(bundle).placement.target.threads == 2


@pytest.mark.ci
def test_a_second_opinion(open_model: Path, mistake: Mistake, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (open_model, "--backends", "reference", "--shape", "x=2,3")
    report = _optimize(capsys, *arguments, "--verify", "onnxruntime")
    assert report["second_opinion"]["peer"] == "onnxruntime"
    assert report["second_opinion"]["error"] == 0.0
    assert report["errors"] == []
    assert report["original"]["max_rel_error"] == 0.0
    assert "unknown peer 'nobody'; installed: " in mistake("optimize", *arguments, "--verify", "nobody")
