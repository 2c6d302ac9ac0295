"""What the library is known to compute otherwise, or not at all, is declined; each fault is still there."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest
from collage_onnxruntime.backend import OnnxRuntimeBackend

from collage_core.backend import plain_variant
from collage_core.costs.check import compare
from collage_core.errors import Refusal
from collage_core.ir import Subgraph, from_model
from collage_core.reference import evaluate
from collage_core.target import Target
from collage_core.testing import bind, make_group, node

_random = np.random.default_rng(3)
_TARGET = Target("cpu", 2)


def _f(*shape: int) -> Any:
    return _random.standard_normal(shape).astype(np.float32)


_LSTM = {"w": 3 * _f(1, 12, 4), "r": _f(1, 12, 3), "b": _f(1, 24)}
_HEADS = {"q": _f(1, 2, 5, 4), "k": _f(1, 2, 5, 4), "v": _f(1, 2, 5, 4)}
_PADDED = {**_HEADS, "m": _f(5, 3), "n": np.array([3])}


def _resize(**attributes: Any) -> Any:
    return node("Resize", ["x", "", "s"], "o", **attributes)


_IMAGE = {"x": _f(1, 2, 5, 6)}
_DOWN = {"s": np.array([1, 1, 0.6, 0.7], np.float32)}
_CASES = {
    "all keys": (node("Attention", ["q", "k", "v", "m", "", "", "n"], "o"), _PADDED, {}, 24),
    "one zero point": (
        node("ConvInteger", ["x", "w", "", "z"], "o"),
        {"x": _random.integers(0, 9, (1, 1, 3, 3)).astype(np.uint8)},
        {"w": np.ones((2, 1, 2, 2), np.uint8), "z": np.array([1, 2], np.uint8)},
        20,
    ),
    "does not clip": (
        node("LSTM", ["x", "w", "r", "b"], "o", hidden_size=3, clip=0.5),
        {"x": 3 * _f(20, 2, 4)},
        _LSTM,
        20,
    ),
    "output_shape": (
        node("MaxUnpool", ["x", "i", "s"], "o", kernel_shape=[2, 2], strides=[2, 2]),
        {"x": _f(1, 1, 2, 2)},
        {"i": np.array([[[[5, 7], [13, 15]]]]), "s": np.array([1, 1, 5, 5])},
        20,
    ),
    "align_corners with": (
        _resize(mode="linear", coordinate_transformation_mode="align_corners"),
        _IMAGE,
        _DOWN,
        20,
    ),
    "wants what it is given of the past": (
        node("Attention", ["q", "k", "v", "", "pk", "pv"], ["o", "ok"]),
        {**_HEADS, "pk": _f(1, 2, 2, 4), "pv": _f(1, 2, 2, 4)},
        {},
        23,
    ),
    "ReduceSum of int64": (
        node("ReduceSum", ["x"], "o"),
        {"x": np.array([2**53, 1, 1, 1])},
        {},
        20,
    ),
    "Pow of int64": (node("Pow", ["x", "y"], "o"), {"x": np.array([2**53 + 1]), "y": np.array([1])}, {}, 20),
    "shrinks float64": (node("Shrink", ["x"], "o", bias=0.1), {"x": np.array([2.0])}, {}, 20),
    "Einsum of int64": (
        node("Einsum", ["x"], "o", equation="i->"),
        {"x": np.array([2**53 - 1, 1, 1, 1, 1])},
        {},
        20,
    ),
    "ReduceLogSumExp of int64": (node("ReduceLogSumExp", ["x"], "o"), {"x": np.array([4, 3, 3, 4])}, {}, 20),
    "a scale of 0.5 hang on": (
        _resize(nearest_mode="floor", coordinate_transformation_mode="half_pixel_symmetric"),
        {"x": _f(11)},
        {"s": np.array([0.5], np.float32)},
        20,
    ),
    "hang on the last bits": (_resize(nearest_mode="floor"), _IMAGE, _DOWN, 20),
}


@pytest.mark.parametrize("reason", _CASES)
def test_a_fault_is_declined_and_still_there(reason: str, backend: OnnxRuntimeBackend) -> None:
    made, inputs, constants, opset = _CASES[reason]
    group = make_group([made], inputs, constants, opset=opset)
    said = backend.variants(group, _TARGET)
    assert isinstance(said, Refusal)
    assert reason in said.reason
    assert said.node == "o"
    variant = plain_variant(group)
    bound = bind(backend.build(group, variant, _TARGET), group, variant, inputs)
    expected = evaluate(group.graph, inputs, keep=group.outputs)
    try:
        bound.call()
    except Exception:  # whatever the library raises
        return
    assert compare("o", bound.outputs[0], expected["o"])[1] is not None, "it is right by now"


def test_a_batch_normalization_that_trains_writes_into_its_inputs(backend: OnnxRuntimeBackend) -> None:
    made = node("BatchNormalization", ["x", "s", "s", "m", "v"], ["o", "om", "ov"], training_mode=1)
    inputs = {"x": _f(2, 3), "s": _f(3), "m": _f(3), "v": np.abs(_f(3))}
    group = make_group([made], inputs, opset=20)
    said = backend.variants(group, _TARGET)
    assert isinstance(said, Refusal)
    assert "writes the running means into an input" in said.reason
    variant = plain_variant(group)
    bound = bind(backend.build(group, variant, _TARGET), group, variant, inputs)
    given = [a.copy() for a in bound.inputs]
    bound.call()
    assert any((a != b).any() for a, b in zip(given, bound.inputs, strict=True)), "it is right by now"


def test_what_is_wrong_in_a_body_is_declined(backend: OnnxRuntimeBackend) -> None:
    text = """<ir_version: 9, opset_import: ["" : 20]> g (int64[2] x, bool c) => (int64[1] y) {
        y = If (c) <then_branch = t () => (int64[1] n) { n = ReduceSum (x) },
                    else_branch = e () => (int64[1] w) { w = ReduceMax (x) }> }"""
    graph = from_model(onnx.parser.parse_model(text))
    said = backend.variants(Subgraph(graph, graph.all_nodes), _TARGET)
    assert isinstance(said, Refusal)
    assert "ReduceSum of int64" in said.reason
    assert said.node == graph.nodes[0].name


@pytest.mark.parametrize(
    ("nodes", "inputs", "constants"),
    [
        ([_resize(mode="cubic")], _IMAGE, _DOWN),
        ([_resize(mode="cubic"), node("Conv", ["o", "w"], "c")], _IMAGE, {**_DOWN, "w": _f(3, 2, 1, 1)}),
        ([_resize(mode="linear")], _IMAGE, _DOWN),
        ([node("LSTM", ["x", "w", "r", "b"], "o", hidden_size=3)], {"x": _f(5, 2, 4)}, _LSTM),
        ([node("Split", ["x"], ["a", "o", "c"], axis=1, num_outputs=3)], {"x": _f(2, 6)}, {}),
        ([node("TopK", ["x", "k"], ["o", "i"])], {"x": _f(3, 8)}, {"k": np.array([3])}),
    ],
)
def test_neighbours_and_outputs_that_nobody_reads(run: Any, nodes: Any, inputs: Any, constants: Any) -> None:
    group = make_group(nodes, inputs, constants, ["o" if nodes[-1].output[0] != "c" else "c"])
    run(Subgraph(group.graph, group.graph.all_nodes), inputs)
