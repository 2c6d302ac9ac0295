"""`collage quantize`: a library's tool, what it made, and how far that is off."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from collage_benchmarks.networks import NETWORKS
from onnx import helper, numpy_helper

from collage_core.cli.main import main
from collage_core.ir import from_model, load_model, to_model
from collage_core.ir.passes import normalise
from collage_core.measuring.progress import Silent
from collage_core.pipeline.quantising import _Trials
from collage_core.plugins import Registry, default_registry
from collage_core.reference import evaluate
from collage_core.runtime import load
from collage_core.target import processor

_SAMPLES = 8


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
    assert (told["samples"], told["held_out_samples"]) == (6, 2)
    assert told["spared"] == []
    assert 1e-3 < told["held_out_error"] < 0.2
    assert told["bytes"] < told["bytes_before"]
    assert told["by"] == "onnxruntime"
    assert _quantize(network) == 0
    said = capsys.readouterr().out
    assert "5 of 5 products multiply whole numbers" in said
    assert "by what was seen on 6 samples" in said
    assert "at most on 2 samples held out" in said
    assert f"collage optimize {told['file']}" in said


def test_a_node_stays_as_it_is(network: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    name = next(n.name for n in normalise(load_model(network[0])).nodes if n.op_type == "Gemm")
    assert _quantize(network, "--exclude", name, "--json") == 0
    assert json.loads(capsys.readouterr().out)["quantised_products"] == 4
    assert _quantize(network, "--exclude", "Gemm", "--json") == 0
    assert json.loads(capsys.readouterr().out)["quantised_products"] == 4
    assert _quantize(network, "--exclude", "nobody") == 1
    assert "no node is named 'nobody'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "max_error", [pytest.param(2e-2, marks=pytest.mark.slow), pytest.param(5e-3, marks=pytest.mark.ci)]
)
def test_an_error_is_held_by_as_many_nodes_as_it_takes(
    network: tuple[Path, Path], capsys: pytest.CaptureFixture[str], max_error: float
) -> None:
    """What does most harm stays floats."""
    assert _quantize(network, "--max-error", str(max_error), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["held_out_error"] <= max_error
    made = normalise(load_model(told["file"]))
    products = {n.name: n for n in made.nodes if n.op_type in ("Conv", "Gemm")}
    floats = {name for name, n in products.items() if n.inputs[1] not in made.dequantised}
    assert told["quantised_products"] == len(products) - len(floats) > 0
    assert floats <= set(told["spared"])
    assert "/fc/Gemm" in floats, "the output's range is another on each sample"
    assert (told["samples"], told["held_out_samples"]) == (5, 2), "harm is weighed on one more"
    sample = np.load(network[1])
    given = normalise(load_model(network[0]))
    for k in (-2, -1):
        inputs = {v: sample[v][k] for v in sample.files}
        ((right,), (found,)) = (evaluate(g, inputs).values() for g in (given, made))
        assert np.abs(found - right).max() <= max_error * np.abs(right).max()
    assert _quantize(network, "--max-error", str(max_error)) == 0
    said = capsys.readouterr().out
    assert f"of the {max_error:g} that was allowed\n{len(told['spared'])} node" in said


@pytest.mark.ci
def test_an_error_that_cannot_be_held_leaves_what_was_there(
    network: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    made = network[0].parent / "made.onnx"
    made.write_bytes(b"what was there")
    assert _quantize(network, "--max-error", "1e-6") == 1
    said = capsys.readouterr().err
    assert "no product was found that can be quantised within an error of 1e-06; the least was " in said
    assert made.read_bytes() == b"what was there"
    assert _quantize(network, "--max-error", "1.5") == 1
    assert "max_error must be above 0 and below 1, not 1.5" in capsys.readouterr().err


def test_what_is_excluded_keeps_its_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that others share, too: the tool would quantise them for all."""
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 17]>
      g (float[4,8] x) => (float[4,8] z) { a = MatMul (x, w) b = Neg (a) z = MatMul (b, w) }""")
    rng = np.random.default_rng(0)
    w = rng.standard_normal((8, 8)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    for node, name in zip(model.graph.node, ("first", "neg", "second"), strict=True):
        node.name = name
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "s.npz", x=rng.standard_normal((4, 4, 8)).astype(np.float32))
    assert _quantize((tmp_path / "m.onnx", tmp_path / "s.npz"), "--exclude", "first", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["quantised_products"], told["products"]) == (1, 2)
    made = normalise(load_model(told["file"]))
    first = next(n for n in made.nodes if n.name == "first")
    assert first.inputs[1] not in made.dequantised
    assert np.array_equal(made.constants[first.inputs[1]], w)


def test_weights_on_either_side_are_counted_and_nothing_is_quantised_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 17]>
      g (float[8,4] x) => (float[8,4] y) { a = MatMul (w, x) b = Relu (a) y = MatMul (w, b) }""")
    rng = np.random.default_rng(0)
    w = rng.standard_normal((8, 8)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "s.npz", x=rng.standard_normal((4, 8, 4)).astype(np.float32))
    given = tmp_path / "m.onnx", tmp_path / "s.npz"
    assert _quantize(given, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["quantised_products"], told["products"]) == (2, 2)
    (tmp_path / "made.onnx").rename(tmp_path / "q.onnx")
    assert _quantize((tmp_path / "q.onnx", given[1])) == 1
    assert "it is quantised already: " in capsys.readouterr().err
    assert not (tmp_path / "made.onnx").exists()


def test_what_a_model_returns_is_not_cut_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The tool puts a Relu into the range of what it reads, which the model may return as well."""
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 17]>
      g (float[4,8] x) => (float[4,8] a, float[4,8] z) { a = MatMul (x, w) z = Relu (a) }""")
    rng = np.random.default_rng(0)
    w = rng.standard_normal((8, 8)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    onnx.save(model, tmp_path / "m.onnx")
    x = rng.standard_normal((8, 4, 8)).astype(np.float32)
    np.savez(tmp_path / "s.npz", x=x)
    assert _quantize((tmp_path / "m.onnx", tmp_path / "s.npz"), "--json") == 0
    found = evaluate(normalise(load_model(json.loads(capsys.readouterr().out)["file"])), {"x": x[0]})
    right = x[0] @ w
    assert np.abs(found["a"] - right).max() < 0.05 * np.abs(right).max()
    assert found["a"].min() < 0 <= found["z"].min()


def test_harm_is_what_quantising_that_node_alone_does(network: tuple[Path, Path], tmp_path: Path) -> None:
    """Beside the model of floats with its QuantizeLinear and DequantizeLinear before that node alone."""
    model, samples = network
    graph = normalise(load_model(model))
    arrays = np.load(samples)
    drawn = [{v: arrays[v][k] for v in arrays.files} for k in range(4)]
    parts = drawn[:2], [drawn[2]], tmp_path / "t"
    trials = _Trials("onnxruntime", graph, *parts, default_registry(), Silent())
    quantised = trials.of(frozenset()).graph
    harm = {h.node: h.squared_error for h in trials.harm(drawn[2])}
    (right,) = evaluate(graph, drawn[2]).values()
    products = [n.name for n in quantised.nodes if n.op_type in ("Conv", "Gemm")]
    assert len(products) == 5
    for name in products:
        there = next(n for n in quantised.nodes if n.name == name)
        proto = to_model(graph)
        node = next(n for n in proto.graph.node if n.name == name)
        before = quantised.producer(there.inputs[0])
        assert before is not None
        kept = {v: quantised.constants[v] for v in (*before.inputs[1:], *there.inputs[1:])}
        proto.graph.initializer.extend(numpy_helper.from_array(a, f"kept.{v}") for v, a in kept.items())
        steps = [f"kept.{v}" for v in before.inputs[1:]]
        made = [
            helper.make_node("QuantizeLinear", [node.input[0], *steps], ["whole"]),
            helper.make_node("DequantizeLinear", ["whole", *steps], ["floats"]),
        ]
        node.input[:] = ["floats", *(f"kept.{v}" for v in there.inputs[1:])]
        at = list(proto.graph.node).index(node)
        for k, inserted in enumerate(made):
            proto.graph.node.insert(at + k, inserted)
        (found,) = evaluate(from_model(proto), drawn[2]).values()
        if name == "/fc/Gemm":
            last = quantised.producer(quantised.outputs[0])
            assert last is not None, "what the model yields is quantised as well"
            scale, zero = (quantised.constants[v] for v in last.inputs[1:])
            found = (np.clip(np.rint(found / scale) + zero, 0, 255) - zero) * scale
        error = np.abs(found - right).max() / np.abs(right).max()
        assert harm[name] ** 0.5 == pytest.approx(error, rel=1e-3), name


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
        (model.parent / "none.npz", "no such file"),
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
    for output, why in (
        (model.parent / "nowhere" / "q.onnx", "there is no such folder"),
        (model.parent, "it is a folder"),
        (os.devnull, "it is no file"),
    ):
        assert main(["quantize", str(model), "--calibrate", str(samples), "-o", str(output)]) == 1
        assert f"cannot write {output}: {why}" in capsys.readouterr().err


def test_without_a_tool_it_says_so(
    network: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "collage_core.pipeline.quantising.default_registry", lambda: Registry(entry_points=False)
    )
    assert _quantize(network) == 1
    assert "no quantizer is available (none that is installed brings one)" in capsys.readouterr().err


@pytest.mark.ci
@pytest.mark.skipif(not processor().multiplies_int8, reason="the processor has no units for it")
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
