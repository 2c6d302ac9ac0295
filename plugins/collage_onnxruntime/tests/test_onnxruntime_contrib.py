"""What this package says of the operators that ONNX Runtime's optimizers write, beside the operators."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from collage_benchmarks.networks import NETWORKS
from collage_onnxruntime.definitions import definitions
from onnx import helper

from collage_core import Bundle, load, optimize, save
from collage_core.candidates import Constraints
from collage_core.device import Target
from collage_core.errors import ModelError
from collage_core.formats import Array
from collage_core.ir import Graph, from_model
from collage_core.ir.passes import normalise
from collage_core.plugins import Registry
from collage_core.reference import evaluate

_RNG = np.random.default_rng(11)

_Operands = Mapping[str, Array]


def _floats(*shape: int) -> Array:
    return _RNG.standard_normal(shape).astype(np.float32)


def _model(
    op: str,
    inputs: _Operands,
    operands: str,
    outputs: str = "y",
    *,
    opset: int = 17,
    constants: _Operands | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """One node. operands, outputs: names, in order, "-" for what is absent."""
    read, names = (["" if v == "-" else v for v in text.split()] for text in (operands, outputs))
    node = helper.make_node(op, read, names, domain="com.microsoft", **attributes)
    given = [
        helper.make_tensor_value_info(v, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for v, a in inputs.items()
    ]
    made = [helper.make_empty_tensor_value_info(v) for v in names if v]
    for info in made:
        info.type.tensor_type.elem_type = onnx.TensorProto.INT32 if info.name == "index" else 1
    kept = [onnx.numpy_helper.from_array(a, v) for v, a in (constants or {}).items()]
    graph = helper.make_graph([node], "g", given, made, kept)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _read(model: onnx.ModelProto) -> Graph:
    return from_model(model, definitions=definitions())


def _compare(model: onnx.ModelProto, inputs: _Operands) -> None:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    names = [v.name for v in model.graph.output]
    expected = dict(zip(names, session.run(names, dict(inputs)), strict=True))
    read = _read(model)
    assert not any(n.domain for n in read.nodes)
    for graph in (read, normalise(read)):
        found = evaluate(graph, inputs)
        for name, right in expected.items():
            assert (found[name].dtype, found[name].shape) == (right.dtype, right.shape), name
            np.testing.assert_allclose(found[name], right, rtol=2e-5, atol=2e-5, err_msg=name)


_X = {"x": _floats(2, 5, 8)}
_XB = {**_X, "b": _floats(8)}


@pytest.mark.parametrize("opset", [13, 20])
@pytest.mark.parametrize(
    ("op", "inputs", "operands", "attributes"),
    [
        ("Gelu", _X, "x", {}),
        ("BiasGelu", _XB, "x b", {}),
        ("FastGelu", _X, "x", {}),
        ("FastGelu", _XB, "x b", {}),
        ("QuickGelu", _X, "x", {}),
        ("QuickGelu", _X, "x", {"alpha": 1.0}),
    ],
)
def test_activations(
    op: str, inputs: _Operands, operands: str, attributes: dict[str, Any], opset: int
) -> None:
    _compare(_model(op, inputs, operands, opset=opset, **attributes), inputs)


_NORM = {
    "x": _floats(2, 5, 8),
    "skip": _floats(2, 5, 8),
    "gamma": _floats(8),
    "beta": _floats(8),
    "b": _floats(8),
}


@pytest.mark.parametrize("opset", [13, 17, 18, 23])
@pytest.mark.parametrize(
    ("op", "operands", "outputs"),
    [
        ("SkipLayerNormalization", "x skip gamma", "y"),
        ("SkipLayerNormalization", "x skip gamma beta", "y - - sum"),
        ("SkipLayerNormalization", "x skip gamma beta b", "y - - sum"),
        ("SkipLayerNormalization", "x skip gamma - b", "y"),
        ("SkipSimplifiedLayerNormalization", "x skip gamma", "y - - sum"),
        ("SkipSimplifiedLayerNormalization", "x skip gamma b", "y - - sum"),
    ],
)
def test_sums_that_are_normalised(op: str, operands: str, outputs: str, opset: int) -> None:
    inputs = {v: _NORM[v] for v in operands.split() if v != "-"}
    _compare(_model(op, inputs, operands, outputs, opset=opset, epsilon=1e-5), inputs)
    narrow = {**inputs, "skip": inputs["skip"][:1]}
    if op == "SkipLayerNormalization":
        _compare(_model(op, narrow, operands, outputs, opset=opset), narrow)


_TABLES = {
    "word": _floats(20, 8),
    "position": _floats(9, 8),
    "segment": _floats(2, 8),
    "gamma": _floats(8),
    "beta": _floats(8),
}
_WORDS: _Operands = {
    "ids": _RNG.integers(0, 20, (2, 5)).astype(np.int32),
    "kinds": _RNG.integers(0, 2, (2, 5)).astype(np.int32),
    "mask": np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32),
    "places": np.array([[4, 3, 2, 1, 0], [0, 1, 2, 3, 8]], np.int32),
}


@pytest.mark.parametrize("opset", [13, 17])
@pytest.mark.parametrize(
    ("operands", "outputs"),
    [
        ("ids kinds word position segment gamma beta", "y"),
        ("ids - word position - gamma beta", "y"),
        ("ids kinds word position segment gamma beta mask", "y index"),
        ("ids kinds word position segment gamma beta", "y index"),
        ("ids kinds word position segment gamma beta mask places", "y index sum"),
        ("ids - word position - gamma beta - places", "y - sum"),
        ("ids - word position segment gamma beta", "y"),
    ],
)
def test_embeddings(operands: str, outputs: str, opset: int) -> None:
    inputs = {v: a for v, a in _WORDS.items() if v in operands.split()}
    common: dict[str, Any] = {"opset": opset, "constants": _TABLES}
    if outputs.split()[1:2] != ["index"]:  # the library asks to be told that there is none
        common["mask_index_type"] = 0
    _compare(_model("EmbedLayerNormalization", inputs, operands, outputs, **common), inputs)


@pytest.mark.parametrize("opset", [13, 23])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("places", ["each", "first"])
@pytest.mark.parametrize(
    ("x", "attributes"),
    [
        ((2, 5, 24), {}),
        ((2, 3, 5, 8), {}),
        ((2, 5, 36), {"num_heads": 3, "rotary_embedding_dim": 8}),
        ((2, 3, 5, 12), {"num_heads": 3, "rotary_embedding_dim": 8}),
    ],
)
def test_rotations(
    x: tuple[int, ...], attributes: dict[str, Any], places: str, interleaved: int, opset: int
) -> None:
    positions = {"each": np.array([[4, 3, 2, 1, 0], [0, 1, 2, 3, 6]]), "first": np.array([2])}[places]
    inputs = {"x": _floats(*x), "p": positions}
    tables = {"c": _floats(7, 4), "s": _floats(7, 4)}
    model = _model(
        "RotaryEmbedding",
        inputs,
        "x p c s",
        opset=opset,
        constants=tables,
        interleaved=interleaved,
        **attributes,
    )
    _compare(model, inputs)


@pytest.mark.parametrize("opset", [17])
@pytest.mark.parametrize(
    ("a", "b", "attributes"),
    [
        ((2, 3, 4), (2, 4, 5), {}),
        ((2, 3, 4), (4, 5), {"alpha": 0.25}),
        ((2, 4, 3), (2, 5, 4), {"transA": 1, "transB": 1}),
        ((3, 2, 4), (5, 2, 4), {"transBatchA": 1, "transBatchB": 1, "transB": 1}),
        ((2, 3, 6, 4), (4, 2, 3, 5), {"transBatchB": 1, "transB": 0, "alpha": 2.0, "transA": 0}),
        ((4,), (4, 5), {"transA": 1}),
    ],
)
def test_products(a: tuple[int, ...], b: tuple[int, ...], attributes: dict[str, Any], opset: int) -> None:
    inputs = {"a": _floats(*a), "b": _floats(*b)}
    _compare(_model("FusedMatMul", inputs, "a b", opset=opset, **attributes), inputs)


_IMAGES = {"x": _floats(1, 4, 6, 6), "w": _floats(4, 4, 3, 3), "b": _floats(4), "z": _floats(1, 4, 6, 6)}
_ROWS = {"a": _floats(3, 4), "b": _floats(4, 5), "c": _floats(5)}


@pytest.mark.parametrize(
    ("operands", "activation"),
    [
        ("x w b", {"activation": "Relu"}),
        ("x w - z", {"activation": "Relu"}),
        ("x w b z", {}),
        ("x w b", {"activation": "LeakyRelu", "activation_params": [0.2]}),
        ("x w b", {"activation": "Clip", "activation_params": [-1.0, 1.5]}),
        ("x w b", {"activation": "HardSigmoid", "activation_params": [0.2, 0.4]}),
        ("x w", {"activation": "Tanh"}),
        ("x w", {"activation": "Sigmoid"}),
    ],
)
def test_convolutions(operands: str, activation: dict[str, Any]) -> None:
    inputs = {v: a for v, a in _IMAGES.items() if v in operands.split()}
    _compare(_model("FusedConv", inputs, operands, pads=[1, 1, 1, 1], **activation), inputs)


@pytest.mark.parametrize(
    "activation",
    [
        {"activation": "Relu"},
        {"activation": "Tanh"},
        {"activation": "LeakyRelu", "activation_alpha": 0.3, "activation_beta": 0.1},
        {"activation": "HardSigmoid", "activation_alpha": 0.3, "activation_beta": 0.1},
    ],
)
def test_gemms(activation: dict[str, Any]) -> None:
    _compare(_model("FusedGemm", _ROWS, "a b c", alpha=0.5, beta=2.0, **activation), _ROWS)


_WHOLE: dict[str, Array] = {
    "b": _RNG.integers(-127, 128, (8, 6)).astype(np.int8),
    "bs": _RNG.uniform(0.01, 0.02, 6).astype(np.float32),
    "bz": _RNG.integers(-3, 4, 6).astype(np.int8),
    "bias": _floats(6),
    "as": np.full(1, 0.02, np.float32),
    "az": np.array([120], np.uint8),
}


@pytest.mark.parametrize("opset", [13, 21])
@pytest.mark.parametrize("more", ["", " bz", " - bias", " bz bias"])
def test_products_of_whole_numbers(more: str, opset: int) -> None:
    inputs = {"a": _floats(3, 8)}
    whole = {"a": _RNG.integers(0, 256, (3, 8)).astype(np.uint8)}
    constants: dict[str, Any] = {"opset": opset, "constants": _WHOLE}
    _compare(_model("DynamicQuantizeMatMul", inputs, f"a b bs{more}", **constants), inputs)
    _compare(_model("MatMulIntegerToFloat", whole, f"a b as bs az{more}", **constants), whole)


_MASKS: dict[str, Array] = {
    "rows": np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32),
    "each": (_RNG.random((2, 5, 5)) < 0.7).astype(np.int32),
    "ends": np.array([3, 5], np.int32),
    "ends and begins": np.array([4, 5, 1, 0], np.int32),
}


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("mask", [None, *_MASKS])
@pytest.mark.parametrize(
    "attributes", [{}, {"unidirectional": 1}, {"scale": 0.3, "mask_filter_value": -50.0}]
)
def test_attention_that_projects(mask: str | None, attributes: dict[str, Any], opset: int) -> None:
    inputs = {"x": _floats(2, 5, 6), **({} if mask is None else {"mask": _MASKS[mask]})}
    weights = {"w": _floats(6, 24), "b": _floats(24)}
    operands = "x w b" if mask is None else "x w b mask"
    model = _model("Attention", inputs, operands, opset=opset, constants=weights, num_heads=2, **attributes)
    _compare(model, inputs)


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention_with_a_past(unidirectional: int, opset: int) -> None:
    inputs = {"x": _floats(2, 3, 6), "past": _floats(2, 2, 2, 4, 4), "added": _floats(1, 2, 3, 3)}
    weights = {"w": _floats(6, 24), "b": _floats(24)}
    common: dict[str, Any] = {"opset": opset, "constants": weights, "num_heads": 2}
    for operands, outputs in (("x w b - past", "y present"), ("x w b - - added", "y")):
        given = {v: a for v, a in inputs.items() if v in operands.split()}
        _compare(
            _model("Attention", given, operands, outputs, unidirectional=unidirectional, **common), given
        )
    alone = {"x": inputs["x"]}
    _compare(_model("Attention", alone, "x w b", "y present", unidirectional=unidirectional, **common), alone)


@pytest.mark.parametrize("positions", [1, 5])
def test_a_mask_of_one_column(positions: int) -> None:
    inputs = {"x": _floats(2, positions, 6), "mask": np.array([[0], [1]], np.int32)}
    weights = {"w": _floats(6, 24), "b": _floats(24)}
    least: dict[str, Any] = {"num_heads": 2, "mask_filter_value": -3e38}
    _compare(_model("Attention", inputs, "x w b mask", constants=weights, **least), inputs)


def test_what_is_absent_at_the_end_may_be_written_out() -> None:
    inputs = {"x": _floats(2, 5, 6)}
    weights = {"w": _floats(6, 24), "b": _floats(24)}
    _compare(_model("Attention", inputs, "x w b - - - -", constants=weights, num_heads=2), inputs)
    _compare(_model("MultiHeadAttention", _QKV, "q k v - - - - - - -", num_heads=2), _QKV)


@pytest.mark.parametrize("opset", [17, 20])
def test_a_network_of_many_layers_is_defined_to_its_end(opset: int) -> None:
    """What a layer's attention is hangs on the types of the layer before."""
    rng = np.random.default_rng(3)
    shapes = {"wq": (8, 24), "bq": (24,), "up": (8, 16), "ub": (16,), "down": (16, 8), "g": (8,), "b": (8,)}
    weights = {v: (rng.standard_normal(s) / 3).astype(np.float32) for v, s in shapes.items()}
    weights |= {"word": _floats(20, 8), "position": _floats(9, 8)}
    common = {"domain": "com.microsoft"}
    embedded = ["ids", "", "word", "position", "", "g", "b", "mask"]
    nodes = [helper.make_node("EmbedLayerNormalization", embedded, ["h0", "index"], **common)]
    for i in range(12):
        joined = "SkipLayerNormalization"
        nodes += [
            helper.make_node("Attention", [f"h{i}", "wq", "bq", "index"], [f"a{i}"], num_heads=2, **common),
            helper.make_node(joined, [f"a{i}", f"h{i}", "g", "b"], [f"n{i}"], **common),
            helper.make_node("MatMul", [f"n{i}", "up"], [f"u{i}"]),
            helper.make_node("BiasGelu", [f"u{i}", "ub"], [f"v{i}"], **common),
            helper.make_node("MatMul", [f"v{i}", "down"], [f"d{i}"]),
            helper.make_node(joined, [f"d{i}", f"n{i}", "g", "b"], [f"h{i + 1}"], **common),
        ]
    inputs = {v: _WORDS[v] for v in ("ids", "mask")}
    given = [helper.make_tensor_value_info(v, onnx.TensorProto.INT32, a.shape) for v, a in inputs.items()]
    made = [helper.make_tensor_value_info("h12", 1, [2, 5, 8])]
    kept = [onnx.numpy_helper.from_array(a, v) for v, a in weights.items()]
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "g", given, made, kept)
    _compare(helper.make_model(graph, opset_imports=opsets, ir_version=10), inputs)


def test_attention_whose_values_are_wider() -> None:
    inputs = {"x": _floats(2, 5, 6)}
    weights = {"w": _floats(6, 8 + 8 + 12), "b": _floats(28)}
    sizes: dict[str, Any] = {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 12]}
    _compare(_model("Attention", inputs, "x w b", constants=weights, **sizes), inputs)


_QKV = {"q": _floats(2, 5, 8), "k": _floats(2, 5, 8), "v": _floats(2, 5, 12)}


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("mask", [None, "rows", "each", "ends"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention_of_projections(unidirectional: int, bias: bool, mask: str | None, opset: int) -> None:
    inputs = {**_QKV, **({"b": _floats(28)} if bias else {})}
    inputs |= {} if mask is None else {"mask": _MASKS[mask]}
    operands = f"q k v {'b' if bias else '-'} {'-' if mask is None else 'mask'}"
    model = _model(
        "MultiHeadAttention", inputs, operands, opset=opset, num_heads=2, unidirectional=unidirectional
    )
    _compare(model, inputs)


def test_attention_of_projections_with_a_past_and_elsewhere() -> None:
    past = {
        "pk": _floats(2, 2, 3, 4),
        "pv": _floats(2, 2, 3, 4),
        "v": _floats(2, 5, 8),
        "e": _floats(1, 1, 5, 8),
    }
    inputs = {"q": _QKV["q"], "k": _QKV["k"], **past}
    _compare(_model("MultiHeadAttention", inputs, "q k v - - e pk pv", "y nk nv", num_heads=2), inputs)
    elsewhere = {"q": _floats(2, 5, 8), "k": _floats(2, 3, 8), "v": _floats(2, 3, 8)}
    _compare(_model("MultiHeadAttention", elsewhere, "q k v", num_heads=2, scale=0.2), elsewhere)
    by_head = {"q": _floats(2, 5, 8), "k": _floats(2, 2, 3, 4), "v": _floats(2, 2, 3, 4)}
    _compare(_model("MultiHeadAttention", by_head, "q k v", num_heads=2), by_head)


@pytest.mark.parametrize(
    ("op", "inputs", "operands", "outputs", "attributes"),
    [
        (
            "Attention",
            {"x": _floats(2, 5, 6), "w": _floats(6, 24)},
            "x w",
            "y",
            {"num_heads": 2, "do_rotary": 1},
        ),
        ("MultiHeadAttention", {"q": _floats(2, 5, 2, 3, 4)}, "q", "y", {"num_heads": 2}),
        (
            "MultiHeadAttention",
            {"q": _floats(2, 5, 8), "k": _floats(2, 3, 8), "v": _floats(2, 3, 8)},
            "q k v",
            "y",
            {"num_heads": 2, "unidirectional": 1},
        ),
        ("SkipLayerNormalization", _NORM, "x skip gamma beta b", "y mean - -", {}),
        ("RotaryEmbedding", {"x": _floats(2, 5, 24)}, "x p c s", "y", {"scale": 2.0}),
        ("RotaryEmbedding", {"x": _floats(2, 3, 5, 12)}, "x p c s", "y", {}),
        ("RotaryEmbedding", {"x": _floats(2, 5, 48)}, "x p c s", "y", {"num_heads": 3}),
        ("FusedConv", _IMAGES, "x w b", "y", {"activation": "Mish"}),
        ("FusedConv", _IMAGES, "x w b", "y", {"activation": "LeakyRelu"}),
        ("FusedGemm", _ROWS, "a b c", "y", {"activation": "HardSigmoid", "activation_beta": 0.1}),
        (
            "MultiHeadAttention",
            {**_QKV, "mask": _MASKS["ends and begins"]},
            "q k v - mask",
            "y",
            {"num_heads": 2},
        ),
    ],
)
def test_what_has_no_definition_is_named(
    op: str, inputs: _Operands, operands: str, outputs: str, attributes: dict[str, Any]
) -> None:
    constants = {"c": _floats(7, 4), "s": _floats(7, 4), "p": np.zeros((2, 5), np.int64)}
    model = _model(op, inputs, operands, outputs, constants=constants, **attributes)
    with pytest.raises(ModelError, match=rf"implements no com\.microsoft\.{op}"):
        evaluate(_read(model), inputs)


def test_before_opset_13_some_are_not_defined() -> None:
    model = _model("Attention", {"x": _floats(2, 5, 6), "w": _floats(6, 24)}, "x w", opset=12, num_heads=2)
    assert [n.qualified_op for n in _read(model).nodes] == ["com.microsoft.Attention"]
    _compare(_model("BiasGelu", _XB, "x b", opset=12), _XB)


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
    graph = normalise(_read(written))
    for name, right in zip((v.name for v in given.graph.output), session.run(None, inputs), strict=True):
        np.testing.assert_allclose(evaluate(graph, inputs)[name], right, rtol=1e-4, atol=1e-4)
