"""Groups on whole numbers, against the reference: a step apart at most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import pytest
from collage_dnnl import quantised
from collage_dnnl.backend import DnnlBackend
from collage_dnnl.kernels.kernel import PrimitiveKernel
from collage_dnnl.patterns import patterns
from collage_dnnl.quantised import parse_group
from collage_dnnl.rules import POST_OPS_RULE

from collage_core.devices import IMMEDIATE
from collage_core.errors import Refusal
from collage_core.formats import Array, channels_last, empty, plain
from collage_core.ir import Graph, NodeSet, Subgraph, TensorType
from collage_core.ir.passes import normalise
from collage_core.patterns import find_matches
from collage_core.reference import evaluate
from collage_core.rules import generate
from collage_core.target import Processor, Target, processor
from collage_core.testing import check_group, make_graph, node

UNITS = pytest.mark.skipif(not processor().multiplies_int8, reason="the processor has no units for it")

_WHOLE = "vnni", "amx"
"""Names of implementations that multiply whole numbers."""
_TARGET = Target("cpu", 2)
_RNG = np.random.default_rng(7)
_ZERO = {"uint8": 131, "int8": -3, "float32": 0}
_INPUT_SCALE, _OUTPUT_SCALE = np.float32(0.03), np.float32(0.21)

_Nodes = Sequence[onnx.NodeProto]


def _whole(*shape: int, dtype: str = "int8") -> Array:
    low, high = {"int8": (-127, 128), "uint8": (0, 256), "int32": (-3000, 3000)}[dtype]
    return _RNG.integers(low, high, shape).astype(dtype)


def _graph(nodes: _Nodes, inputs: Mapping[str, Array], constants: Mapping[str, Array]) -> Graph:
    """Of nodes that read d, which x becomes, and end in y or in r, which is quantised as y."""
    given = str(inputs["x"].dtype)
    of_both: dict[str, Array] = {
        "s": np.asarray(_INPUT_SCALE),
        "z": np.array(_ZERO[given], given),
        "t": np.asarray(_OUTPUT_SCALE),
        "o": np.array(_ZERO["uint8"], "uint8"),
    }
    before = node("DequantizeLinear", ["x", "s", "z"], "d")
    return normalise(make_graph([before, *nodes], inputs, {**of_both, **constants}))


def _quantised(made: str) -> list[onnx.NodeProto]:
    """r as y."""
    if made == "uint8":
        return [node("QuantizeLinear", ["r", "t", "o"], "y")]
    return [node("QuantizeLinear", ["r", "t", "p"], "y")] if made == "int8" else [node("Neg", ["r"], "y")]


def _conv(
    x: Array,
    channels: int,
    steps: _Nodes,
    *,
    scales: int | None = None,
    kernel: Sequence[int] = (3, 3),
    bias: bool = True,
    more: Mapping[str, Array] = MappingProxyType({}),
    inputs: Mapping[str, Array] | None = None,
    **attributes: Any,
) -> Graph:
    """`steps` read c. scales: of the weights, one for each channel where None. more: constants, or others."""
    ws = _RNG.uniform(0.001, 0.003, scales or channels).astype(np.float32)
    constants = {
        "wq": _whole(channels, x.shape[1] // attributes.get("group", 1), *kernel),
        "ws": ws if scales is None else ws.reshape(()),
        "bq": _whole(channels, dtype="int32"),
        "bs": np.broadcast_to(ws * _INPUT_SCALE, (channels,)).copy(),
        "wz": np.zeros(scales or channels, np.int8),
        "p": np.array(_ZERO["int8"], np.int8),
        **more,
    }
    weights = [
        node("DequantizeLinear", ["wq", "ws", "wz"], "w", axis=0),
        node("DequantizeLinear", ["bq", "bs"], "b", axis=0),
    ]
    conv = node("Conv", ["d", "w", *(["b"] if bias else [])], "c", **attributes)
    return _graph([*weights, conv, *steps], inputs or {"x": x}, constants)


def _check(graph: Graph, inputs: Mapping[str, Array]) -> PrimitiveKernel:
    """The first kernel of the whole graph; all are compiled, and right."""
    group = Subgraph(graph, graph.all_nodes)
    kernels = list(check_group(DnnlBackend(), group, inputs, _TARGET).values())
    assert kernels
    for kernel in kernels:
        assert isinstance(kernel, PrimitiveKernel)
        assert "ref" not in kernel.implementation
    assert isinstance(kernels[0], PrimitiveKernel)
    return kernels[0]


@UNITS
@pytest.mark.parametrize("given", ["uint8", "int8"])
@pytest.mark.parametrize("made", ["uint8", "int8", "float32"])
def test_convolutions(given: str, made: str) -> None:
    """Of whole numbers, to whole numbers or to floats."""
    x = _whole(2, 16, 9, 11, dtype=given)
    steps = [node("Relu", ["c"], "r"), *_quantised(made)]
    kernel = _check(_conv(x, 24, steps, pads=[1, 1, 1, 1]), {"x": x})
    assert any(name in kernel.implementation for name in (*_WHOLE, "int8"))


@UNITS
@pytest.mark.parametrize(
    ("shape", "channels", "attributes"),
    [
        ((1, 16, 9, 11), 24, {"strides": [2, 2], "pads": [0, 1, 1, 0]}),
        ((1, 32, 8, 8), 32, {"group": 32, "pads": [1, 1, 1, 1]}),
        ((1, 32, 8, 8), 64, {"group": 4}),
        ((1, 3, 17, 17), 16, {"strides": [2, 2]}),
        ((1, 16, 8, 8), 16, {"dilations": [2, 2], "pads": [2, 2, 2, 2]}),
        ((1, 16, 8, 8), 16, {"kernel": [1, 1]}),
        ((1, 16, 40), 16, {"kernel": [5]}),
        ((1, 16, 5, 6, 7), 16, {"kernel": [3, 3, 3]}),
        ((1, 7, 8, 8), 5, {}),
    ],
    ids=["strides", "depthwise", "groups", "image", "dilations", "pointwise", "1-D", "3-D", "odd"],
)
@pytest.mark.parametrize("scales", [None, 1], ids=["per channel", "one scale"])
def test_convolutions_of_all_kinds(
    shape: tuple[int, ...], channels: int, attributes: dict[str, Any], scales: int | None
) -> None:
    """Padding is what the zero point stands for."""
    x = _whole(*shape, dtype="uint8")
    steps = [node("Identity", ["c"], "r"), *_quantised("uint8")]
    _check(_conv(x, channels, steps, scales=scales, **attributes), {"x": x})


@UNITS
@pytest.mark.parametrize("bias", [True, False])
def test_steps_between_product_and_quantising(bias: bool) -> None:
    """What oneDNN does in floats, and constants for each channel."""
    x = _whole(1, 16, 8, 8, dtype="uint8")
    more: dict[str, Array] = {
        "f": _RNG.uniform(0.5, 1, (24, 1, 1)).astype(np.float32),
        "six": np.array(6, np.float32),
    }
    steps = [
        node("Clip", ["c", "", "six"], "u"),
        node("Mul", ["u", "f"], "v"),
        node("Tanh", ["v"], "r"),
        *_quantised("uint8"),
    ]
    _check(_conv(x, 24, steps, bias=bias, more=more), {"x": x})


@UNITS
@pytest.mark.parametrize("op", ["MatMul", "Gemm", "Gemm'"])
@pytest.mark.parametrize("made", ["uint8", "float32"])
def test_products(op: str, made: str) -> None:
    """Rows of a matrix, or of several; weights as they are, or transposed."""
    shape = (3, 17, 64) if op == "MatMul" else (17, 64)
    x = _whole(*shape, dtype="uint8")
    transposed = op.endswith("'")
    scales = _RNG.uniform(0.001, 0.003, 48).astype(np.float32)
    constants = {
        "wq": _whole(*((48, 64) if transposed else (64, 48))),
        "ws": scales,
        "bq": _whole(48, dtype="int32"),
        "bs": scales * _INPUT_SCALE,
    }
    attributes = {"transB": 1} if transposed else {}
    product = node(op.rstrip("'"), ["d", "w", *([] if op == "MatMul" else ["b"])], "c", **attributes)
    bias = [node("Add", ["c", "b"], "e")] if op == "MatMul" else [node("Relu", ["c"], "e")]
    nodes = [
        node("DequantizeLinear", ["wq", "ws"], "w", axis=0 if transposed else 1),
        node("DequantizeLinear", ["bq", "bs"], "b", axis=0),
        product,
        *bias,
        node("Relu", ["e"], "r"),
        *_quantised(made),
    ]
    graph = _graph(nodes, {"x": x}, constants)
    implementation = _check(graph, {"x": x}).implementation
    assert any(name in implementation for name in _WHOLE)


@UNITS
@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("op", ["QLinearConv", "QLinearMatMul"])
def test_operators_of_whole_numbers(op: str, per_channel: bool) -> None:
    """What the pass makes of them is one kernel, and right beside the operator itself."""
    is_conv = op == "QLinearConv"
    x = _whole(*((2, 16, 9, 11) if is_conv else (2, 17, 64)), dtype="uint8")
    scales = _RNG.uniform(0.001, 0.003, 24 if per_channel else ()).astype(np.float32)
    constants: dict[str, Array] = {
        "s": np.asarray(_INPUT_SCALE),
        "z": np.array(_ZERO["uint8"], np.uint8),
        "wq": _whole(*((24, 16, 3, 3) if is_conv else (64, 24))),
        "ws": scales,
        "wz": np.zeros(scales.shape, np.int8),
        "t": np.asarray(_OUTPUT_SCALE),
        "bq": _whole(24, dtype="int32"),
    }
    operands = ["x", "s", "z", "wq", "ws", "wz", "t", "z", *(["bq"] if is_conv else [])]
    attributes = {"pads": [1, 1, 1, 1]} if is_conv else {}
    given = make_graph([node(op, operands, "y", **attributes)], {"x": x}, constants)
    graph = normalise(given)
    group = Subgraph(graph, graph.all_nodes)
    right = evaluate(given, {"x": x})
    kernels = check_group(DnnlBackend(), group, {"x": x}, _TARGET, expected=right)
    assert kernels
    assert all(isinstance(k, PrimitiveKernel) and "ref" not in k.implementation for k in kernels.values())


def _sum(relu: bool, *, other: Array | None = None, op: str = "Add") -> tuple[Graph, dict[str, Array]]:
    x = _whole(1, 16, 8, 8, dtype="uint8")
    inputs = {"x": x, "x2": _whole(1, 16, 8, 8, dtype="int8") if other is None else other}
    constants: dict[str, Array] = {"s2": np.array(0.02, np.float32), "z2": np.array(5, inputs["x2"].dtype)}
    nodes = [
        node("DequantizeLinear", ["x2", "s2", "z2"], "e"),
        node(op, ["d", "e"], "a"),
        node("Relu" if relu else "Identity", ["a"], "r"),
        *_quantised("uint8"),
    ]
    return _graph(nodes, inputs, constants), inputs


@pytest.mark.parametrize("relu", [True, False])
def test_sums_of_two_that_are_quantised(relu: bool) -> None:
    graph, inputs = _sum(relu)
    _check(graph, inputs)
    found = [m.subgraph.node_set for p in patterns() for m in find_matches(graph, p.pattern)]
    assert graph.all_nodes in found


@UNITS
def test_the_rule_finds_products_with_what_is_quantised() -> None:
    """And each part of them that is a kernel as well."""
    x = _whole(1, 16, 8, 8, dtype="uint8")
    graph = _conv(x, 16, [node("Relu", ["c"], "r"), *_quantised("uint8")])
    found = {tuple(graph.node(i).op_type for i in nodes) for nodes in generate(graph, POST_OPS_RULE).groups}
    product = ("DequantizeLinear", "Conv")
    assert {(*product, "Relu", "QuantizeLinear"), product, (*product, "Relu"), ("Conv", "Relu")} <= found
    assert {("DequantizeLinear",), ("QuantizeLinear",)} <= found


@pytest.fixture
def units(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor has units for whole numbers, as far as anybody is told."""
    monkeypatch.setattr(quantised, "processor", lambda: Processor("newer", ("avx512_vnni",)))


def _refused(graph: Graph, *left_out: str) -> str:
    group = Subgraph(graph, NodeSet(n.id for n in graph.nodes if n.name not in left_out))
    found = parse_group(group)
    assert isinstance(found, Refusal)
    return found.reason


@pytest.mark.usefixtures("units")
def test_what_is_no_primitive_on_whole_numbers_is_refused() -> None:
    x = _whole(1, 16, 8, 8, dtype="uint8")
    steps = [node("Relu", ["c"], "r"), *_quantised("uint8")]
    graph = _conv(x, 16, steps)
    assert "nothing is computed between the two" in _refused(graph, "c", "r")
    floats = graph.replace(dequantised={})
    assert "weights that are floats" in _refused(floats)
    cases: list[tuple[dict[str, Array], str]] = [
        ({"wz": np.full(16, 1, np.int8)}, "weights with a zero point"),
        ({"wq": _whole(16, 16, 3, 3, dtype="uint8"), "wz": np.zeros(16, np.uint8)}, "uint8, not int8"),
        ({"t": np.full(16, 0.2, np.float32), "o": np.zeros(16, np.uint8)}, "several scales of what is no"),
    ]
    for more, why in cases:
        assert why in _refused(_conv(x, 16, steps, more=more))
    added = [node("Add", ["c", "x2"], "r"), *_quantised("uint8")]
    inputs = {"x": x, "x2": np.ones((1, 16, 6, 6), np.float32)}
    assert "an operand beside what is quantised is computed" in _refused(_conv(x, 16, added, inputs=inputs))
    assert "outside it" in _refused(graph.replace(outputs=["y", "r"]))
    assert "outside it" in _refused(graph.replace(outputs=["y", "d"]))
    other, _ = _sum(False, op="Mul")
    assert "no sum of the two" in _refused(other)
    broadcast, _ = _sum(False, other=_whole(16, 1, 1, dtype="int8"))
    assert "a sum of two of other shapes" in _refused(broadcast)


def test_processors_whose_products_saturate_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantised, "processor", lambda: Processor("older", ("avx2",)))
    x = _whole(1, 16, 8, 8, dtype="uint8")
    graph = _conv(x, 16, [node("Relu", ["c"], "r"), *_quantised("uint8")])
    assert "saturate" in _refused(graph)


@pytest.mark.parametrize("given", ["uint8", "int8"])
@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ("GlobalMaxPool", {}),
        ("AveragePool", {"kernel_shape": [3, 3]}),
        ("GlobalAveragePool", {}),
    ],
)
def test_pooling(op: str, attributes: dict[str, Any], given: str) -> None:
    """The largest, quantised as before; averages, also otherwise."""
    x = _whole(2, 16, 9, 9, dtype=given)
    pool = node(op, ["d"], "r", **attributes)
    same = {"t": np.asarray(_INPUT_SCALE), "o": np.array(_ZERO[given], given)}
    other = {"t": np.asarray(_INPUT_SCALE / np.float32(1.5)), "o": np.array(_ZERO[given] - 2, given)}
    for constants in [same, *([] if "Max" in op else [other])]:
        graph = _graph([pool, node("QuantizeLinear", ["r", "t", "o"], "y")], {"x": x}, constants)
        _check(graph, {"x": x})
    if "Max" in op:
        graph = _graph([pool, node("QuantizeLinear", ["r", "t", "o"], "y")], {"x": x}, other)
        assert "quantised otherwise" in _refused(graph)


@pytest.mark.parametrize("given", ["uint8", "int8"])
@pytest.mark.parametrize("steps", ["gelu", "quantised bias"])
def test_elementwise(steps: str, given: str) -> None:
    """With constants that are quantised: of floats oneDNN compiles none beside whole numbers."""
    x = _whole(2, 5, 7, 16, dtype=given)
    constants = {
        "vq": _whole(16, dtype="uint8"),
        "vs": np.array(0.011, np.float32),
        "vz": np.array(99, np.uint8),
    }
    nodes: dict[str, _Nodes] = {
        "quantised bias": [
            node("DequantizeLinear", ["vq", "vs", "vz"], "v"),
            node("Add", ["v", "d"], "u"),
            node("Tanh", ["u"], "r"),
        ],
        "gelu": [node("Gelu", ["d"], "r")],
    }
    graph = _graph([*nodes[steps], *_quantised("uint8")], {"x": x}, constants)
    _check(graph, {"x": x})
    last = graph.nodes[-1].name
    assert "is not quantised again" in _refused(graph, last)


@pytest.mark.parametrize("given", ["uint8", "int8"])
def test_whole_numbers_are_dequantised(given: str) -> None:
    x = _whole(2, 5, 7, 16, dtype=given)
    constants = {"s": np.asarray(_INPUT_SCALE), "z": np.array(_ZERO[given], given)}
    graph = normalise(make_graph([node("DequantizeLinear", ["x", "s", "z"], "y")], {"x": x}, constants))
    _check(graph, {"x": x})


@pytest.mark.parametrize("made", ["uint8", "int8"])
def test_floats_are_quantised(made: str) -> None:
    x = (_RNG.standard_normal((2, 3, 17, 5)) * 20).astype(np.float32)
    constants = {"s": np.array(0.2, np.float32), "z": np.array(_ZERO[made], made)}
    graph = normalise(make_graph([node("QuantizeLinear", ["x", "s", "z"], "y")], {"x": x}, constants))
    _check(graph, {"x": x})
    offered = DnnlBackend().variants(Subgraph(graph, graph.all_nodes), _TARGET)
    assert not isinstance(offered, Refusal)
    assert {v.inputs[0].layout == v.outputs[0].layout for v in offered} == {True}, "else zero points are lost"


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_whole_numbers_change_their_layout(dtype: str) -> None:
    shape, backend = (2, 5, 4, 3), DnnlBackend()
    type, x = TensorType(dtype, shape), _whole(*shape, dtype=dtype)
    formats = plain(dtype, shape), channels_last(dtype, shape)
    for source, destination in (formats, formats[::-1]):
        assert backend.converts(type, source, destination, _TARGET)
        kernel = backend.build_conversion(type, source, destination, _TARGET)
        given, made = (empty(shape, f) for f in (source, destination))
        given[...] = x
        assert not kernel.bind([given], [made], np.empty(kernel.workspace_bytes, np.uint8), IMMEDIATE)()
        np.testing.assert_array_equal(made, x)
    assert not backend.converts(type, formats[0], plain("float32", shape), _TARGET)


@pytest.mark.usefixtures("units")
@pytest.mark.parametrize("scale", [-0.1, 0.0, 1e-40, 3e38])
def test_scales_that_order_or_range_forbid_are_refused(scale: float) -> None:
    x = _whole(1, 16, 8, 8, dtype="uint8")
    odd: dict[str, Array] = {"t": np.array(scale, np.float32)}
    steps = [node("Relu", ["c"], "r"), *_quantised("uint8")]
    assert "a scale of" in _refused(_conv(x, 16, steps, more=odd))
    assert "not positive" in _refused(_conv(x, 16, steps, more={"ws": np.full(16, scale, np.float32)}))
