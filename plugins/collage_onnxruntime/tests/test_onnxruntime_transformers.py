"""Whole models of operators that ONNX Runtime brings: placed, saved, and as its sessions write them."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from collage_benchmarks.networks import NETWORKS
from contrib_models import read_defined
from onnx import helper

from collage_core import Bundle, load, optimize, save
from collage_core.candidates import Constraints
from collage_core.errors import ModelError
from collage_core.ir.passes import normalise
from collage_core.plugins import Registry
from collage_core.reference import evaluate
from collage_core.target import Target


def _transformer() -> onnx.ModelProto:
    """Of operators of two vendors and a few of ONNX's."""
    rng = np.random.default_rng(2)
    shapes = {
        "word": (50, 32),
        "position": (16, 32),
        "segment": (2, 32),
        "gamma": (32,),
        "beta": (32,),
        "qkv": (32, 96),
        "qkv_bias": (96,),
        "up": (32, 64),
        "up_bias": (64,),
        "down": (32, 64),
    }
    weights = {v: (rng.standard_normal(s) / 6).astype(np.float32) for v, s in shapes.items()}

    def of_microsoft(op: str, operands: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
        return helper.make_node(op, operands.split(), outputs.split(), domain="com.microsoft", **attributes)

    tables = "word position segment gamma beta"
    nodes = [
        of_microsoft("EmbedLayerNormalization", f"ids kinds {tables} mask", "e index"),
        of_microsoft("Attention", "e qkv qkv_bias index", "a", num_heads=4),
        of_microsoft("SkipLayerNormalization", "a e gamma beta", "n"),
        helper.make_node("MatMul", ["n", "up"], ["u"]),
        of_microsoft("BiasGelu", "u up_bias", "g"),
        of_microsoft("FusedMatMul", "g down", "d", transB=1, alpha=0.5),
        helper.make_node("Scale", ["d"], ["s"], domain="com.acme", by=0.25),
        of_microsoft("SkipLayerNormalization", "s n gamma beta", "m"),
        of_microsoft("FastGelu", "m", "y"),
    ]
    words = [
        helper.make_tensor_value_info(v, onnx.TensorProto.INT32, [1, 12]) for v in ("ids", "kinds", "mask")
    ]
    y = helper.make_tensor_value_info("y", 1, [1, 12, 32])
    kept = [onnx.numpy_helper.from_array(a, v) for v, a in weights.items()]
    opsets = [helper.make_opsetid(d, v) for d, v in (("", 17), ("com.microsoft", 1), ("com.acme", 1))]
    return helper.make_model(
        helper.make_graph(nodes, "g", words, [y], kept), opset_imports=opsets, ir_version=8
    )


@pytest.mark.ci
def test_a_transformer_of_two_vendors_operators_is_placed_kept_and_explained(tmp_path: Path) -> None:
    model, costs = _transformer(), tmp_path / "c.sqlite"
    inputs = {"ids": np.arange(12, dtype=np.int32)[None], "kinds": np.zeros((1, 12), np.int32)}
    inputs["mask"] = (np.arange(12, dtype=np.int32)[None] < 9).astype(np.int32)
    with pytest.raises(ModelError, match=r"com\.acme\.Scale"):
        optimize(model, backends=["dnnl"], target=Target("cpu", 1), costs=costs, rounds=0)
    registry = Registry([importlib.import_module("acme_operators")])
    # Of so small a network one library may be the fastest: each gets what the other may not have.
    excluded = [("onnxruntime", "MatMul"), ("reference", "MatMul"), ("dnnl", "Gelu"), ("dnnl", "Softmax")]
    found = optimize(
        model,
        backends=["dnnl", "onnxruntime"],
        costs=costs,
        registry=registry,
        inputs=inputs,
        target=Target("cpu", 1),
        rounds=0,
        constraints=Constraints(excluded=excluded),
    )
    assert {"dnnl", "onnxruntime"} <= {g.backend for g in found.placement.groups}
    save(Bundle(found.graph, found.placement), tmp_path / "m.collage")
    (y,) = load(tmp_path / "m.collage")(inputs).values()
    (scale,) = (n for n in model.graph.node if n.domain == "com.acme")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0.25, np.float32), "by"))
    scale.CopyFrom(helper.make_node("Mul", ["d", "by"], ["s"]))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, inputs)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-4)
    told = subprocess.run(
        [Path(sys.executable).with_name("collage"), "explain", tmp_path / "m.collage"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert all(word in told for word in ("dnnl", "onnxruntime", "Softmax", "LayerNormalization"))


@pytest.mark.ci
@pytest.mark.parametrize("level", ["BASIC", "EXTENDED", "ALL"])
def test_what_a_session_saves_is_read(level: str, tmp_path: Path) -> None:
    """Whatever the level; a network without convolutions, which the last lays out its own way."""
    given = NETWORKS["tiny_encoder"].build()
    inputs = NETWORKS["tiny_encoder"].inputs(0)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    options.optimized_model_filepath = str(tmp_path / "o.onnx")
    session = onnxruntime.InferenceSession(given.SerializeToString(), options, ["CPUExecutionProvider"])
    written = onnx.load(tmp_path / "o.onnx")
    if level != "BASIC":
        assert any(n.domain == "com.microsoft" for n in written.graph.node)
    graph = normalise(read_defined(written))
    for name, right in zip((v.name for v in given.graph.output), session.run(None, inputs), strict=True):
        np.testing.assert_allclose(evaluate(graph, inputs)[name], right, rtol=1e-4, atol=1e-4)
