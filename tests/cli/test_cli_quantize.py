"""`collage quantize`: a library's tool, what it made, and how far that is off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from collage_benchmarks.networks import NETWORKS

from collage_core.cli.main import main
from collage_core.ir import load_model
from collage_core.ir.passes import normalise
from collage_core.plugins import Registry
from collage_core.runtime import load

_SAMPLES = 4


@pytest.fixture
def network(tmp_path: Path) -> tuple[Path, Path]:
    """A model with a residual block, and samples of its input."""
    network = NETWORKS["tiny_conv"]
    model, samples = tmp_path / "tiny.onnx", tmp_path / "samples.npz"
    onnx.save(network.build(), model)
    drawn = [network.inputs(seed) for seed in range(_SAMPLES)]
    arrays: dict[str, Any] = {name: np.stack([d[name] for d in drawn]) for name in drawn[0]}
    np.savez(samples, **arrays)
    return model, samples


def _quantize(network: tuple[Path, Path], *more: str) -> int:
    model, samples = network
    output = model.parent / "made.onnx"
    return main(["quantize", str(model), "--calibrate", str(samples), "-o", str(output), *more])


def _operators(model: Path) -> list[str]:
    return [n.op_type for n in normalise(load_model(model)).nodes]


def test_a_model_is_quantised_and_its_error_told(
    network: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert _quantize(network, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    made = normalise(load_model(told["file"]))
    products = [n for n in made.nodes if n.op_type in ("Conv", "Gemm")]
    assert told["quantised_products"] == told["products"] == len(products) == 5
    assert all(n.inputs[1] in made.dequantised for n in products)
    assert told["samples"] == _SAMPLES - 1
    assert 1e-3 < told["held_out_error"] < 0.1
    assert told["bytes"] < told["bytes_before"]
    assert told["by"] == "onnxruntime"
    assert _quantize(network) == 0
    said = capsys.readouterr().out
    assert "5 of 5 products multiply whole numbers" in said
    assert "by what was seen on 3 samples" in said
    assert f"collage optimize {told['file']}" in said


def test_a_node_stays_as_it_is(network: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    name = next(n.name for n in normalise(load_model(network[0])).nodes if n.op_type == "Gemm")
    assert _quantize(network, "--exclude", name, "--json") == 0
    assert json.loads(capsys.readouterr().out)["quantised_products"] == 4
    assert _quantize(network, "--exclude", "nobody") == 1
    assert "--exclude nobody: no node of the normalised model has that name" in capsys.readouterr().err


def test_what_was_there_stays_where_it_fails(
    network: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each mistake is one line."""
    model, samples = network
    (model.parent / "made.onnx").write_bytes(b"what was there")
    wrong = model.parent / "wrong.npz"
    np.savez(wrong, image=np.zeros((3, 5), np.float32))
    for given, why in (
        (wrong, "calibration: 'image' must be float32[samples, 1, 3, 16, 16]"),
        (model.parent / "none.npz", "No such file"),
        (model, "--calibrate"),
    ):
        assert _quantize((model, given)) == 1
        said = capsys.readouterr().err.strip().splitlines()[-1]
        assert said.startswith("collage: ")
        assert why in said
    assert _quantize((samples, samples)) == 1
    assert "not an ONNX model" in capsys.readouterr().err
    assert _quantize(network, "--with", "nobody") == 1
    assert "unknown quantizer 'nobody'; installed: onnxruntime" in capsys.readouterr().err
    assert (model.parent / "made.onnx").read_bytes() == b"what was there"


def test_without_a_tool_it_says_so(
    network: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "collage_core.pipeline.quantising.default_registry", lambda: Registry(entry_points=False)
    )
    assert _quantize(network) == 1
    assert "no quantizer is available (none that is installed brings one)" in capsys.readouterr().err


@pytest.mark.ci
def test_what_it_made_is_placed_on_kernels_of_whole_numbers(
    network: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And answers what the model of floats does, as far as the command said."""
    assert _quantize(network, "--json") == 0
    quantised = json.loads(capsys.readouterr().out)
    given = ["optimize", quantised["file"], "--backends", "dnnl", "--threads", "1", "--rounds", "4", "--json"]
    bundle = tmp_path / "made.collage"
    assert main([*given, "--costs", str(tmp_path / "costs"), "-o", str(bundle)]) == 0
    told = json.loads(capsys.readouterr().out)
    whole = [g for g in told["groups"] if "uint8" in str(g["formats"]["inputs"])]
    products = [g for g in whole if any("Conv" in name or "Gemm" in name for name in g["nodes"])]
    assert {g["backend"] for g in products} == {"dnnl"}
    assert len(products) == 5
    with np.load(network[1]) as samples:
        image = samples["image"][-1]
    (found,) = load(bundle)({"image": image}).values()
    (right,) = onnx.reference.ReferenceEvaluator(onnx.load(network[0])).run(None, {"image": image})
    assert np.abs(found - right).max() <= 2 * quantised["held_out_error"] * np.abs(right).max()
