"""Scales and shifts per channel disappear into the convolution or normalisation before them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

from collage_core.formats import Array
from collage_core.ir import Graph, from_model
from collage_core.ir.passes import normalise
from collage_core.reference.evaluator import evaluate

_HOSTS = {
    "convolution": "Conv (x, w)",
    "convolution with a bias": "Conv (x, w, b)",
    "transposed": "ConvTranspose <group: int = 2> (x, tw)",
    "normalisation": "BatchNormalization <epsilon: float = 1e-3> (x, b, s, b, v)",
}
_SHAPES = {
    "w": (4, 4, 3, 3),
    "tw": (4, 2, 3, 3),
    **dict.fromkeys("bsv", (4,)),
    "c": (4, 1, 1),
    "c4": (1, 4, 1, 1),
    "one": (),
    "width": (5,),
    "batch": (2, 1, 1, 1),
    "deeper": (1, 1, 4, 1, 1),
}


def _constants() -> dict[str, Array]:
    random = np.random.default_rng(0)
    constants = {v: random.uniform(0.5, 2.0, shape).astype(np.float32) for v, shape in _SHAPES.items()}
    return {**constants, "huge": np.full((4, 1, 1), 1e38, np.float32)}


def _graph(*lines: str, batch: str = "1", channels: int = 4, outputs: Sequence[str] = ("y",)) -> Graph:
    """Of nodes from x, (batch, channels, 5, 5), to the outputs."""
    body, declared = "\n".join(lines), ", ".join(f"float {v}" for v in outputs)
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 20]>
        g (float[{batch}, {channels}, 5, 5] x) => ({declared}) {{ {body} }}"""
    )
    used = {v for n in model.graph.node for v in n.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(a, v) for v, a in _constants().items() if v in used
    )
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return from_model(model)


def _assert_same_numbers(source: Graph, graph: Graph) -> None:
    x = np.random.default_rng(1).standard_normal(source.shape_of("x")).astype(np.float32)
    inputs: Mapping[str, Array] = {"x": x}
    np.testing.assert_allclose(
        evaluate(graph, inputs)["y"], evaluate(source, inputs)["y"], rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("host", _HOSTS)
@pytest.mark.parametrize(
    "what",
    [
        "BatchNormalization (h, s, b, b, v)",
        "Mul (h, c)",
        "Mul (c4, h)",
        "Add (h, one)",
        "Add (c, h)",
        "Sub (h, c)",
        "Sub (c4, h)",
        "Div (h, c)",
    ],
)
def test_one_is_folded(host: str, what: str) -> None:
    source = _graph(f"h = {_HOSTS[host]}", f"y = {what}")
    graph = normalise(source)
    assert [n.op_type for n in graph.nodes] == [source.nodes[0].op_type]
    _assert_same_numbers(source, graph)


@pytest.mark.parametrize("host", _HOSTS)
def test_a_chain_is_folded_into_one(host: str) -> None:
    chain = ["a = BatchNormalization (h, s, b, b, v)", "d = Mul (a, c)", "e = Add (d, c4)", "y = Relu (e)"]
    source = _graph(f"h = {_HOSTS[host]}", *chain)
    graph = normalise(source)
    assert [n.op_type for n in graph.nodes] == [source.nodes[0].op_type, "Relu"]
    assert [n.id for n in graph.nodes] == [0, 4]
    _assert_same_numbers(source, graph)


@pytest.mark.parametrize(
    "after",
    [
        ("y = Add (h, width)",),  # along another axis
        ("y = Mul (h, batch)",),  # makes it larger
        ("y = Add (h, deeper)",),
        ("y = Div (c, h)",),
        ("a = Mul (h, c)", "y = Add (a, h)"),  # somebody else reads it
        ("a = Sigmoid (x)", "y = Mul (h, a)"),  # no constant
        ("y = Mul (h, h)",),
    ],
)
def test_what_else_a_node_does_is_kept(after: tuple[str, ...]) -> None:
    host = "BatchNormalization (x, b, s, b, v)"
    source = _graph(f"h = {host}", *after)
    graph = normalise(source)
    assert [n.op_type for n in graph.nodes] == [n.op_type for n in source.nodes]
    _assert_same_numbers(source, graph)


def test_what_the_weights_type_cannot_hold_is_not_folded() -> None:
    """Weights of about 1 times 1e38 times 1e38; the activations may well be small."""
    graph = normalise(_graph("h = Conv (x, w)", "y = Mul (h, huge)", "z = Mul (y, huge)", outputs=("z",)))
    assert [n.op_type for n in graph.nodes] == ["Conv", "Mul"]


@pytest.mark.parametrize("group", [1, 2])
def test_a_transposed_convolution_with_strides_and_a_bias(group: int) -> None:
    host = (
        f"ConvTranspose <group: int = {group}, strides: ints = [2, 2]> (x, {'w' if group == 1 else 'tw'}, b)"
    )
    source = _graph(f"h = {host}", "y = BatchNormalization <epsilon: float = 1e-3> (h, s, b, b, v)")
    graph = normalise(source)
    assert [n.op_type for n in graph.nodes] == ["ConvTranspose"]
    _assert_same_numbers(source, graph)


def test_symbolic_sizes_are_no_obstacle() -> None:
    graph = normalise(_graph("h = Conv (x, w)", "y = Mul (h, c)", batch="N"))
    assert [n.op_type for n in graph.nodes] == ["Conv"]


def test_a_weight_that_is_computed_is_left_alone() -> None:
    source = _graph("a = Sigmoid (x)", "h = Conv (x, a)", "y = Mul (h, one)", channels=1)
    assert [n.op_type for n in normalise(source).nodes] == ["Sigmoid", "Conv", "Mul"]


def test_what_the_caller_gets_is_not_folded() -> None:
    source = _graph("z = Conv (x, w)", "y = Mul (z, c)", outputs=("y", "z"))
    assert [n.op_type for n in normalise(source).nodes] == ["Conv", "Mul"]
