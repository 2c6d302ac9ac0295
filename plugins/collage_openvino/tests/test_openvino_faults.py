"""What the library is known to compute otherwise is declined, and each fault is still there."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest
from collage_openvino.backend import OpenvinoBackend
from collage_openvino.faults import known_fault
from onnx import TensorProto

from collage_core.backend import plain_variant
from collage_core.costs.check import compare
from collage_core.errors import Refusal
from collage_core.ir import Subgraph, from_model
from collage_core.reference import evaluate
from collage_core.target import Target, processor
from collage_core.testing import bind, make_group, node

_random = np.random.default_rng(3)
_TARGET = Target("cpu", 2)


def _f(*shape: int) -> Any:
    return _random.standard_normal(shape).astype(np.float32)


_LSTM = {"w": _f(1, 12, 4), "r": _f(1, 12, 3), "b": _f(1, 24), "p": _f(1, 9)}
_HEADS = {"q": _f(1, 2, 5, 4), "k": _f(1, 2, 5, 4), "v": _f(1, 2, 5, 4)}
_ROIS = {"r": np.array([[0, 0, 3, 3], [1, 1, 4.5, 2.5]], np.float32), "i": np.array([0, 1])}


def _resize(**attributes: Any) -> Any:
    return node("Resize", ["x", "", "s"], "o", **attributes)


_IMAGE = {"x": _f(1, 2, 5, 6)}
_DOWN = {"s": np.array([1, 1, 0.6, 0.7], np.float32)}
_U8, _I32 = np.array([5, 254, 128], np.uint8), np.array([879336155, 1193874959], np.int32)
_I24 = np.array([2**24], np.int32)
_TIES = np.round(_f(64, 64))
_NO_NUMBER = np.array([np.nan, 1, 2], np.float32)
_CASES = {
    "lets Attention see": (node("Attention", ["q", "k", "v"], "o", left_window_size=1), _HEADS, {}, 25),
    "shifts signed": (
        node("BitShift", ["x", "y"], "o", direction="RIGHT"),
        {"x": np.array([-7, 9], np.int32), "y": np.array([1, 40], np.int32)},
        {},
        28,
    ),
    "transforms along axis 1": (
        node("DFT", ["x", "", "axis"], "o"),
        {"x": _f(1, 5, 4, 1)},
        {"axis": np.array(2)},
        20,
    ),
    "multiplies where": (
        node("DynamicQuantizeLinear", ["x"], ["o", "s", "z"]),
        {"x": np.array([0, 2, -3, -2.5, 1.34, 0.5], np.float32)},
        {},
        20,
    ),
    "cuts LRN's bias": (node("LRN", ["x"], "o", size=3, bias=1.5), {"x": _f(1, 7, 4, 4)}, {}, 20),
    "an even size of LRN": (node("LRN", ["x"], "o", size=4, alpha=0.5), {"x": _f(1, 7, 4, 4)}, {}, 20),
    "peepholes": (
        node("LSTM", ["x", "w", "r", "b", "", "", "", "p"], "o", hidden_size=3),
        {"x": _f(5, 2, 4)},
        _LSTM,
        20,
    ),
    "does not clip": (
        node("LSTM", ["x", "w", "r", "b"], "o", hidden_size=3, clip=0.5),
        {"x": 3 * _f(20, 2, 4)},
        _LSTM,
        20,
    ),
    "leaves out LSTM's input_forget": (
        node("LSTM", ["x", "w", "r", "b"], "o", hidden_size=3, input_forget=1),
        {"x": _f(5, 2, 4)},
        _LSTM,
        20,
    ),
    "HardSigmoid's alpha": (node("HardSigmoid", ["x"], "o", alpha=0.0), {"x": _f(5)}, {}, 22),
    "Selu's alpha": (node("Selu", ["x"], "o", alpha=0.0), {"x": -np.ones(5, np.float32)}, {}, 22),
    "Selu's gamma": (node("Selu", ["x"], "o", gamma=0.0), {"x": _f(5)}, {}, 22),
    "equal maxima in Hardmax": (node("Hardmax", ["x"], "o", axis=1), {"x": _TIES}, {}, 13),
    "maxima in Hardmax": (node("Hardmax", ["x"], "o", axis=1), {"x": _TIES}, {}, 11),
    "the quotient of floats in Mod": (
        node("Mod", ["x", "y"], "o", fmod=1),
        {"x": np.array([-1964.8, 1304.5, -64.5], np.float32)},
        {"y": np.array([0.1], np.float32)},
        20,
    ),
    "takes Greater of": (node("Greater", ["x", "y"], "o"), {"x": _NO_NUMBER, "y": _f(3)}, {}, 20),
    "takes GreaterOrEqual of": (
        node("GreaterOrEqual", ["x", "y"], "o"),
        {"x": _f(3), "y": _NO_NUMBER},
        {},
        20,
    ),
    "NaNs of infinities in ThresholdedRelu": (
        node("ThresholdedRelu", ["x"], "o"),
        {"x": np.array([-np.inf, 2], np.float32)},
        {},
        22,
    ),
    "NaNs of infinities in Shrink": (
        node("Shrink", ["x"], "o"),
        {"x": np.array([-np.inf, np.inf, 2], np.float32)},
        {},
        20,
    ),
    "takes Celu of": (node("Celu", ["x"], "o"), {"x": _NO_NUMBER}, {}, 20),
    "HardSigmoid's beta": (node("HardSigmoid", ["x"], "o", beta=0.0), {"x": _f(5)}, {}, 22),
    "what ReduceL1 without axes": (
        node("ReduceL1", ["x"], "o", noop_with_empty_axes=1),
        {"x": _f(5)},
        {},
        18,
    ),
    "what ReduceL2 without axes": (
        node("ReduceL2", ["x"], "o", noop_with_empty_axes=1),
        {"x": _f(5)},
        {},
        18,
    ),
    "what ReduceLogSum without axes": (
        node("ReduceLogSum", ["x"], "o", noop_with_empty_axes=1),
        {"x": np.array([1, 2], np.float32)},
        {},
        18,
    ),
    "avoid aliases": (_resize(mode="linear", antialias=1), _IMAGE, _DOWN, 20),
    "exclude_outside": (_resize(mode="cubic", exclude_outside=1), _IMAGE, _DOWN, 20),
    "align_corners with": (
        _resize(mode="linear", coordinate_transformation_mode="align_corners"),
        _IMAGE,
        _DOWN,
        20,
    ),
    "hang on the last bits": (_resize(nearest_mode="floor"), _IMAGE, _DOWN, 20),
    "RoiAlign": (
        node("RoiAlign", ["x", "r", "i"], "o", mode="max", output_height=2, output_width=3, sampling_ratio=2),
        {"x": _f(2, 2, 6, 6)},
        _ROIS,
        20,
    ),
    "SpaceToDepth's mode": (
        node("SpaceToDepth", ["x"], "o", blocksize=2, mode="CRD"),
        {"x": _f(1, 4, 4, 6)},
        {},
        28,
    ),
    "adds the bias of a Conv of": (
        node("Conv", ["x", "w", "b"], "o"),
        {"b": _f(3)},
        {"x": _f(1, 2, 5, 5), "w": _f(3, 2, 3, 3)},
        20,
    ),
    "adds the bias of a ConvTranspose": (
        node("ConvTranspose", ["x", "w", "b"], "o"),
        {"b": _f(3)},
        {"x": _f(1, 2, 5, 5), "w": _f(2, 3, 3, 3)},
        20,
    ),
    "pads with zeros": (
        node("Pad", ["x", "p", "v"], "o"),
        {"x": _f(3), "v": _f()},
        {"p": np.array([1, 0])},
        20,
    ),
    "without a ratio": (node("RoiAlign", ["x", "r", "i"], "o"), {"x": _f(2, 2, 6, 6)}, _ROIS, 20),
    "int32s for false": (
        node("Cast", ["x"], "o", to=TensorProto.BOOL),
        {"x": np.array([-(2**31), 2], np.int32)},
        {},
        20,
    ),
    "float32s for false": (
        node("Cast", ["x"], "o", to=TensorProto.BOOL),
        {"x": np.array([np.nan, 2], np.float32)},
        {},
        20,
    ),
    "Sub of uint8": (node("Sub", ["x", "y"], "o"), {"x": _U8, "y": _U8[::-1].copy()}, {}, 20),
    "Abs of int8": (node("Abs", ["x"], "o"), {"x": np.array([-128, 3], np.int8)}, {}, 20),
    "Div of int8": (
        node("Div", ["x", "y"], "o"),
        {"x": np.array([-128, 9], np.int8), "y": np.array([-1, 2], np.int8)},
        {},
        20,
    ),
    "BitShift of uint8": (
        node("BitShift", ["x", "y"], "o", direction="LEFT"),
        {"x": _U8, "y": np.array([1, 1, 1], np.uint8)},
        {},
        20,
    ),
    "Equal of int32": (node("Equal", ["x", "y"], "o"), {"x": _I24, "y": _I24 + np.int32(1)}, {}, 20),
    "Less of int32": (node("Less", ["x", "y"], "o"), {"x": _I24, "y": _I24 + np.int32(1)}, {}, 20),
    "Clip of int32": (
        node("Clip", ["x", "l", "h"], "o"),
        {"x": np.array([2**24 + 1, 2**31 - 1, -(2**31), 5], np.int32)},
        {"l": np.array(1 - 2**31, np.int32), "h": np.array(2**24 + 1, np.int32)},
        20,
    ),
    "Pad of int32": (
        node("Pad", ["x", "p", "v"], "o"),
        {"x": _I24},
        {"p": np.array([1, 0]), "v": np.array(2**24 + 1, np.int32)},
        20,
    ),
    "Pow of int32": (
        node("Pow", ["x", "y"], "o"),
        {"x": np.array([-1], np.float32), "y": _I24 + np.int32(1)},
        {},
        20,
    ),
    "takes some int32s": (
        node("CastLike", ["x", "y"], "o"),
        {"x": np.array([-(2**31), 2], np.int32), "y": np.array([True])},
        {},
        20,
    ),
    "AveragePool's last windows": (
        node(
            "AveragePool",
            ["x"],
            "o",
            kernel_shape=[3, 3],
            ceil_mode=1,
            strides=[2, 3],
            pads=[1, 0, 1, 1],
            count_include_pad=1,
        ),
        {"x": np.ones((1, 1, 10, 8), np.float32)},
        {},
        22,
    ),
    "PRelu's slopes": (
        node("PRelu", ["x", "s"], "o"),
        {"x": -np.ones((1, 3, 3, 3), np.float32)},
        {"s": np.array([1, 10, 100], np.float32)},
        16,
    ),
    "LpPool's last windows": (
        node("LpPool", ["x"], "o", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1, p=1),
        {"x": _f(1, 1, 4, 5)},
        {},
        22,
    ),
    "indices of MaxPool": (
        node("MaxPool", ["x"], ["o", "i"], kernel_shape=[2, 3], strides=[2, 2], storage_order=1),
        {"x": _f(1, 2, 5, 6)},
        {},
        21,
    ),
    "what ReduceLogSum without": (
        node("ReduceLogSum", ["x", "e"], "o", noop_with_empty_axes=1),
        {"x": np.array([1, 2], np.float32)},
        {"e": np.zeros(0, np.int64)},
        18,
    ),
    "Relu of int32": (node("Relu", ["x"], "o"), {"x": _I32}, {}, 20),
    "ReduceSum of int32": (node("ReduceSum", ["x"], "o"), {"x": _I32}, {}, 20),
    "Div of int32": (node("Div", ["x", "y"], "o"), {"x": _I32, "y": np.array([3, 5], np.int32)}, {}, 20),
}

_OF_AVX512 = ("takes Greater of", "takes GreaterOrEqual of")
"""Declined everywhere: which code runs is the library's to decide."""


@pytest.mark.parametrize("reason", _CASES)
def test_a_fault_is_declined_and_still_there(reason: str) -> None:
    made, inputs, constants, opset = _CASES[reason]
    read = {v: a for v, a in constants.items() if v in made.input}
    group = make_group([made], inputs, read, list(made.output), opset=opset)
    said = OpenvinoBackend().variants(group, _TARGET)
    assert isinstance(said, Refusal)
    assert reason in said.reason
    assert said.node == "o"
    variant = plain_variant(group)
    bound = bind(OpenvinoBackend().build(group, variant, _TARGET), group, variant, inputs)
    for _ in range(2):  # some are wrong from the second run on
        assert not bound.call()
    expected = evaluate(group.graph, inputs, keep=group.outputs)
    found = dict(zip(group.outputs, bound.outputs, strict=True))
    is_there = reason not in _OF_AVX512 or "avx512f" in processor().instructions
    is_wrong = any(compare(v, found[v], expected[v])[1] is not None for v in group.outputs)
    assert is_wrong == is_there, "it is wrong here, too" if is_wrong else "it is right by now"


def test_an_if_does_not_write_over_what_is_returned() -> None:
    text = """<ir_version: 9, opset_import: ["" : 20]> g (float[2] x, bool c) => (float[2] b, float[2] y) {
        b = Relu (x)
        y = If (c) <then_branch = t () => (float[2] v) { v = Neg (b) },
                    else_branch = e () => (float[2] w) { w = Abs (b) }> }"""
    graph = from_model(onnx.parser.parse_model(text))
    said = OpenvinoBackend().variants(Subgraph(graph, graph.all_nodes), _TARGET)
    assert isinstance(said, Refusal)
    assert "lets an If write over 'b', which is returned" in said.reason
    assert not isinstance(OpenvinoBackend().variants(Subgraph(graph, [graph.nodes[1].id]), _TARGET), Refusal)


@pytest.mark.parametrize("body", ["n = Sub (x, x)", "b = Sub (x, x) n = Max (b, x)"])
def test_what_is_wrong_in_a_body_is_declined(body: str) -> None:
    text = f"""<ir_version: 9, opset_import: ["" : 20]> g (uint8[2] x, bool c) => (uint8[2] y) {{
        y = If (c) <then_branch = t () => (uint8[2] n) {{ {body} }},
                    else_branch = e () => (uint8[2] w) {{ w = Min (x, x) }}> }}"""
    graph = from_model(onnx.parser.parse_model(text))
    said = OpenvinoBackend().variants(Subgraph(graph, graph.all_nodes), _TARGET)
    assert isinstance(said, Refusal)
    assert "cuts Sub of uint8 off" in said.reason
    assert said.node == graph.nodes[0].name


def test_what_is_computed_of_constants_is_written_over() -> None:
    """Elementwise operators work in place, on what is computed once."""
    nodes = [node("LRN", ["x"], "h", size=3), node("Add", ["h", "b"], "o")]
    group = make_group(nodes, {"b": _f(1, 7, 4, 4)}, {"x": _f(1, 7, 4, 4)}, ["o"])
    said = OpenvinoBackend().variants(group, _TARGET)
    assert isinstance(said, Refusal)
    assert "LRN of constants" in said.reason
    b = _f(1, 7, 4, 4)
    bound = bind(
        OpenvinoBackend().build(group, plain_variant(group), _TARGET), group, plain_variant(group), {"b": b}
    )
    for _ in range(2):
        assert not bound.call()
    expected = evaluate(group.graph, {"b": b}, keep=group.outputs)
    assert compare("o", bound.outputs[0], expected["o"])[1] is not None, "it is right by now"


_RIGHT = {
    "LRN": (node("LRN", ["x"], "o", size=3, bias=2.0, alpha=0.5), {"x": _f(1, 7, 4, 4)}, {}),
    "RoiAlign": (
        node("RoiAlign", ["x", "r", "i"], "o", output_height=2, output_width=3, sampling_ratio=2),
        {"x": _f(2, 2, 6, 6)},
        _ROIS,
    ),
    "linear Resize": (_resize(mode="linear"), _IMAGE, _DOWN),
    "cubic Resize": (_resize(mode="cubic"), _IMAGE, _DOWN),
    "nearest Resize": (_resize(), _IMAGE, {"s": np.array([1, 1, 2, 3], np.float32)}),
    "LSTM": (node("LSTM", ["x", "w", "r", "b"], "o", hidden_size=3), {"x": _f(5, 2, 4)}, _LSTM),
}


@pytest.mark.parametrize("name", _RIGHT)
def test_its_neighbours_are_not_declined(name: str, check: Any) -> None:
    made, inputs, constants = _RIGHT[name]
    check([made], inputs, constants={v: a for v, a in constants.items() if v in made.input})


def test_a_fault_anywhere_in_a_group_declines_it() -> None:
    nodes = [node("Relu", ["x"], "a"), node("LRN", ["a"], "o", size=4), node("Neg", ["a"], "b")]
    group = make_group(nodes, {"x": _f(1, 7, 4, 4)}, outputs=["o", "b"])
    said = known_fault(group)
    assert said is not None
    assert said.node == "o"
    assert known_fault(Subgraph(group.graph, [0, 2])) is None


@pytest.mark.parametrize(
    ("nodes", "inputs", "constants", "output"),
    [
        ([node("Split", ["x"], ["a", "o", "c"], axis=1, num_outputs=3)], {"x": _f(2, 6)}, {}, "o"),
        (
            [node("Split", ["x"], ["a", "b"], axis=1, num_outputs=2), node("Relu", ["b"], "o")],
            {"x": _f(2, 6)},
            {},
            "o",
        ),
        ([node("TopK", ["x", "k"], ["o", "i"])], {"x": _f(3, 8)}, {"k": np.array([3])}, "o"),
        ([node("LSTM", ["x", "w", "r"], ["y", "o", "c"], hidden_size=3)], {"x": _f(5, 2, 4)}, _LSTM, "o"),
    ],
)
def test_outputs_that_nobody_reads(check: Any, nodes: Any, inputs: Any, constants: Any, output: str) -> None:
    used = {v for n in nodes for v in n.input}
    check(nodes, inputs, [output], {v: a for v, a in constants.items() if v in used})
