"""Kernels that a real tuner has found beside those of a library: the cost decides."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from collage_core import optimize, tune
from collage_core.costs import CostDatabase
from collage_core.pipeline import tuning as tuning_module
from collage_core.target import Target

_RNG = np.random.default_rng(0)
_TARGET = Target("cpu", 2)
_BACKENDS = ["dnnl", "tvm"]


def _model(node: onnx.NodeProto, input_shape: list[int], weights: list[int]) -> onnx.ModelProto:
    graph = helper.make_graph(
        [node, helper.make_node("Relu", ["m"], ["o"], name="relu")],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, input_shape)],
        [onnx.ValueInfoProto(name="o")],
        [numpy_helper.from_array(_RNG.standard_normal(weights, np.float32), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize(
    ("node", "shapes"),
    [
        pytest.param(
            helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),
            ([48, 64], [64, 80]),
            marks=pytest.mark.ci,
        ),
        pytest.param(
            helper.make_node("Conv", ["x", "w"], ["m"], name="convolution"),
            ([1, 16, 9, 9], [24, 16, 3, 3]),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["product", "convolution"],
)
def test_a_tuned_kernel_is_chosen_where_it_is_faster(
    node: onnx.NodeProto, shapes: tuple[list[int], list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLAGE_HOME", str(tmp_path))
    monkeypatch.setattr(tuning_module, "_WORTH", math.inf)  # whatever the roofline says
    model, costs = _model(node, *shapes), tmp_path / "costs.sqlite"
    tuning = tune(model, backends=["tvm"], against=_BACKENDS, trials=6, costs=costs, target=_TARGET)
    [result] = tuning.results
    assert result.tuned is not None
    assert result.tuned.trials == 6
    for tuned_ms in (1e-6, 1e3):
        with CostDatabase(costs) as database:
            tuned = [s for s in database.items() if "tuned=" in s.key.variant]
            assert tuned
            for stored in tuned:
                database.put(stored.key, replace(stored.record, median_ms=tuned_ms))
        placed = optimize(model, backends=_BACKENDS, costs=costs, target=_TARGET, rounds=0)
        chosen = ["tuned" in dict(g.variant.options) for g in placed.placement.groups]
        assert any(chosen) == (tuned_ms < 1)
