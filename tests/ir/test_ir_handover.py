"""Subgraphs as models of their own: run by ONNX Runtime, they answer what the reference answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from collage_core.errors import BackendError
from collage_core.formats import Array, Format, channels_last, empty, plain
from collage_core.ir import Graph, NodeSet, Subgraph, from_model, handover, subgraph_model
from collage_core.reference import evaluate

_LARGE = np.random.default_rng(7).standard_normal((4, 3, 5, 7), np.float32)


def _graph(r: str = "r") -> Graph:
    """x -> Conv -> Relu -> Mul -> y, with the Relu's output `r` returned too and read twice; beside them z ->
    Sigmoid -> s.
    """
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], name="conv", pads=[2, 3, 2, 3]),
        helper.make_node("Relu", ["c"], [r], name="relu"),
        helper.make_node("Mul", [r, "c"], ["m"], name="mul"),
        helper.make_node("Add", ["m", r], ["y"], name="add"),
        helper.make_node("Sigmoid", ["z"], ["s"], name="sigmoid"),
    ]
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "g",
            [
                helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 6, 8]),
                helper.make_tensor_value_info("z", TensorProto.FLOAT, [3]),
            ],
            [helper.make_empty_tensor_value_info(v) for v in ("y", r, "s")],
            [numpy_helper.from_array(_LARGE, "w"), numpy_helper.from_array(np.ones(4, np.float32), "b")],
        ),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=9,
    )
    return from_model(model)


def _part(graph: Graph, *names: str, outputs: Sequence[str] | None = None) -> Subgraph:
    return Subgraph(graph, NodeSet(graph.node_named(n).id for n in names), outputs)


def _values(graph: Graph) -> dict[str, Array]:
    random = np.random.default_rng(3)
    given = {v: random.standard_normal(graph.shape_of(v)).astype(np.float32) for v in graph.inputs}
    return evaluate(graph, given, keep=graph.values.keys())


def _stored(array: Array, format: Format) -> Array:
    """The memory of `array` in `format`, as a dense row-major array."""
    copy = empty(array.shape, format)
    copy[...] = array
    return copy.transpose(format.layout)


def _formats(subgraph: Subgraph, names: Sequence[str], last: bool) -> list[Format]:
    graph = subgraph.graph
    return [(channels_last if last else plain)("float32", graph.shape_of(v)) for v in names]


def _check(subgraph: Subgraph, inputs: Sequence[Format], outputs: Sequence[Format]) -> onnx.ModelProto:
    """The model is one, and ONNX Runtime computes from the memory of the inputs that of the outputs."""
    runtime = pytest.importorskip("onnxruntime")
    model = subgraph_model(subgraph, inputs, outputs)
    onnx.checker.check_model(model, full_check=True)
    assert [v.name for v in model.graph.input] == list(subgraph.inputs)
    assert [v.name for v in model.graph.output] == list(subgraph.outputs)
    values = _values(subgraph.graph)
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {v: _stored(values[v], f) for v, f in zip(subgraph.inputs, inputs, strict=True)}
    found = session.run(list(subgraph.outputs), feeds)
    for name, format, array in zip(subgraph.outputs, outputs, found, strict=True):
        assert array.dtype.name == format.dtype
        off = 1e-2 if "float16" in {f.dtype for f in (*inputs, *outputs)} else 1e-5
        np.testing.assert_allclose(array, _stored(values[name], format), rtol=off, atol=off)
    return model


_ALL = ("conv", "relu", "mul", "add")


@pytest.mark.parametrize("names", [_ALL, ("conv",), ("relu", "mul"), ("mul", "add"), ("sigmoid",)])
@pytest.mark.parametrize("last_in", [False, True])
@pytest.mark.parametrize("last_out", [False, True])
def test_it_computes_what_the_nodes_compute(names: Sequence[str], last_in: bool, last_out: bool) -> None:
    part = _part(_graph(), *names)
    model = _check(part, _formats(part, part.inputs, last_in), _formats(part, part.outputs, last_out))
    assert {n.op_type for n in model.graph.node} - {"Transpose"} == {n.op_type for n in part.nodes}
    if not last_in and not last_out:
        assert len(model.graph.node) == len(part.nodes)


@given(st.data())
def test_any_permutation_at_the_border(data: st.DataObject) -> None:
    part = _part(_graph(), "mul", "add")

    def drawn(name: str) -> Format:
        shape = part.graph.shape_of(name)
        return Format.of("float32", shape, data.draw(st.permutations(range(len(shape)))))

    model = _check(part, [drawn(v) for v in part.inputs], [drawn(v) for v in part.outputs])
    for value in (*model.graph.input, *model.graph.output):
        dims = [d.dim_value for d in value.type.tensor_type.shape.dim]
        assert math.prod(dims) == math.prod(part.graph.shape_of(value.name))


@given(st.data())
def test_any_permutation_and_precision_at_the_border(data: st.DataObject) -> None:
    """A square value, whose permutation has its own shape, among them."""
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 20]> g (float[4,4] x, float[2,3,4,4] z) => (float y) {'
        "[mul] m = Mul(x, z) [add] y = Add(m, x) }"
    )
    part = _part(from_model(model), "mul", "add")

    def drawn(name: str) -> Format:
        shape = part.graph.shape_of(name)
        dtype = data.draw(st.sampled_from(["float16", "float32", "float64"]))
        return Format.of(dtype, shape, data.draw(st.permutations(range(len(shape)))))

    _check(part, [drawn(v) for v in part.inputs], [drawn(v) for v in part.outputs])


def test_a_value_read_inside_and_returned_in_another_layout() -> None:
    """`r` leaves channels-last and is read inside in its logical shape."""
    part = _part(_graph(), *_ALL, outputs=["r", "y"])
    types = [part.graph.shape_of(v) for v in part.outputs]
    outputs = [channels_last("float32", types[0]), plain("float32", types[1])]
    model = _check(part, _formats(part, part.inputs, False), outputs)
    assert sum(n.op_type == "Transpose" for n in model.graph.node) == 1


def test_only_what_the_group_reads_is_inside() -> None:
    graph = _graph()
    assert not subgraph_model(_part(graph, "relu"), *_plain(_part(graph, "relu"))).graph.initializer
    conv = subgraph_model(_part(graph, "conv"), *_plain(_part(graph, "conv")))
    assert [t.name for t in conv.graph.initializer] == ["w", "b"]


def test_logical_names_clash_with_nobody() -> None:
    part = _part(_graph("c.logical"), "relu", "mul")
    _check(part, _formats(part, part.inputs, True), _formats(part, part.outputs, False))


def test_large_constants_may_stay_outside() -> None:
    runtime = pytest.importorskip("onnxruntime")
    part = _part(_graph(), *_ALL)
    model = subgraph_model(part, *_plain(part), constants_outside=True)
    outside = [t.name for t in model.graph.initializer if t.data_location == TensorProto.EXTERNAL]
    assert outside == ["w"], "420 floats are, 4 are not"
    assert model.ByteSize() < _LARGE.nbytes
    options = runtime.SessionOptions()
    options.add_external_initializers(outside, [runtime.OrtValue.ortvalue_from_numpy(_LARGE)])
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    values = _values(part.graph)
    found = session.run(["y"], {"x": values["x"]})[0]
    np.testing.assert_allclose(found, values["y"], rtol=1e-5, atol=1e-5)


def test_more_than_a_model_can_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "_LARGEST_BYTES", _LARGE.nbytes)
    part = _part(_graph(), "conv")
    with pytest.raises(BackendError, match=f"constants exceed {_LARGE.nbytes} bytes"):
        subgraph_model(part, *_plain(part))
    assert subgraph_model(part, *_plain(part), constants_outside=True)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (["y", "y"], "the outputs y, y are not all different"),
        (["y", "x"], "output 'x' is not computed by the group"),
        (["y", "w"], "output 'w' is not computed by the group"),
    ],
)
def test_outputs_that_no_model_can_have_are_refused(outputs: list[str], message: str) -> None:
    part = _part(_graph(), *_ALL, outputs=outputs)
    with pytest.raises(BackendError, match=message):
        subgraph_model(part, *_plain(part))


@pytest.mark.parametrize(
    "format", [plain("int32", (2, 3, 6, 8)), plain("float32", (2, 3, 6)), Format("float32", (0, 1, 2))]
)
def test_formats_that_the_value_cannot_have_are_refused(format: Format) -> None:
    part = _part(_graph(), "conv")
    with pytest.raises(BackendError, match=r"'x' is float32\[2,3,6,8\], which cannot be stored as"):
        subgraph_model(part, [format], _plain(part)[1])


def test_open_shapes_are_refused() -> None:
    nodes: list[Any] = [helper.make_node("Relu", ["x"], ["y"], name="relu")]
    border = [helper.make_tensor_value_info(v, TensorProto.FLOAT, ["n", 2]) for v in "xy"]
    part = _part(from_model(helper.make_model(helper.make_graph(nodes, "g", border[:1], border[1:]))), "relu")
    with pytest.raises(BackendError, match="the shape of 'x' is not known"):
        subgraph_model(part, [plain("float32", (1, 2))], [plain("float32", (1, 2))])


def _plain(subgraph: Subgraph) -> tuple[list[Format], list[Format]]:
    return _formats(subgraph, subgraph.inputs, False), _formats(subgraph, subgraph.outputs, False)
