"""What this package says of the operators that ONNX Runtime's optimizers write, beside the operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from collage_onnxruntime.definitions import definitions
from collage_onnxruntime.definitions.attributes import ATTRIBUTES
from contrib_models import RNG, Operands, compare, floats, one_node, read_defined
from onnx import helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

from collage_core.errors import ModelError
from collage_core.formats import Array
from collage_core.reference import evaluate

_X = {"x": floats(2, 5, 8)}
_XB = {**_X, "b": floats(8)}


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
    op: str, inputs: Operands, operands: str, attributes: dict[str, Any], opset: int
) -> None:
    compare(one_node(op, inputs, operands, opset=opset, **attributes), inputs)


_NORM = {
    "x": floats(2, 5, 8),
    "skip": floats(2, 5, 8),
    "gamma": floats(8),
    "beta": floats(8),
    "b": floats(8),
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
    compare(one_node(op, inputs, operands, outputs, opset=opset, epsilon=1e-5), inputs)
    narrow = {**inputs, "skip": inputs["skip"][:1]}
    if op == "SkipLayerNormalization":
        compare(one_node(op, narrow, operands, outputs, opset=opset), narrow)


_TABLES = {
    "word": floats(20, 8),
    "position": floats(9, 8),
    "segment": floats(2, 8),
    "gamma": floats(8),
    "beta": floats(8),
}
_WORDS: Operands = {
    "ids": RNG.integers(0, 20, (2, 5)).astype(np.int32),
    "kinds": RNG.integers(0, 2, (2, 5)).astype(np.int32),
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
    compare(one_node("EmbedLayerNormalization", inputs, operands, outputs, **common), inputs)


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
    inputs = {"x": floats(*x), "p": positions}
    tables = {"c": floats(7, 4), "s": floats(7, 4)}
    model = one_node(
        "RotaryEmbedding",
        inputs,
        "x p c s",
        opset=opset,
        constants=tables,
        interleaved=interleaved,
        **attributes,
    )
    compare(model, inputs)


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
    inputs = {"a": floats(*a), "b": floats(*b)}
    compare(one_node("FusedMatMul", inputs, "a b", opset=opset, **attributes), inputs)


_IMAGES = {"x": floats(1, 4, 6, 6), "w": floats(4, 4, 3, 3), "b": floats(4), "z": floats(1, 4, 6, 6)}
_ROWS = {"a": floats(3, 4), "b": floats(4, 5), "c": floats(5)}


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
    compare(one_node("FusedConv", inputs, operands, pads=[1, 1, 1, 1], **activation), inputs)


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
    compare(one_node("FusedGemm", _ROWS, "a b c", alpha=0.5, beta=2.0, **activation), _ROWS)


_WHOLE: dict[str, Array] = {
    # Of seven bits: with more, sums of the library's own saturate on older processors.
    "b": RNG.integers(-63, 64, (8, 6)).astype(np.int8),
    "bs": RNG.uniform(0.01, 0.02, 6).astype(np.float32),
    "bz": RNG.integers(-3, 4, 6).astype(np.int8),
    "bias": floats(6),
    "as": np.full(1, 0.02, np.float32),
    "az": np.array([120], np.uint8),
}


@pytest.mark.parametrize("opset", [13, 21])
@pytest.mark.parametrize("more", ["", " bz", " - bias", " bz bias"])
def test_products_of_whole_numbers(more: str, opset: int) -> None:
    inputs = {"a": floats(3, 8)}
    whole = {"a": RNG.integers(0, 256, (3, 8)).astype(np.uint8)}
    constants: dict[str, Any] = {"opset": opset, "constants": _WHOLE}
    compare(one_node("DynamicQuantizeMatMul", inputs, f"a b bs{more}", **constants), inputs)
    compare(one_node("MatMulIntegerToFloat", whole, f"a b as bs az{more}", **constants), whole)


@pytest.mark.parametrize("opset", [17, 20])
def test_a_network_of_many_layers_is_defined_to_its_end(opset: int) -> None:
    """What a layer's attention is hangs on the types of the layer before."""
    rng = np.random.default_rng(3)
    shapes = {"wq": (8, 24), "bq": (24,), "up": (8, 16), "ub": (16,), "down": (16, 8), "g": (8,), "b": (8,)}
    weights = {v: (rng.standard_normal(s) / 3).astype(np.float32) for v, s in shapes.items()}
    weights |= {"word": floats(20, 8), "position": floats(9, 8)}
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
    compare(helper.make_model(graph, opset_imports=opsets, ir_version=10), inputs)


@pytest.mark.parametrize(
    ("op", "inputs", "operands", "outputs", "attributes"),
    [
        ("SkipLayerNormalization", _NORM, "x skip gamma beta b", "y mean - -", {}),
        ("SkipLayerNormalization", {**_NORM, "x": _NORM["x"][:1]}, "x skip gamma", "y", {}),
        (
            "GroupQueryAttention",
            {"x": floats(2, 5, 24)},
            "x x x - - lasts most",
            "y - -",
            {"num_heads": 2, "kv_num_heads": 2, "local_window_size": 0},
        ),
        ("RotaryEmbedding", {"x": floats(2, 5, 24)}, "x p c s", "y", {"scale": 2.0}),
        ("RotaryEmbedding", {"x": floats(2, 3, 5, 12)}, "x p c s", "y", {}),
        ("RotaryEmbedding", {"x": floats(2, 5, 48)}, "x p c s", "y", {"num_heads": 3}),
        ("FusedConv", _IMAGES, "x w b", "y", {"activation": "Mish"}),
        ("FusedConv", _IMAGES, "x w b", "y", {"activation": "LeakyRelu"}),
        ("FusedGemm", _ROWS, "a b c", "y", {"activation": "HardSigmoid", "activation_beta": 0.1}),
    ],
)
def test_what_has_no_definition_is_named(
    op: str, inputs: Operands, operands: str, outputs: str, attributes: dict[str, Any]
) -> None:
    constants = {"c": floats(7, 4), "s": floats(7, 4), "p": np.zeros((2, 5), np.int64)}
    constants |= {"lasts": np.full((2,), 4, np.int32), "most": np.array(5, np.int32)}
    model = one_node(op, inputs, operands, outputs, constants=constants, **attributes)
    with pytest.raises(ModelError, match=rf"definition of com\.microsoft\.{op} does not cover it"):
        evaluate(read_defined(model), inputs)


def test_before_opset_13_some_are_not_defined() -> None:
    model = one_node("Attention", {"x": floats(2, 5, 6), "w": floats(6, 24)}, "x w", opset=12, num_heads=2)
    with pytest.raises(ModelError, match=r"^node 'y': .+ does not cover it at opset 12: inputs x float32\["):
        read_defined(model)
    compare(one_node("BiasGelu", _XB, "x b", opset=12), _XB)


def test_attributes_are_those_that_the_library_knows() -> None:
    """A later version may bring one that changes what an operator computes."""
    known = {
        schema.name: set(schema.attributes)
        for schema in get_all_operator_schema()
        if schema.domain == "com.microsoft"
    }
    assert {name: set(attributes) for name, attributes in ATTRIBUTES.items()} == {
        name: known[name] for name in ATTRIBUTES
    }
    handed_on = {d.op_type for d in definitions()} - ATTRIBUTES.keys()
    assert handed_on == {"FusedConv", "FusedGemm"}
