"""Quantised models: the library's integer kernels, where the model says so and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from collage_benchmarks.written import written
from collage_onnxruntime.backend import OnnxRuntimeBackend
from collage_onnxruntime.session import Waiting, open_session
from onnxruntime_groups import array

from collage_core.errors import Refusal
from collage_core.formats import Array
from collage_core.ir import Graph, Subgraph, subgraph_model
from collage_core.target import Target, processor
from collage_core.testing import check_group

_RNG = np.random.default_rng(3)
_SCALES = _RNG.uniform(0.001, 0.002, 32).astype(np.float32)
_CONSTANTS: dict[str, Array] = {
    "wq": _RNG.integers(-127, 128, (32, 16, 3, 3), np.int8),
    "ws": _SCALES,
    "wz": np.zeros(32, np.int8),
    "bq": _RNG.integers(-2000, 2000, 32, np.int32),
    "bs": _SCALES * np.float32(0.03),
    "w": array(32, 16, 3, 3, seed=4) / np.float32(12),
}
_LAYER = """(float[1,16,12,12] x) => (uint8[1,32,12,12] p)
    <float s = {0.03}, uint8 z = {128}, float t = {0.02}, uint8 o = {0}> {
    q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z)
    WEIGHTS
    r = Relu (c) p = QuantizeLinear (r, t, o) }"""
_QUANTISED = """v = DequantizeLinear <axis: int = 0> (wq, ws, wz)
    b = DequantizeLinear <axis: int = 0> (bq, bs)
    c = Conv <pads: ints = [1, 1, 1, 1]> (d, v, b)"""
_FLOATS = "c = Conv <pads: ints = [1, 1, 1, 1]> (d, w)"


def _graph(weights: str) -> Graph:
    return written(_LAYER.replace("WEIGHTS", weights), _CONSTANTS)


def _operators(graph: Graph) -> set[str]:
    """Those that the library runs, by its own account, which it leaves in the folder where it is asked."""
    group = Subgraph(graph, graph.all_nodes)
    model = subgraph_model(group, [graph.plain_format("x")], [graph.plain_format("p")])
    session = open_session(model.SerializeToString(), 1, Waiting.SLEEP, settings={"enable_profiling": 1})
    session.run(None, {"x": array(1, 16, 12, 12)})
    events = json.loads(Path(session.end_profiling()).read_text())
    return {e["args"]["op_name"] for e in events if e["cat"] == "Node"}


@pytest.mark.parametrize("weights", [_QUANTISED, _FLOATS], ids=["quantised", "floats"])
def test_answers_are_the_reference_s(weights: str) -> None:
    graph = _graph(weights)
    group = Subgraph(graph, graph.all_nodes)
    check_group(OnnxRuntimeBackend(), group, {"x": array(1, 16, 12, 12)}, Target("cpu", 2), repeatable=False)


def test_weights_are_multiplied_as_the_model_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Floats as floats: the library would quantise them as well, as it sees fit."""
    monkeypatch.chdir(tmp_path)
    assert {"QLinearConv"} == _operators(_graph(_QUANTISED)) & {"QLinearConv", "Conv"}
    assert {"Conv"} == _operators(_graph(_FLOATS)) & {"QLinearConv", "Conv"}


_PRODUCTS = {
    "MatMulInteger": "(uint8[4,32] a, int8[32,8] b) => (int32[4,8] c) { c = MatMulInteger (a, b) }",
    "QLinearMatMul": """(uint8[4,32] a, int8[32,8] b) => (uint8[4,8] c)
        <float s = {0.02}, uint8 z = {0}, int8 y = {0}, float t = {10.0}> {
        c = QLinearMatMul (a, s, z, b, s, y, t, z) }""",
    "QLinearConv": """(uint8[1,8,6,6] a, int8[4,8,3,3] b) => (uint8[1,4,4,4] c)
        <float s = {0.02}, uint8 z = {0}, int8 y = {0}, float t = {10.0}> {
        c = QLinearConv (a, s, z, b, s, y, t, z) }""",
    "MatMul": """(uint8[4,32] a, int8[32,8] b) => (uint8[4,8] c)
        <float s = {0.02}, uint8 z = {0}, int8 y = {0}, float t = {10.0}> {
        d = DequantizeLinear (a, s, z) e = DequantizeLinear (b, s, y) f = MatMul (d, e)
        c = QuantizeLinear (f, t, z) }""",
}


@pytest.mark.parametrize("name", _PRODUCTS)
def test_large_products_are_summed_wide_enough_or_declined(name: str) -> None:
    """As large as eight bits allow: two of them are beyond 16 bits, in which older processors sum them."""
    graph = written(_PRODUCTS[name])
    group, inputs = Subgraph(graph, graph.all_nodes), {}
    for value in graph.inputs:
        type = graph.type_of(value)
        low, high = {"uint8": (200, 256), "int8": (100, 128)}[type.dtype]
        inputs[value] = _RNG.integers(low, high, type.static_shape).astype(type.dtype)
    if processor().multiplies_int8:
        check_group(OnnxRuntimeBackend(), group, inputs, Target("cpu", 2), repeatable=False)
    else:
        refusal = OnnxRuntimeBackend().variants(group, Target("cpu", 2))
        assert isinstance(refusal, Refusal)
        assert "saturate on this processor" in refusal.reason
