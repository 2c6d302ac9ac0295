"""Reading, normalising, storing graphs; subgraphs and their keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from collage_core.errors import CollageError, ModelError
from collage_core.formats import Array, Format, canonical_layout, channels_last, empty, plain, view
from collage_core.ir import (
    Graph,
    NodeSet,
    Subgraph,
    from_model,
    load_model,
    load_stored,
    save_stored,
    to_model,
)
from collage_core.ir.passes import normalise
from collage_core.ir.static import require_static
from collage_core.ir.verify import verify
from collage_core.reference.evaluator import evaluate

_FLOAT, _INT = TensorProto.FLOAT, TensorProto.INT64


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, Sequence[Any]],
    outputs: Sequence[str],
    constants: dict[str, Array] | None = None,
    opset: int = 20,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(v, _FLOAT, shape) for v, shape in inputs.items()],
        [helper.make_tensor_value_info(v, _FLOAT, None) for v in outputs],
        [numpy_helper.from_array(a, v) for v, a in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def _node(op: str, inputs: Sequence[str], output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), [output], name=output, **attributes)


def _array(shape: Sequence[int], seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _assert_same_numbers(source: Graph, graph: Graph, inputs: dict[str, Array]) -> None:
    expected = evaluate(source, inputs)
    for name, array in evaluate(graph, inputs).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-5)


def test_constants_with_and_without_nodes_are_told_apart_from_inputs() -> None:
    nodes = [
        helper.make_node("Constant", [], ["two"], value=numpy_helper.from_array(np.array(2, np.float32))),
        _node("Mul", ["x", "two"], "a"),
        _node("Add", ["a", "w"], "y"),
    ]
    graph = from_model(_model(nodes, {"x": [3]}, ["y"], {"w": _array([3])}))
    assert [n.op_type for n in graph.nodes] == ["Mul", "Add"]
    assert graph.inputs == ("x",)
    assert graph.constants["two"].shape == ()
    assert str(graph.type_of("y")) == "float32[3]"


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 18, 20])
def test_normalising_keeps_the_numbers_whatever_the_opset(opset: int) -> None:
    nodes = [
        _node("Conv", ["x", "w"], "c", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        _node("BatchNormalization", ["c", "scale", "shift", "mean", "variance"], "b"),
        _node("Relu", ["b"], "r"),
        _node("Identity", ["r"], "i"),
        _node("Add", ["i", "x"], "y"),
    ]
    constants = {
        "w": _array([3, 3, 3, 3], 1),
        "scale": _array([3], 2),
        "shift": _array([3], 3),
        "mean": _array([3], 4),
        "variance": np.abs(_array([3], 5)) + np.float32(0.5),
    }
    model = _model(nodes, {"x": [2, 3, 5, 5]}, ["y"], constants, opset)
    source = from_model(model)
    graph = normalise(source)
    assert [n.op_type for n in graph.nodes] == ["Conv", "Relu", "Add"]
    assert [n.id for n in graph.nodes] == [0, 2, 4]
    assert [n.name for n in graph.nodes] == ["c", "r", "y"]
    # At old opsets onnx.reference takes the batch's own statistics, so the newest form is the oracle.
    newest = from_model(_model(nodes, {"x": [2, 3, 5, 5]}, ["y"], constants, 20))
    _assert_same_numbers(newest, graph, {"x": _array([2, 3, 5, 5], 6)})
    assert "BatchNormalization" in {n.op_type for n in normalise(source, skip=["fold-scale-shift"]).nodes}
    with pytest.raises(CollageError, match="unknown pass 'nothing'; known: dead-code"):
        normalise(source, skip=["nothing"])


def test_shapes_computed_in_the_graph_are_folded() -> None:
    nodes = [
        _node("Shape", ["x"], "shape"),
        _node("Gather", ["shape", "zero"], "batch"),
        _node("Unsqueeze", ["batch", "axis"], "batch1"),
        _node("Concat", ["batch1", "rest"], "target", axis=0),
        _node("Reshape", ["x", "target"], "y"),
    ]
    constants = {
        "zero": np.array(0, np.int64),
        "axis": np.array([0], np.int64),
        "rest": np.array([-1], np.int64),
    }
    model = _model(nodes, {"x": ["n", 3, 4]}, ["y"], constants)
    with pytest.raises(ModelError, match=r"input 'x' has an open dimension 'n' .* give it with --shape x="):
        require_static(normalise(from_model(model)))
    graph = normalise(from_model(model, {"x": (2, 3, 4)}))
    assert [n.op_type for n in graph.nodes] == ["Reshape"]
    assert graph.shape_of("y") == (2, 12)


def _gelu(order: str) -> list[onnx.NodeProto]:
    start = [_node("Div", ["x", "sqrt2"], "d"), _node("Erf", ["d"], "e"), _node("Add", ["e", "one"], "p")]
    return (
        start
        + {
            "x first": [_node("Mul", ["x", "p"], "m"), _node("Mul", ["m", "half"], "y")],
            "half of x": [_node("Mul", ["half", "x"], "h"), _node("Mul", ["h", "p"], "y")],
            "half of erf": [_node("Mul", ["p", "half"], "h"), _node("Mul", ["x", "h"], "y")],
        }[order]
    )


_GELU_CONSTANTS = {
    "sqrt2": np.array(np.sqrt(2), np.float32),
    "one": np.array(1, np.float32),
    "half": np.array(0.5, np.float32),
}


@pytest.mark.parametrize("order", ["x first", "half of x", "half of erf"])
@pytest.mark.parametrize("opset", [17, 20])
def test_decomposed_gelu_is_recomposed(order: str, opset: int) -> None:
    model = _model(_gelu(order), {"x": [4, 8]}, ["y"], _GELU_CONSTANTS, opset)
    graph = normalise(from_model(model))
    assert [n.op_type for n in graph.nodes] == ["Gelu"]
    assert graph.nodes[0].name == "y"
    _assert_same_numbers(from_model(model), graph, {"x": _array([4, 8])})


@pytest.mark.parametrize("wrong", [{"half": 0.4}, {"one": 2.0}, {"sqrt2": 1.0}])
def test_what_is_nearly_gelu_stays(wrong: dict[str, float]) -> None:
    constants = _GELU_CONSTANTS | {k: np.array(v, np.float32) for k, v in wrong.items()}
    graph = normalise(from_model(_model(_gelu("x first"), {"x": [4, 8]}, ["y"], constants)))
    assert "Erf" in {n.op_type for n in graph.nodes}


def test_gelu_whose_inside_is_read_elsewhere_stays() -> None:
    nodes = [*_gelu("x first"), _node("Neg", ["m"], "z")]
    graph = normalise(from_model(_model(nodes, {"x": [4, 8]}, ["y", "z"], _GELU_CONSTANTS)))
    assert "Erf" in {n.op_type for n in graph.nodes}


def test_a_stored_graph_comes_back_the_same(tmp_path: Path) -> None:
    nodes = [_node("MatMul", ["x", "w"], "a"), _node("Add", ["a", "s"], "b"), _node("Neg", ["b"], "y")]
    constants = {"w": _array([40, 30]), "s": np.array(2.5, np.float32)}
    graph = normalise(from_model(_model(nodes, {"x": [2, 40]}, ["y"], constants)))
    save_stored(graph, tmp_path)
    loaded = load_stored(tmp_path)
    assert str(loaded) == str(graph)
    assert {v: a.tobytes() for v, a in loaded.constants.items()} == {
        v: a.tobytes() for v, a in graph.constants.items()
    }
    assert isinstance(loaded.constants["w"], np.memmap)
    onnx.checker.check_model(str(tmp_path / "model.onnx"))
    (tmp_path / "weights.bin").write_bytes(b"short")
    with pytest.raises(ModelError, match=r"constant 'w': external data file .*weights.bin is too short"):
        load_stored(tmp_path)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelError, match=r"constant 'w': external data file .*weights.bin is missing"):
        load_stored(tmp_path)


def test_what_is_no_model_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("hello, this is not protobuf")
    (tmp_path / "empty.onnx").write_bytes(b"")
    for name, said in (
        ("none.onnx", "no such file"),
        ("text.onnx", "not an ONNX model"),
        ("empty.onnx", "not an ONNX model"),
    ):
        with pytest.raises(ModelError, match=said) as caught:
            load_model(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_wrong_shapes_are_refused() -> None:
    model = _model([_node("Neg", ["x"], "y")], {"x": ["n", 3]}, ["y"])
    for shapes, said in (
        ({"z": (1,)}, "no such input; its inputs: x"),
        ({"x": (1, 4)}, r"--shape x=1,4: the model declares x=n,3"),
        ({"x": (1,)}, r"--shape x=1: the model declares x=n,3"),
    ):
        with pytest.raises(ModelError, match=said):
            from_model(model, shapes)


def test_a_dimension_fixed_in_one_input_is_fixed_in_all() -> None:
    model = _model([_node("Add", ["x", "z"], "y")], {"x": ["n", 3], "z": ["n", 1]}, ["y"])
    graph = from_model(model, {"x": (5, 3)})
    assert graph.shape_of("z") == (5, 1)
    with pytest.raises(ModelError, match="dimension 'n' is both 5 and 6"):
        from_model(model, {"x": (5, 3), "z": (6, 1)})


def _diamond() -> Graph:
    nodes = [
        _node("Relu", ["x"], "a"),
        _node("Neg", ["a"], "b"),
        _node("Exp", ["a"], "c"),
        _node("Add", ["b", "c"], "d"),
    ]
    return from_model(_model(nodes, {"x": [2, 3]}, ["d"]))


def test_subgraphs_know_their_border() -> None:
    graph = _diamond()
    bent = Subgraph(graph, [0, 1, 3])
    assert not bent.is_convex
    assert (bent.inputs, bent.outputs) == (("x", "c"), ("a", "d"))
    assert Subgraph(graph, [0, 1, 2, 3]).is_convex
    assert Subgraph(graph, [0, 1], outputs=["b"]).leaks == ("a",)
    assert Subgraph(graph, [0, 1], outputs=["a", "b"]).leaks == ()


def _scaled(shape: Sequence[int], scale: float, op: str = "Mul", swap: bool = False) -> Subgraph:
    operands = ["s", "x"] if swap else ["x", "s"]
    nodes = [_node("Relu", ["i"], "x"), _node(op, operands, "y")]
    model = _model(nodes, {"i": shape}, ["y"], {"s": np.array(scale, np.float32)})
    return Subgraph(from_model(model), [1])


def test_subgraphs_are_equal_where_they_are_the_same_part_of_one_graph() -> None:
    graph, another = (_diamond() for _ in range(2))
    first, second = 0, 1
    one, other = Subgraph(graph, [first, second]), Subgraph(graph, [second, first])
    assert len({one, other}) == 1
    assert one != Subgraph(graph, [first])
    assert one != Subgraph(graph, [first, second], [])
    assert one != Subgraph(another, [first, second])
    assert one.key == Subgraph(another, [first, second]).key


def test_the_structural_key_tells_apart_what_a_kernel_may_bake_in() -> None:
    assert _scaled([2, 3], 2.0).key == _scaled([2, 3], 2.0).key
    others = [_scaled([3, 2], 2.0), _scaled([2, 3], 3.0), _scaled([2, 3], 2.0, "Add")]
    others.append(_scaled([2, 3], 2.0, swap=True))
    assert len({s.key for s in [_scaled([2, 3], 2.0), *others]}) == 5


def test_the_structural_key_knows_shared_inputs_but_not_weights() -> None:
    def square(operands: Sequence[str]) -> str:
        model = _model([_node("Mul", operands, "y")], {"x": [2, 3], "z": [2, 3]}, ["y"])
        return Subgraph(from_model(model), [0]).key

    assert square(["x", "x"]) != square(["x", "z"])
    assert square(["x", "z"]) == square(["z", "x"])

    def product(seed: int) -> str:
        model = _model([_node("MatMul", ["x", "w"], "y")], {"x": [2, 8]}, ["y"], {"w": _array([8, 8], seed)})
        return Subgraph(from_model(model), [0]).key

    assert product(1) == product(2)


@given(st.sets(st.integers(0, 200)), st.sets(st.integers(0, 200)))
def test_node_sets_are_sets(a: set[int], b: set[int]) -> None:
    x, y = NodeSet(a), NodeSet(b)
    assert (set(x | y), set(x & y), set(x - y)) == (a | b, a & b, a - b)
    assert (x <= y, x.isdisjoint(y), x == y, len(x), list(x)) == (
        a <= b,
        a.isdisjoint(b),
        a == b,
        len(a),
        sorted(a),
    )
    assert all((i in x) == (i in a) for i in range(201))


@given(st.data())
def test_equal_canonical_layouts_are_equal_bytes(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 1, 2, 3]), min_size=1, max_size=4)))
    one, two = (data.draw(st.permutations(range(len(shape)))) for _ in range(2))
    values = np.arange(np.prod(shape)).reshape(shape)
    same_bytes = bool((values.transpose(one).ravel() == values.transpose(two).ravel()).all())
    assert (canonical_layout(shape, one) == canonical_layout(shape, two)) == same_bytes


def test_views_of_buffers_have_the_formats_strides() -> None:
    shape = (1, 3, 4, 5)
    array = empty(shape, channels_last("float32", shape))
    assert array.shape == shape
    assert array.strides == (240, 4, 60, 12)
    assert array.ctypes.data % 64 == 0
    flat = np.zeros(60 * 4, np.uint8)
    view(flat, shape, plain("float32", shape))[0, 0, 0, 1] = 1
    assert flat.view(np.float32).tolist().index(1.0) == 1
    with pytest.raises(ValueError, match="not a permutation"):
        Format.of("float32", shape, (0, 1, 2, 2))


def test_empty_attribute_lists_survive() -> None:
    nodes = [_node("Reshape", ["x", "shape"], "a"), _node("Squeeze", ["a"], "y")]
    graph = from_model(_model(nodes, {"x": [1, 2]}, ["y"], {"shape": np.array([2, 1], np.int64)}))
    model = to_model(graph)
    onnx.checker.check_model(model)
    assert str(from_model(model)) == str(graph)


def test_gelu_whose_factors_change_the_shape_stays() -> None:
    constants = _GELU_CONSTANTS | {"half": np.full((1, 1), 0.5, np.float32)}
    model = _model(_gelu("x first"), {"x": [8]}, ["y"], constants)
    graph = normalise(from_model(model))
    assert "Erf" in {n.op_type for n in graph.nodes}
    _assert_same_numbers(from_model(model), graph, {"x": _array([8])})


def test_folding_computes_what_running_computes() -> None:
    nodes = [_node("LRN", ["w"], "n", size=3, alpha=0.5), _node("Add", ["x", "n"], "y")]
    model = _model(nodes, {"x": [2, 5, 3, 3]}, ["y"], {"w": _array([2, 5, 3, 3], 1)})
    graph = normalise(from_model(model))
    assert [n.op_type for n in graph.nodes] == ["Add"]
    _assert_same_numbers(from_model(model), graph, {"x": _array([2, 5, 3, 3])})


def test_a_node_that_cannot_be_folded_stays() -> None:
    nodes = [_node("Gather", ["w", "far"], "g"), _node("Add", ["x", "g"], "y")]
    constants = {"w": _array([3]), "far": np.array([7], np.int64)}
    graph = normalise(from_model(_model(nodes, {"x": [1]}, ["y"], constants)))
    assert [n.op_type for n in graph.nodes] == ["Gather", "Add"]


def test_outputs_that_no_node_computes_have_a_key() -> None:
    nodes = [_node("Neg", ["x"], "y"), _node("Add", ["w", "w"], "c")]
    graph = normalise(from_model(_model(nodes, {"x": [3]}, ["y", "c", "x"], {"w": _array([3])})))
    assert graph.is_constant("c")
    keys = {
        Subgraph(graph, graph.all_nodes, outputs).key
        for outputs in (["y"], ["y", "c"], ["y", "x"], graph.outputs)
    }
    assert len(keys) == 4


def test_ids_are_unique_even_if_another_tool_adds_a_node() -> None:
    graph = from_model(_model([_node("Neg", ["x"], "a"), _node("Abs", ["a"], "y")], {"x": [3]}, ["y"]))
    stored = to_model(graph.replace(nodes=[graph.nodes[1], graph.nodes[0]][::-1]))
    assert [n.id for n in from_model(stored).nodes] == [0, 1]
    stored.graph.node.append(_node("Exp", ["y"], "z"))
    assert [n.id for n in from_model(stored).nodes] == [0, 1, 2]
    del stored.graph.node[2]
    stored.graph.node[1].metadata_props[0].value = "0"
    assert [n.id for n in from_model(stored).nodes] == [0, 1]


def test_the_default_domain_goes_by_two_names() -> None:
    node = helper.make_node("Relu", ["x"], ["y"], domain="ai.onnx")
    shape = [helper.make_tensor_value_info(v, TensorProto.FLOAT, [2]) for v in "xy"]
    model = helper.make_model(
        helper.make_graph([node], "g", shape[:1], shape[1:]), opset_imports=[helper.make_opsetid("", 20)]
    )
    assert [str(n.qualified_op) for n in from_model(model).nodes] == ["Relu"]


def test_names_stay_unique_where_an_upgrade_makes_two_nodes_of_one() -> None:
    """Before opset 13, Softmax is over all dimensions from its axis on: that takes a Reshape now."""
    model = _model([_node("Softmax", ["x"], "y", axis=1)], {"x": [2, 3, 4]}, ["y"], opset=9)
    graph = normalise(from_model(model))
    names = [n.name for n in graph.nodes]
    assert len(names) > 1
    assert len(set(names)) == len(names)
    assert graph.node_named("y").outputs == ("y",)
    _assert_same_numbers(from_model(model), graph, {"x": _array([2, 3, 4])})


def test_two_nodes_of_one_name_are_noticed() -> None:
    graph = from_model(_model([_node("Neg", ["x"], "a"), _node("Abs", ["a"], "y")], {"x": [3]}, ["y"]))
    twice = [dataclasses.replace(n, name="same") for n in graph.nodes]
    with pytest.raises(ModelError, match="two nodes are named 'same'"):
        verify(graph.replace(nodes=twice))
