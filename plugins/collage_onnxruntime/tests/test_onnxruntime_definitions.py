"""What this package says of ONNX Runtime's own operators, beside the operators themselves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from collage_onnxruntime.backend import OnnxRuntimeBackend
from collage_onnxruntime.definitions import definitions
from collage_onnxruntime.definitions.quantised import STATED
from onnx import helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from collage_core import build, optimize
from collage_core.errors import ModelError
from collage_core.formats import Array
from collage_core.ir import Subgraph, from_model
from collage_core.ir.passes import normalise
from collage_core.pipeline.effort import QUICK
from collage_core.reference import evaluate
from collage_core.target import Target
from collage_core.testing import check_group

_RNG = np.random.default_rng(5)
_STEPS = """float as = {0.02}, uint8 az = {120}, float bs = {0.03}, uint8 bz = {7},
    float cs = {0.04}, uint8 cz = {99}, float ps = {0.00390625}, uint8 pz = {0}"""
_IMAGES: dict[str, Array] = {"a": _RNG.integers(0, 256, (2, 4, 6, 6)).astype(np.uint8)}
_IMAGES["b"] = _IMAGES["a"][:, ::-1].copy()
_ROWS: dict[str, Array] = {"a": _RNG.integers(0, 256, (5, 12)).astype(np.uint8)}
_WEIGHTS: dict[str, Array] = {
    # Of seven bits: with more, sums of the library's own saturate on older processors.
    "w": _RNG.integers(-63, 64, (12, 8)).astype(np.int8),
    "ws": _RNG.uniform(0.01, 0.02, 8).astype(np.float32),
    "wz": np.zeros(8, np.int8),
    "bias": _RNG.integers(-999, 999, 8).astype(np.int32),
}
_TURNED = {**_WEIGHTS, "w": _WEIGHTS["w"].T.copy()}
_TWO = "(a, as, az, b, bs, bz, cs, cz)"
_ONE = "(a, as, az, cs, cz)"

_Case = tuple[dict[str, Array], dict[str, Array], str]
"""Inputs, constants, and nodes that make c of them."""

_CASES: dict[str, _Case] = {
    "QLinearAdd": (_IMAGES, {}, f"c = com.microsoft.QLinearAdd {_TWO}"),
    "QLinearMul": (_IMAGES, {}, f"c = com.microsoft.QLinearMul {_TWO}"),
    "QLinearSigmoid": (_IMAGES, {}, "c = com.microsoft.QLinearSigmoid (a, as, az, ps, pz)"),
    "QLinearLeakyRelu": (_IMAGES, {}, f"c = com.microsoft.QLinearLeakyRelu <alpha: float = 0.2> {_ONE}"),
    "QLinearSoftmax": (
        _ROWS,
        {},
        "c = com.microsoft.QLinearSoftmax <axis: int = 1, opset: int = 13> (a, as, az, ps, pz)",
    ),
    "QLinearAveragePool": (
        _IMAGES,
        {},
        "c = com.microsoft.QLinearAveragePool <kernel_shape: ints = [3, 3], pads: ints = [1, 1, 1, 1], "
        f'auto_pad: string = "NOTSET"> {_ONE}',
    ),
    "QLinearGlobalAveragePool": (_IMAGES, {}, f"c = com.microsoft.QLinearGlobalAveragePool {_ONE}"),
    "QLinearConcat": (
        _IMAGES,
        {},
        "c = com.microsoft.QLinearConcat <axis: int = 1> (cs, cz, a, as, az, b, bs, bz, a, bs, bz)",
    ),
    "QLinearWhere": (
        _IMAGES,
        {"d": _IMAGES["a"][:, :1] > 99},
        "c = com.microsoft.QLinearWhere (d, a, as, az, b, bs, bz, cs, cz)",
    ),
    "QGemm": (
        _ROWS,
        _WEIGHTS,
        "c = com.microsoft.QGemm <alpha: float = 0.5> (a, as, az, w, ws, wz, bias, cs, cz)",
    ),
    "QGemm, turned, to floats": (
        _ROWS,
        _TURNED,
        "c = com.microsoft.QGemm <transB: int = 1> (a, as, az, w, ws, wz, bias)",
    ),
    "QGemm without a bias": (_ROWS, _WEIGHTS, 'c = com.microsoft.QGemm (a, as, az, w, ws, wz, "", cs, cz)'),
    "DequantizeLinear": (_IMAGES, {}, "c = com.microsoft.DequantizeLinear (a, as, az)"),
    "QuantizeLinear": (
        _IMAGES,
        {},
        "f = com.microsoft.DequantizeLinear (a, as, az) c = com.microsoft.QuantizeLinear (f, bs, bz)",
    ),
}


def _model(inputs: dict[str, Array], constants: dict[str, Array], text: str, opset: int) -> onnx.ModelProto:
    given = ", ".join(f"uint8[{','.join(map(str, a.shape))}] {v}" for v, a in inputs.items())
    kind = "float" if text.startswith("c = com.microsoft.DequantizeLinear") or "bias)" in text else "uint8"
    head = f'<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]>'
    model = onnx.parser.parse_model(f"{head} g ({given}) => ({kind} c) <{_STEPS}> {{ {text} }}")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, v) for v, a in constants.items())
    return model


def _asked(model: onnx.ModelProto, inputs: dict[str, Array]) -> Array:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    (found,) = session.run(None, inputs)
    return np.asarray(found)


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("name", _CASES)
def test_it_computes_the_same(name: str, opset: int) -> None:
    inputs, constants, text = _CASES[name]
    model = _model(inputs, constants, text, opset)
    expected = _asked(model, inputs)
    read = from_model(model, definitions=definitions())
    assert not any(n.domain for n in read.nodes)
    for graph in (read, normalise(read)):
        (found,) = evaluate(graph, inputs).values()
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        off = np.abs(found.astype(np.float64) - expected.astype(np.float64)).max()
        assert off <= (1 if expected.dtype == np.uint8 else 1e-4 * np.abs(expected).max())


def test_each_has_a_case() -> None:
    named = " ".join(text for _, _, text in _CASES.values())
    elsewhere = {"MatMulNBits", "DynamicQuantizeMatMul", "MatMulIntegerToFloat"}
    assert {name for name in STATED if f"com.microsoft.{name} " not in named} == elsewhere


@pytest.mark.parametrize(
    ("text", "opset"),
    [
        ("c = com.microsoft.QLinearSoftmax <axis: int = 1, opset: int = 11> (a, as, az, ps, pz)", 13),
        ("c = com.microsoft.QLinearGlobalAveragePool <channels_last: int = 1> (a, as, az, cs, cz)", 13),
        ('c = com.microsoft.QGemm (a, as, az, b, bs, bz, "", cs, cz)', 11),
        ("c = com.microsoft.DequantizeLinear <axis: int = 0> (a, as, az)", 12),
        ("c = com.microsoft.QLinearAdd (a, as, az, b, bs, bz, cs, cz)", 9),
        ("c = com.microsoft.QLinearAdd (a, as, az, b, bs, bz, cs)", 17),
        ('c = com.microsoft.QLinearSigmoid (a, as, az, ps, "")', 17),
        ('c = com.microsoft.QGemm (a, as, az, b, bs, bz, "", cs)', 17),
        ("c = com.microsoft.QLinearReduceMean (a, as, az, cs, cz)", 13),
    ],
)
def test_what_has_no_definition_is_named(text: str, opset: int) -> None:
    model = _model(_IMAGES, {}, text, opset)
    op = re.escape(text.split()[2])
    told = rf"(the definition of {op} does not cover it at opset|the reference implements no {op})"
    with pytest.raises(ModelError, match=told):
        evaluate(from_model(model, definitions=definitions()), _IMAGES)


def _n_bits(
    rows: int, bits: int, *, zero_points: bool, bias: bool = False, opset: int = 21, order: bool = False
) -> onnx.ModelProto:
    """Of 16 columns, in blocks of 32 rows."""
    blocks = -(-rows // 32)
    columns = 16
    constants: dict[str, Array] = {
        "b": _RNG.integers(0, 256, (columns, blocks, 32 * bits // 8)).astype(np.uint8),
        "scales": _RNG.uniform(0.01, 0.02, columns * blocks).astype(np.float32),
    }
    if zero_points:
        size = columns * -(-blocks * bits // 8)
        constants["zero_points"] = _RNG.integers(0, 256, size).astype(np.uint8)
    if order:
        constants["g_idx"] = np.arange(rows, dtype=np.int32) // 32
    if bias:
        constants["bias"] = _RNG.standard_normal(columns).astype(np.float32)
    names = ["b", "scales", "zero_points", "g_idx", "bias"]
    while names[-1] not in constants:
        names.pop()
    attributes: dict[str, Any] = {"K": rows, "N": columns, "bits": bits, "block_size": 32}
    operands = ["a", *(v if v in constants else "" for v in names)]
    node = helper.make_node("MatMulNBits", operands, ["y"], domain="com.microsoft", **attributes)
    given, made = (helper.make_tensor_value_info(v, 1, [3, n]) for v, n in (("a", rows), ("y", columns)))
    kept = [onnx.numpy_helper.from_array(a, v) for v, a in constants.items()]
    graph = helper.make_graph([node], "g", [given], [made], kept)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("zero_points", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("rows", "opset"), [(64, 21), (80, 21), (96, 21), (80, 17)])
def test_weights_of_few_bits_in_blocks(
    rows: int, opset: int, bits: int, zero_points: bool, bias: bool
) -> None:
    """The last block may be half, and columns of zero points end in the middle of a byte."""
    model = _n_bits(rows, bits, zero_points=zero_points, bias=bias, opset=opset)
    inputs = {"a": _RNG.standard_normal((3, rows)).astype(np.float32)}
    expected = _asked(model, inputs)
    graph = normalise(from_model(model, definitions=definitions()))
    assert [n.op_type for n in graph.nodes] == ["MatMul", "Add"][: 1 + bias]
    whole = [str(graph.type_of(d.inputs[0])) for d in graph.dequantised.values()]
    assert whole == ([f"uint{bits}[{rows},16]"] if opset >= 21 else []), "before there are no blocks"
    np.testing.assert_allclose(evaluate(graph, inputs)["y"], expected, rtol=1e-5, atol=1e-5)
    check_group(OnnxRuntimeBackend(), Subgraph(graph, graph.all_nodes), inputs, Target("cpu", 1))


def test_other_weights_in_blocks_are_named() -> None:
    inputs = {"a": np.zeros((3, 64), np.float32)}
    for model in (
        _n_bits(64, 4, zero_points=True, opset=12),
        _n_bits(64, 4, zero_points=True, order=True),
        _n_bits(64, 2, zero_points=False),
    ):
        with pytest.raises(ModelError, match=r"definition of com\.microsoft\.MatMulNBits does not cover it"):
            evaluate(from_model(model, definitions=definitions()), inputs)


class _Samples(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, samples: Sequence[dict[str, Array]]) -> None:
        self._samples = iter(samples)

    def get_next(self) -> dict[str, Array] | None:
        return next(self._samples, None)


@pytest.mark.ci
def test_a_network_of_these_operators_is_placed(tmp_path: Path) -> None:
    """As ONNX Runtime's tool writes it in its older form; a library that has none of them takes part."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,3,12,12] x) => (float[1,5] y) {
      a = Conv <pads: ints = [1, 1, 1, 1]> (x, v) b = Relu (a)
      c = Conv <pads: ints = [1, 1, 1, 1]> (b, w) d = Add (b, c) e = Sigmoid (d)
      f = Concat <axis: int = 1> (d, e) h = GlobalAveragePool (f) i = Flatten (h)
      j = Gemm <transB: int = 1> (i, m, n) y = Softmax (j) }"""
    model = onnx.parser.parse_model(text)
    shapes = {"v": (8, 3, 3, 3), "w": (8, 8, 3, 3), "m": (5, 16), "n": (5,)}
    weights = {v: _RNG.standard_normal(s).astype(np.float32) / 4 for v, s in shapes.items()}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, v) for v, a in weights.items())
    samples = [{"x": _RNG.standard_normal((1, 3, 12, 12)).astype(np.float32)} for _ in range(4)]
    onnx.save(model, tmp_path / "m.onnx")
    quantize_static(
        tmp_path / "m.onnx",
        tmp_path / "q.onnx",
        _Samples(samples),
        quant_format=QuantFormat.QOperator,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
    )
    written = onnx.load(tmp_path / "q.onnx")
    assert {n.op_type for n in written.graph.node} >= {"QLinearConv", "QLinearAdd", "QLinearConcat", "QGemm"}
    costs = tmp_path / "c.sqlite"
    found = optimize(
        tmp_path / "q.onnx", backends=["dnnl", "onnxruntime"], costs=costs, effort=QUICK, rounds=2
    )
    assert {"Conv", "Add", "Concat", "Gemm"} <= {n.op_type for n in found.graph.nodes}
    (y,) = build(found.graph, found.placement)(samples[0]).values()
    assert np.abs(y - _asked(written, samples[0])).max() < 0.02
