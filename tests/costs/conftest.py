"""Makes the plugins of these tests importable here and, as workers get this process's path, in workers;
and a small graph, stored and recorded.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage_core.costs import record, synthesise_inputs
from collage_core.ir import Graph, from_model, save_stored

sys.path.append(str(Path(__file__).parent / "plugins"))


@pytest.fixture(autouse=True)
def _own_lock(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A measuring lock of the tests' own, so that they do not wait for whatever else is measured on this
    machine.
    """
    monkeypatch.setenv("COLLAGE_LOCK", str(tmp_path_factory.getbasetemp() / "measuring.lock"))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Graph, Path, Path]:
    """x -> Relu r -> MatMul m (weights) -> Add a (with r's output broadcast) -> y, stored and recorded."""
    weights = np.random.default_rng(0).standard_normal((8, 8), np.float32)
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="r"),
        helper.make_node("MatMul", ["r", "w"], ["m"], name="m"),
        helper.make_node("Add", ["m", "r"], ["y"], name="a"),
    ]
    proto = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 4, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3, 4, 8])],
        [numpy_helper.from_array(weights, "w")],
    )
    graph = from_model(helper.make_model(proto, opset_imports=[helper.make_opsetid("", 18)]))
    folder = tmp_path_factory.mktemp("stored")
    save_stored(graph, folder / "graph")
    record(folder / "graph", synthesise_inputs(graph), folder / "values")
    return graph, folder / "graph", folder / "values"
