"""What this package says of ONNX Runtime's kinds of attention, beside its kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from collage_onnxruntime.definitions import definitions
from contrib_models import RNG, Operands, compare, floats, one_node, read_defined

from collage_core.errors import ModelError
from collage_core.formats import Array
from collage_core.ir import from_model
from collage_core.ir.passes import normalise
from collage_core.reference import evaluate

_MASKS: dict[str, Array] = {
    "rows": np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32),
    "each": (RNG.random((2, 5, 5)) < 0.7).astype(np.int32),
    "ends": np.array([3, 5], np.int32),
    "ends and begins": np.array([4, 5, 1, 0], np.int32),
}


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("mask", [None, *_MASKS])
@pytest.mark.parametrize(
    "attributes", [{}, {"unidirectional": 1}, {"scale": 0.3, "mask_filter_value": -50.0}]
)
def test_attention_that_projects(mask: str | None, attributes: dict[str, Any], opset: int) -> None:
    inputs = {"x": floats(2, 5, 6), **({} if mask is None else {"mask": _MASKS[mask]})}
    weights = {"w": floats(6, 24), "b": floats(24)}
    operands = "x w b" if mask is None else "x w b mask"
    model = one_node("Attention", inputs, operands, opset=opset, constants=weights, num_heads=2, **attributes)
    compare(model, inputs)


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention_with_a_past(unidirectional: int, opset: int) -> None:
    inputs = {"x": floats(2, 3, 6), "past": floats(2, 2, 2, 4, 4), "added": floats(1, 2, 3, 3)}
    weights = {"w": floats(6, 24), "b": floats(24)}
    common: dict[str, Any] = {"opset": opset, "constants": weights, "num_heads": 2}
    for operands, outputs in (("x w b - past", "y present"), ("x w b - - added", "y")):
        given = {v: a for v, a in inputs.items() if v in operands.split()}
        compare(
            one_node("Attention", given, operands, outputs, unidirectional=unidirectional, **common), given
        )
    alone = {"x": inputs["x"]}
    compare(
        one_node("Attention", alone, "x w b", "y present", unidirectional=unidirectional, **common), alone
    )


@pytest.mark.parametrize("positions", [1, 5])
def test_a_mask_of_one_column(positions: int) -> None:
    inputs = {"x": floats(2, positions, 6), "mask": np.array([[0], [1]], np.int32)}
    weights = {"w": floats(6, 24), "b": floats(24)}
    least: dict[str, Any] = {"num_heads": 2, "mask_filter_value": -3e38}
    compare(one_node("Attention", inputs, "x w b mask", constants=weights, **least), inputs)


def test_what_is_absent_at_the_end_may_be_written_out() -> None:
    inputs = {"x": floats(2, 5, 6)}
    weights = {"w": floats(6, 24), "b": floats(24)}
    compare(one_node("Attention", inputs, "x w b - - - -", constants=weights, num_heads=2), inputs)
    compare(one_node("MultiHeadAttention", _QKV, "q k v - - - - - - -", num_heads=2), _QKV)


def test_attention_whose_values_are_wider() -> None:
    inputs = {"x": floats(2, 5, 6)}
    weights = {"w": floats(6, 8 + 8 + 12), "b": floats(28)}
    sizes: dict[str, Any] = {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 12]}
    compare(one_node("Attention", inputs, "x w b", constants=weights, **sizes), inputs)


_QKV = {"q": floats(2, 5, 8), "k": floats(2, 5, 8), "v": floats(2, 5, 12)}


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("mask", [None, "rows", "each", "ends"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention_of_projections(unidirectional: int, bias: bool, mask: str | None, opset: int) -> None:
    inputs = {**_QKV, **({"b": floats(28)} if bias else {})}
    inputs |= {} if mask is None else {"mask": _MASKS[mask]}
    operands = f"q k v {'b' if bias else '-'} {'-' if mask is None else 'mask'}"
    model = one_node(
        "MultiHeadAttention", inputs, operands, opset=opset, num_heads=2, unidirectional=unidirectional
    )
    compare(model, inputs)


def test_attention_of_projections_with_a_past_and_elsewhere() -> None:
    past = {
        "pk": floats(2, 2, 3, 4),
        "pv": floats(2, 2, 3, 4),
        "v": floats(2, 5, 8),
        "e": floats(1, 1, 5, 8),
    }
    inputs = {"q": _QKV["q"], "k": _QKV["k"], **past}
    compare(one_node("MultiHeadAttention", inputs, "q k v - - e pk pv", "y nk nv", num_heads=2), inputs)
    elsewhere = {"q": floats(2, 5, 8), "k": floats(2, 3, 8), "v": floats(2, 3, 8)}
    compare(one_node("MultiHeadAttention", elsewhere, "q k v", num_heads=2, scale=0.2), elsewhere)
    by_head = {"q": floats(2, 5, 8), "k": floats(2, 2, 3, 4), "v": floats(2, 2, 3, 4)}
    compare(one_node("MultiHeadAttention", by_head, "q k v", num_heads=2), by_head)


_GROUPED: dict[str, Array] = {
    "q": floats(2, 1, 64),
    "k": floats(2, 1, 32),
    "v": floats(2, 1, 32),
    "pk": floats(2, 2, 6, 16),
    "pv": floats(2, 2, 6, 16),
    "lasts": np.array([3, 4], np.int32),
}
_TABLES: dict[str, Array] = {"c": floats(12, 8), "s": floats(12, 8)}
_HEADS: dict[str, Any] = {"num_heads": 4, "kv_num_heads": 2}


@pytest.mark.parametrize("opset", [14, 18])
@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"do_rotary": 1},
        {"do_rotary": 1, "rotary_interleaved": 1},
        {"scale": 0.3, "softcap": 5.0},
        {"local_window_size": 2},
    ],
)
@pytest.mark.parametrize("most", [5, 7])
def test_one_more_position_of_grouped_queries(most: int, attributes: dict[str, Any], opset: int) -> None:
    """Rows of different lengths; with room left where the past lies, and with more room wanted."""
    operands = "q k v pk pv lasts most" + (" c s" if "do_rotary" in attributes else "")
    constants = {**_TABLES, "most": np.array(most, np.int32)}
    common: dict[str, Any] = {**_HEADS, **attributes, "opset": opset, "constants": constants}
    compare(one_node("GroupQueryAttention", _GROUPED, operands, "y nk nv", **common), _GROUPED)


@pytest.mark.parametrize("attributes", [{}, {"do_rotary": 1}, {"local_window_size": 3}])
@pytest.mark.parametrize("past", [0, 3])
@pytest.mark.parametrize("packed", [False, True])
def test_a_prompt_of_grouped_queries(packed: bool, past: int, attributes: dict[str, Any]) -> None:
    """past: so many positions are there before, and the prompt goes on from them."""
    total = 5 + past
    inputs = {"q": floats(1, 5, 64), "k": floats(1, 5, 32), "v": floats(1, 5, 32)}
    if packed:
        inputs = {"q": np.concatenate(list(inputs.values()), -1)}
    if past:
        inputs |= {"pk": floats(1, 2, past, 16), "pv": floats(1, 2, past, 16)}
    operands = ("q - -" if packed else "q k v") + (" pk pv" if past else " - -") + " lasts most"
    constants = {**_TABLES, "most": np.array([total], np.int32), "lasts": np.array([total - 1], np.int32)}
    operands += " c s" if "do_rotary" in attributes else ""
    model = one_node(
        "GroupQueryAttention", inputs, operands, "y nk nv", constants=constants, **_HEADS, **attributes
    )
    compare(model, inputs)


def test_grouped_queries_whose_positions_are_given() -> None:
    constants = {**_TABLES, "most": np.array(5, np.int32), "p": np.array([[7], [2]], np.int64)}
    turned = {**_HEADS, "do_rotary": 1}
    operands, outputs = "q k v pk pv lasts most c s p", "y nk nv"
    one_more = one_node("GroupQueryAttention", _GROUPED, operands, outputs, constants=constants, **turned)
    compare(one_more, _GROUPED)
    inputs = {"q": floats(1, 3, 64), "k": floats(1, 3, 32), "v": floats(1, 3, 32)}
    constants |= {"most": np.array(3, np.int32), "lasts": np.array([2], np.int32)}
    constants["p"] = np.array([[4, 5, 7]], np.int64)
    model = one_node(
        *("GroupQueryAttention", inputs, "q k v - - lasts most c s p", "y nk nv"),
        constants=constants,
        **turned,
    )
    compare(model, inputs)


@pytest.mark.parametrize(
    "attributes", [{}, {"do_rotary": 1}, {"local_window_size": 3}, {"do_rotary": 1, "local_window_size": 4}]
)
@pytest.mark.parametrize("past", [0, 7])
def test_a_prompt_of_rows_that_end_before(past: int, attributes: dict[str, Any]) -> None:
    """Whatever the past holds, they begin anew."""
    inputs = {"q": floats(3, 5, 64), "k": floats(3, 5, 32), "v": floats(3, 5, 32)}
    if past:
        inputs |= {"pk": floats(3, 2, past, 16), "pv": floats(3, 2, past, 16)}
    constants = {**_TABLES, "most": np.array(5, np.int32), "lasts": np.array([2, 4, 3], np.int32)}
    operands = f"q k v {'pk pv' if past else '- -'} lasts most"
    operands += " c s" if "do_rotary" in attributes else ""
    model = one_node(
        "GroupQueryAttention", inputs, operands, "y nk nv", constants=constants, **_HEADS, **attributes
    )
    compare(model, inputs)


def test_a_rotation_of_a_part_of_a_head() -> None:
    inputs = {"q": floats(2, 1, 4 * 32), "k": floats(2, 1, 2 * 32), "v": floats(2, 1, 2 * 32)}
    inputs |= {"pk": floats(2, 2, 6, 32), "pv": floats(2, 2, 6, 32), "lasts": _GROUPED["lasts"]}
    packed = {"q": np.concatenate([inputs["q"], inputs["k"], inputs["v"]], -1)}
    packed |= {v: inputs[v] for v in ("pk", "pv", "lasts")}
    constants = {**_TABLES, "most": np.array(6, np.int32)}
    for given, first in ((inputs, "q k v"), (packed, "q - -")):
        operands = f"{first} pk pv lasts most c s"
        compare(
            one_node(
                *("GroupQueryAttention", given, operands, "y nk nv"),
                constants=constants,
                do_rotary=1,
                **_HEADS,
            ),
            given,
        )


def test_open_lengths_are_fixed_where_a_model_is_read() -> None:
    inputs = {"q": floats(1, 5, 64), "k": floats(1, 5, 32), "v": floats(1, 5, 32)}
    constants = {"most": np.array(5, np.int32), "lasts": np.array([4], np.int32)}
    model = one_node(
        "GroupQueryAttention", inputs, "q k v - - lasts most", "y nk nv", constants=constants, **_HEADS
    )
    for info in model.graph.input:
        info.type.tensor_type.shape.dim[1].dim_param = "length"
    shapes = {"q": (1, 5, 64)}
    graph = normalise(from_model(model, shapes, definitions=definitions()))
    assert graph.type_of("y").shape == (1, 5, 64)
    assert graph.type_of("nk").shape == (1, 2, 5, 16)


def test_how_much_room_is_wanted_is_known_or_told() -> None:
    """Nobody can say what shape the next past has, if how long it is hangs on an input."""
    inputs = {**_GROUPED, "most": np.array(7, np.int32)}
    model = one_node("GroupQueryAttention", inputs, "q k v pk pv lasts most", "y nk nv", **_HEADS)
    graph = normalise(read_defined(model))
    assert graph.type_of("y").shape == (2, 1, 64)
    assert graph.type_of("nk").symbolic_dims
    np.testing.assert_allclose(evaluate(graph, inputs)["nk"].shape, (2, 2, 7, 16))


_OPEN = {**_GROUPED, "most": np.array(9, np.int32), "e": floats(1, 1, 1, 9)}


@pytest.mark.parametrize(
    ("op", "inputs", "operands", "attributes"),
    [
        ("Attention", {"x": floats(2, 5, 6), "w": floats(6, 24)}, "x w", {"num_heads": 2, "do_rotary": 1}),
        ("MultiHeadAttention", {"q": floats(2, 5, 2, 3, 4)}, "q", {"num_heads": 2}),
        (
            "MultiHeadAttention",
            {"q": floats(2, 5, 8), "k": floats(2, 3, 8), "v": floats(2, 3, 8)},
            "q k v",
            {"num_heads": 2, "unidirectional": 1},
        ),
        (
            "MultiHeadAttention",
            {**_QKV, "mask": _MASKS["ends and begins"]},
            "q k v - mask",
            {"num_heads": 2},
        ),
        ("GroupQueryAttention", _OPEN, "q k v pk pv lasts most", {**_HEADS, "smooth_softmax": 1}),
        ("GroupQueryAttention", _OPEN, "q k v pk pv lasts most - - - e", _HEADS),
        ("GroupQueryAttention", _OPEN, "q k v pk pv lasts most", {"num_heads": 4, "kv_num_heads": 3}),
        ("GroupQueryAttention", _OPEN, "q k v pk pv lasts most", {**_HEADS, "causal": 0}),
        ("GroupQueryAttention", _OPEN, "q k v pk pv lasts most", {**_HEADS, "frobnicate": 0}),
        ("Attention", {"x": floats(2, 5, 6), "w": floats(6, 24)}, "x w", {}),
        ("Attention", {"x": floats(2, 5, 6), "w": floats(6, 24)}, "x w", {"num_heads": 2, "frob": 1}),
        ("GroupQueryAttention", _OPEN, "q k v pk pv lasts most", {"num_heads": 4}),
        ("GroupQueryAttention", _OPEN, "q k - pk pv lasts most", _HEADS),
    ],
)
def test_attention_without_a_definition_is_named(
    op: str, inputs: Operands, operands: str, attributes: dict[str, Any]
) -> None:
    with pytest.raises(ModelError, match=rf"definition of com\.microsoft\.{op} does not cover it"):
        evaluate(read_defined(one_node(op, inputs, operands, **attributes)), inputs)
