"""Made-up inputs: indices that are valid wherever they arrive."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from collage_core.costs import synthesise_inputs
from collage_core.ir import from_model

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def model(
    nodes: list[onnx.NodeProto], shape: list[int], constants: Mapping[str, object], dtype: int = INT64
) -> onnx.ModelProto:
    """A model of one input `x`; its output `y` is float of unknown shape."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", dtype, shape)],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [numpy_helper.from_array(np.asarray(c), n) for n, c in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def drawn(proto: onnx.ModelProto, seed: int = 0) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    return synthesise_inputs(from_model(proto), seed)["x"]


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 40),
    steps=st.lists(
        st.sampled_from(
            ["Cast", "Reshape", "Unsqueeze", "Add", "AddLeft", "Sub", "SubFrom", "Mul", "Transpose"]
        ),
        max_size=5,
    ),
    offsets=st.lists(st.integers(-9, 9), min_size=6, max_size=6),
)
def test_indices_reach_the_whole_dimension_and_never_leave_it(
    size: int, steps: list[str], offsets: list[int]
) -> None:
    nodes: list[onnx.NodeProto] = []
    constants: dict[str, object] = {
        "table": np.zeros((2, size, 3), np.float32),
        "shape": np.array([-1], np.int64),
        "axes": np.array([0], np.int64),
        "minus": np.array(-1, np.int64),
    }
    scale, offset = 1, 0
    for i, step in enumerate(steps):
        value, after, c = (f"v{i - 1}" if i else "x"), f"v{i}", offsets[i]
        constants[f"c{i}"] = np.array(c, np.int64)
        match step:
            case "Cast":
                nodes.append(helper.make_node("Cast", [value], [after], to=INT64))
            case "Reshape":
                nodes.append(helper.make_node("Reshape", [value, "shape"], [after]))
            case "Unsqueeze":
                nodes.append(helper.make_node("Unsqueeze", [value, "axes"], [after]))
            case "Transpose":
                nodes.append(helper.make_node("Transpose", [value], [after]))
            case "Add" | "AddLeft":
                ends = [value, f"c{i}"] if step == "Add" else [f"c{i}", value]
                nodes.append(helper.make_node("Add", ends, [after]))
                offset += c
            case "Sub":
                nodes.append(helper.make_node("Sub", [value, f"c{i}"], [after]))
                offset -= c
            case "SubFrom":
                nodes.append(helper.make_node("Sub", [f"c{i}", value], [after]))
                scale, offset = -scale, c - offset
            case "Mul":
                nodes.append(helper.make_node("Mul", [value, "minus"], [after]))
                scale, offset = -scale, -offset
    last = f"v{len(steps) - 1}" if steps else "x"
    nodes.append(helper.make_node("Gather", ["table", last], ["y"], axis=1))
    indices = drawn(model(nodes, [400], constants)).astype(np.int64) * scale + offset
    assert indices.min() >= 0
    assert indices.max() < size
    assert len(np.unique(indices)) > size * 0.8


def test_an_index_that_arrives_twice_suits_both() -> None:
    nodes = [
        helper.make_node("Gather", ["large", "x"], ["a"]),
        helper.make_node("Gather", ["small", "x"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    tables = {"large": np.zeros((50, 2), np.float32), "small": np.zeros((5, 2), np.float32)}
    assert set(drawn(model(nodes, [200], tables)).tolist()) == set(range(5))


def test_gathernd_and_onehot_limit_their_indices() -> None:
    nodes = [helper.make_node("GatherND", ["table", "x"], ["y"])]
    assert drawn(model(nodes, [100, 2], {"table": np.zeros((9, 4, 2), np.float32)})).max() == 3
    nodes = [helper.make_node("OneHot", ["x", "depth", "values"], ["y"])]
    constants = {"depth": np.array(6, np.int64), "values": np.array([0, 1], np.float32)}
    assert set(drawn(model(nodes, [100], constants)).tolist()) == set(range(6))


def test_integers_that_index_nothing_are_zero_or_one() -> None:
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=FLOAT)]
    assert set(drawn(model(nodes, [100], {})).tolist()) == {0, 1}


@pytest.mark.parametrize("dtype", [FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE])
def test_floats_are_normal(dtype: int) -> None:
    values = drawn(model([helper.make_node("Cast", ["x"], ["y"], to=FLOAT)], [4000], {}, dtype))
    assert values.dtype == helper.tensor_dtype_to_np_dtype(dtype)
    assert abs(values.astype(float).mean()) < 0.1
    assert values.astype(float).std() == pytest.approx(1, abs=0.1)


def test_a_seed_fixes_everything() -> None:
    proto = model([helper.make_node("Cast", ["x"], ["y"], to=FLOAT)], [50], {}, FLOAT)
    np.testing.assert_array_equal(drawn(proto, 3), drawn(proto, 3))
    assert not np.array_equal(drawn(proto, 3), drawn(proto, 4))
    booleans = drawn(model([helper.make_node("Cast", ["x"], ["y"], to=FLOAT)], [50], {}, TensorProto.BOOL))
    assert set(booleans.tolist()) == {False, True}


@pytest.mark.parametrize(("gathered", "wanted"), [("", set(range(6))), (", float[7,2] q", {7})])
def test_a_loop_goes_round_as_often_as_its_shapes_say(gathered: str, wanted: set[int]) -> None:
    """Else a few times; and it begins."""
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
    g (int64 n, bool keep, float[2] x) => (float[2] y{gathered}) {{
      one = Constant <value_int = 1> ()
      m = Add (n, one)
      y{gathered.replace("float[7,2]", "")} = Loop (m, keep, x) <
        body = b (int64 i, bool c, float[2] s) => (c, r{", s" if gathered else ""}) {{ r = Neg (s) }}> }}"""
    graph = from_model(onnx.parser.parse_model(text))
    found = [synthesise_inputs(graph, seed) for seed in range(60)]
    assert {int(v["n"]) + 1 for v in found} == wanted
    assert all(v["keep"] for v in found)


def test_quantised_numbers_are_all_that_eight_bits_hold() -> None:
    """A mask of eight bits is 0 or 1 as ever; what is dequantised, be it moved before, is not."""
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 17]>
    g (uint8[64,8] x, int8[8,64] w, uint8[64] m) => (float[64,8] y, float[64,8] z, float[64] n)
    <float s = {0.5}, uint8 o = {3}, int8 p = {0}> {
      y = DequantizeLinear (x, s, o)
      t = Transpose (w)
      z = DequantizeLinear (t, s, p)
      n = Cast <to: int = 1> (m) }""")
    inputs = synthesise_inputs(from_model(model))
    assert inputs["x"].max() > 200
    assert inputs["w"].min() < -100
    assert inputs["w"].max() > 100
    assert set(inputs["m"].tolist()) == {0, 1}
