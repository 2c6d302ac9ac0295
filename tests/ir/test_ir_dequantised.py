"""Constants that a model stores as whole numbers: floats for whoever reads them so, and not forgotten."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from collage_core.costs.roofline import work_of
from collage_core.formats import Array
from collage_core.ir import Graph, Subgraph, from_model, load_stored, save_stored, subgraph_model
from collage_core.ir.digests import graph_digest, structure_digest
from collage_core.ir.onnx_write import DEQUANTISED_KEY, to_model
from collage_core.ir.passes import normalise
from collage_core.ir.passes.cleaning import without_unused_values
from collage_core.ir.passes.constants import fold
from collage_core.reference import evaluate

_RNG = np.random.default_rng(0)
_SHAPES = {"w": (8, 4, 3, 3), "v": (64, 8192)}


def _model(body: str, *, zero_point: int = 0, seed: int = 0) -> onnx.ModelProto:
    """x -> y, with weights `w` of a convolution, quantised per channel, as `wq`, `ws`, `wz`."""
    rng = np.random.default_rng(seed)
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 19]> g (float[1,4,6,6] x) => (float[N,M,H,W] y)
        <float s = {{0.03}}, uint8 z = {{7}}> {{ {body} }}"""
    )
    arrays: dict[str, Array] = {
        "wq": rng.integers(-127, 128, _SHAPES["w"], np.int8),
        "ws": rng.uniform(0.001, 0.002, 8).astype(np.float32),
        "wz": np.full(8, zero_point, np.int8),
    }
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, v) for v, a in arrays.items())
    return model


_CONV = """q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z)
    w = DequantizeLinear <axis: int = 0> (wq, ws, wz) y = Conv (d, w)"""


def _graph(body: str = _CONV, *, zero_point: int = 0, seed: int = 0) -> Graph:
    return normalise(from_model(_model(body, zero_point=zero_point, seed=seed)))


def _whole(graph: Graph) -> Subgraph:
    return Subgraph(graph, graph.all_nodes)


def test_it_is_folded_and_stays_known() -> None:
    graph = _graph()
    assert [n.op_type for n in graph.nodes] == ["QuantizeLinear", "DequantizeLinear", "Conv"]
    assert list(graph.dequantised) == ["w"]
    assert graph.dequantised["w"].inputs == ("wq", "ws", "wz")
    scales = graph.constants["ws"].reshape(-1, 1, 1, 1)
    np.testing.assert_array_equal(graph.constants["w"], graph.constants["wq"].astype(np.float32) * scales)
    group = _whole(graph)
    assert group.constants == ("s", "z", "w")
    assert group.dequantised == ("w",)
    assert group.stored_constants == ("s", "z", "wq", "ws", "wz")


def test_it_is_folded_whatever_its_size() -> None:
    """Floats take four times as much; other operators are not to make that much of a constant."""
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 19]> g (float[1,64] x) => (float[1,8192] y)
        <float s = {0.5}> { v = DequantizeLinear (vq, s) y = MatMul (x, v) }"""
    )
    model.graph.initializer.append(
        onnx.numpy_helper.from_array(_RNG.integers(-127, 128, _SHAPES["v"], np.int8), "vq")
    )
    graph = normalise(from_model(model))
    assert [n.op_type for n in graph.nodes] == ["MatMul"]
    assert list(graph.dequantised) == ["v"]


def test_it_comes_back_from_a_folder(tmp_path: Path) -> None:
    """Which holds the whole numbers, and is a model that others read."""
    graph = _graph()
    save_stored(graph, tmp_path)
    again = load_stored(tmp_path)
    assert repr(again.dequantised) == repr(graph.dequantised)
    assert [n.id for n in again.nodes] == [n.id for n in graph.nodes]
    assert (graph_digest(again), structure_digest(again)) == (graph_digest(graph), structure_digest(graph))
    assert _whole(again).key == _whole(graph).key
    for v, data in graph.constants.items():
        np.testing.assert_array_equal(again.constants[v], data)
    stored = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(stored)
    assert "w" not in {t.name for t in stored.graph.initializer}
    x = {"x": _RNG.standard_normal((1, 4, 6, 6)).astype(np.float32)}
    np.testing.assert_array_equal(evaluate(again, x)["y"], evaluate(graph, x)["y"])
    (others,) = onnx.reference.ReferenceEvaluator(stored).run(["y"], x)
    np.testing.assert_array_equal(others, evaluate(graph, x)["y"])


def test_a_model_that_was_not_folded_comes_back_as_it_is(tmp_path: Path) -> None:
    """Where the pass is left out, or dequantised values are computed: only what was said to be is folded."""
    graph = from_model(_model(_CONV))
    save_stored(graph, tmp_path)
    again = load_stored(tmp_path)
    assert not again.dequantised
    assert [n.op_type for n in again.nodes] == [n.op_type for n in graph.nodes]


def test_what_another_tool_says_is_dequantised_is_looked_at() -> None:
    model = to_model(_graph("y = Relu (x)"))
    for p in model.graph.node:
        p.metadata_props.add(key=DEQUANTISED_KEY, value="")
    graph = from_model(model)
    assert [n.op_type for n in graph.nodes] == ["Relu"]
    assert not graph.dequantised


def test_libraries_are_handed_the_whole_numbers() -> None:
    graph = _graph()
    group = _whole(graph)
    formats = [[graph.plain_format(v) for v in names] for names in (group.inputs, group.outputs)]
    model = subgraph_model(group, *formats)
    onnx.checker.check_model(model)
    assert [n.op_type for n in model.graph.node].count("DequantizeLinear") == 2
    assert {t.name for t in model.graph.initializer} == {"s", "z", "wq", "ws", "wz"}
    rest = Subgraph(graph, [graph.node_named(n.name).id for n in graph.nodes[:2]])
    formats = [[graph.plain_format(v) for v in names] for names in (rest.inputs, rest.outputs)]
    assert {t.name for t in subgraph_model(rest, *formats).graph.initializer} == {"s", "z"}


def test_what_a_kernel_is_for_tells_how_weights_are_stored() -> None:
    """Their type and their zero points, and no other value of theirs."""
    graph = _graph()
    key = _whole(graph).key
    assert _whole(_graph(seed=1)).key == key
    assert _whole(_graph(zero_point=1)).key != key
    assert _whole(graph.replace(dequantised={})).key != key
    assert graph_digest(_graph(seed=1)) != graph_digest(graph)
    assert graph_digest(graph.replace(dequantised={})) != graph_digest(graph)


def test_weights_of_whole_numbers_are_not_scaled() -> None:
    """A factor folded into them would make floats of them."""
    scaled = f"{_CONV.replace('y = Conv', 'c = Conv')} y = Mul (c, s)"
    assert [n.op_type for n in _graph(scaled).nodes][-2:] == ["Conv", "Mul"]


def test_what_goes_takes_it_with_it() -> None:
    graph = _graph()
    assert not without_unused_values(graph, list(graph.nodes[:2])).dequantised
    other = {**graph.constants, "w": graph.constants["w"] + 1}
    assert not graph.replace(constants=other).dequantised
    assert graph.replace(nodes=graph.nodes).dequantised
    assert fold(graph).dequantised == graph.dequantised


def test_floats_of_eight_bits_are_constants_like_any_other() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 19]> g (float[2] x) => (float[2] y)
        <float s = {0.5}> { v = DequantizeLinear (vq, s) y = Mul (x, v) }"""
    )
    tensor = onnx.helper.make_tensor("vq", onnx.TensorProto.FLOAT8E4M3FN, [2], [1.0, 2.0])
    model.graph.initializer.append(tensor)
    graph = normalise(from_model(model))
    assert graph.constants["v"].tolist() == [0.5, 1.0]
    assert not graph.dequantised


@pytest.mark.parametrize("is_dequantised", [True, False])
def test_the_roofline_reads_what_is_stored(is_dequantised: bool) -> None:
    graph = _graph() if is_dequantised else _graph().replace(dequantised={})
    conv = Subgraph(graph, [graph.nodes[-1].id])
    border = sum(graph.type_of(v).size_bytes for v in (*conv.inputs, *conv.outputs))
    assert work_of(conv).bytes == border + (1 if is_dequantised else 4) * 8 * 4 * 3 * 3


def test_scales_that_are_dequantised_are_floats(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 19]> g (float[2] x) => (float[2] y)
        <float s = {0.5}, uint8 t = {3}, int8[2] vq = {1, -4}> {
        u = DequantizeLinear (t, s) v = DequantizeLinear (vq, u) y = Mul (x, v) }"""
    )
    graph = normalise(from_model(model))
    assert graph.constants["v"].tolist() == [1.5, -6.0]
    assert list(graph.dequantised) == ["v"]
    assert graph.constants.keys() == {"v", "vq", "u"}
    save_stored(graph, tmp_path)
    assert repr(load_stored(tmp_path).dequantised) == repr(graph.dequantised)
