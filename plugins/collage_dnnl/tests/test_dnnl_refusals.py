"""Everything that is declined says why and where."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from collage_dnnl.rules import POST_OPS_RULE, fusion_rule, valid_op

from collage_core.backend import Variant
from collage_core.errors import DeclinedError, Refusal
from collage_core.ir import Operator, OpKind, Subgraph, TensorType, Value, ValueKind
from collage_core.rules import generate
from collage_core.testing import make_graph, node

Floats = np.ndarray[Any, np.dtype[np.float32]]


def zeros(*shape: int) -> Floats:
    return np.zeros(shape, np.float32)


def numbers(*values: float) -> Floats:
    return np.array(values, np.float32)


def case(
    reason: str,
    op: str,
    inputs: dict[str, Any],
    constants: dict[str, Any] | None = None,
    outputs: tuple[str, ...] = ("y",),
    order: tuple[str, ...] | None = None,
    declared: tuple[int, ...] | None = None,
    **attributes: Any,
) -> Any:
    """A node named n that is declined for `reason`; `order` is that of its inputs, variable ones first if
    None.
    """
    names = order or (*inputs, *(constants or {}))
    made = node(op, names, outputs, name="n", **attributes)
    return pytest.param(made, inputs, constants or {}, declared, reason, id=f"{op}-{reason}")


IMAGE = {"x": zeros(1, 1, 4, 4)}
LINE = {"x": zeros(1, 1, 5)}
DOUBLED = {"s": numbers(1, 1, 2, 2)}
RESIZE = ("x", "", "s")
CASES = [
    case("no counterpart", "Sin", {"x": zeros(3)}),
    case("no counterpart", "Greater", {"x": zeros(3)}, {"w": zeros(3)}),
    case("float64 is not supported", "Relu", {"x": np.zeros(3, np.float64)}),
    case("no elements", "Relu", {"x": zeros(2, 0)}),
    case("rank 13", "Relu", {"x": zeros(*[1] * 13)}),
    case("constant", "Add", {}, {"v": zeros(3), "w": zeros(3)}),
    case("shape of the output", "Add", {"x": zeros(3, 1), "v": zeros(1, 4)}),
    case("with itself", "Sub", {"x": zeros(3)}, order=("x", "x")),
    case("single input", "Sum", {"x": zeros(3)}),
    case("not constant", "Clip", {"x": zeros(3), "low": zeros()}),
    case("lower bound", "Clip", {"x": zeros(3)}, {"a": np.float32(1), "b": np.float32(0)}),
    case("exponent", "Pow", {"x": zeros(3), "e": zeros()}),
    case("4 spatial", "Conv", {"x": zeros(1, 1, 2, 2, 2, 2)}, {"w": zeros(1, 1, 1, 1, 1, 1)}),
    case("negative", "Conv", LINE, {"w": zeros(1, 1, 2)}, declared=(1, 1, 3), pads=[-1, 0]),
    case("odd", "ConvTranspose", LINE, {"w": zeros(1, 1, 3)}, output_shape=[6]),
    case("negative", "ConvTranspose", LINE, {"w": zeros(1, 1, 3)}, declared=(1, 1, 8), pads=[-1, 0]),
    case(
        "as large as the stride",
        "ConvTranspose",
        LINE,
        {"w": zeros(1, 1, 3)},
        strides=[2],
        dilations=[3],
        output_padding=[2],
    ),
    case("indices", "MaxPool", LINE, outputs=("y", "i"), kernel_shape=[2]),
    case("negative", "MaxPool", LINE, declared=(1, 1, 3), kernel_shape=[2], pads=[-1, 0]),
    case("ceil_mode", "AveragePool", LINE, kernel_shape=[2], strides=[2], ceil_mode=1, count_include_pad=1),
    case("padding alone", "MaxPool", LINE, kernel_shape=[2], pads=[2, 0]),
    case("type of 'y' is not known", "ReduceSum", {"x": zeros(2, 3), "a": np.zeros(1, np.int64)}),
    case("even size", "LRN", {"x": zeros(1, 5, 2, 2)}, size=4),
    case("mean", "LayerNormalization", {"x": zeros(2, 3)}, {"s": zeros(3)}, outputs=("y", "m")),
    case("broadcast", "LayerNormalization", {"x": zeros(2, 3)}, {"s": zeros(3)}, axis=0),
    case("axes", "ReduceSum", {"x": zeros(2, 3), "a": np.zeros(1, np.int64)}, declared=(1, 3)),
    case("no axis", "ReduceSum", {"x": zeros(2, 3)}, noop_with_empty_axes=1),
    case("cubic", "Resize", IMAGE, DOUBLED, order=RESIZE, mode="cubic"),
    case("antialias", "Resize", IMAGE, DOUBLED, order=RESIZE, mode="linear", antialias=1),
    case("axes", "Resize", IMAGE, {"s": numbers(2, 2)}, order=RESIZE, axes=[2, 3]),
    case("channels", "Resize", IMAGE, {"s": numbers(1, 2, 2, 2)}, order=RESIZE),
    case(
        "neither scales", "Resize", {**IMAGE, "s": numbers(1, 1, 1, 1)}, order=RESIZE, declared=(1, 1, 8, 8)
    ),
    case(
        "other elements",
        "Resize",
        IMAGE,
        DOUBLED,
        order=RESIZE,
        mode="linear",
        coordinate_transformation_mode="align_corners",
    ),
    case(
        "other elements",
        "Resize",
        IMAGE,
        DOUBLED,
        order=RESIZE,
        mode="linear",
        coordinate_transformation_mode="asymmetric",
    ),
    case(
        "tf_crop_and_resize",
        "Resize",
        IMAGE,
        {"r": numbers(0, 0, 0, 0, 1, 1, 1, 1), **DOUBLED},
        mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
    ),
    case("2 spatial dimensions want", "MaxPool", IMAGE, kernel_shape=[2], declared=(1, 1, 3, 3)),
    case("differ in rank", "Conv", IMAGE, {"w": zeros(1, 1, 2)}, declared=(1, 1, 3, 3)),
    case("not positive", "MaxPool", LINE, kernel_shape=[2], strides=[0], declared=(1, 1, 5)),
    case("single number", "LayerNormalization", {"x": zeros()}, {"s": zeros()}, declared=()),
    case("does not broadcast", "Add", {"x": zeros(2, 3)}, {"w": zeros(1, 5, 5)}, declared=(2, 3)),
    case("does not broadcast", "Gemm", {"x": zeros(2, 3)}, {"w": zeros(3, 4), "c": zeros(1, 2, 4)}),
    case("rank 0", "ReduceSum", {"x": zeros()}, {"a": np.zeros(1, np.int64)}, declared=()),
    case("half-way", "Resize", {"x": zeros(1, 1, 8)}, {"s": numbers(1, 1, 0.5)}, order=RESIZE),
]


@pytest.mark.parametrize(("made", "inputs", "constants", "declared", "reason"), CASES)
def test_single_operators(
    backend: Any,
    target: Any,
    made: Any,
    inputs: Any,
    constants: Any,
    declared: Any,
    reason: str,
) -> None:
    types = None if declared is None else {made.output[0]: TensorType("float32", declared)}
    graph = make_graph([made], inputs, constants, types=types)
    said = backend.variants(Subgraph(graph, graph.all_nodes), target)
    assert isinstance(said, Refusal)
    assert reason in said.reason
    assert said.node == "n"
    assert valid_op(Operator(graph, graph.nodes[0])) == said
    assert backend.supported([Subgraph(graph, graph.all_nodes)], target) == [said]


def test_softmax_over_several_axes_of_old_opsets() -> None:
    made = node("Softmax", ["x"], ["y"], axis=1)
    for shape, ok in (((2, 3, 4), False), ((2, 3), True)):
        graph = make_graph([made], {"x": zeros(*shape)}, opset=11)
        assert isinstance(valid_op(Operator(graph, graph.nodes[0])), Refusal) != ok


def test_a_symbolic_dimension_is_named() -> None:
    graph = make_graph([node("Relu", ["x"], ["y"])], {"x": zeros(2, 3)})
    values = {
        **graph.values,
        "x": Value("x", TensorType("float32", ("batch", 3)), ValueKind.INPUT),
        "y": Value("y", TensorType("float32", ("batch", 3)), ValueKind.INTERMEDIATE),
    }
    said = valid_op(Operator(graph.replace(values=values), graph.nodes[0]))
    assert isinstance(said, Refusal)
    assert "batch" in said.reason


def test_fusion_rule_declines_with_reasons() -> None:
    nodes = [
        node("LayerNormalization", ["x", "s"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("Softmax", ["b"], ["c"]),
        node("Add", ["c", "wide"], ["d"]),
    ]
    graph = make_graph(nodes, {"x": zeros(1, 4), "wide": zeros(3, 4)}, {"s": zeros(4)})
    ops = [Operator(graph, n) for n in graph.nodes]
    for (src, sink), reason in zip(
        itertools.pairwise(ops), ["nothing to", "no post-op", "broadcast"], strict=True
    ):
        said = fusion_rule(OpKind.REDUCTION, src, sink)
        assert isinstance(said, Refusal)
        assert reason in said.reason
    opaque = fusion_rule(OpKind.OPAQUE, ops[1], ops[1])
    assert isinstance(opaque, Refusal)


def test_too_long_a_chain_is_not_one_group(backend: Any, target: Any) -> None:
    nodes = [node("Tanh", [f"v{i}"], [f"v{i + 1}"]) for i in range(12)]
    graph = make_graph(nodes, {"v0": zeros(3)})
    longest = max(len(g) for g in generate(graph, POST_OPS_RULE).groups)
    assert longest == 9
    said = backend.variants(Subgraph(graph, graph.all_nodes), target)
    assert isinstance(said, Refusal)
    assert "at most 8" in said.reason


def test_parts_that_are_no_chain_are_declined(backend: Any, target: Any) -> None:
    nodes = [node("Relu", ["x"], ["a"]), node("Tanh", ["x"], ["b"]), node("Add", ["a", "b"], ["y"])]
    graph = make_graph(nodes, {"x": zeros(3)})
    said = backend.variants(Subgraph(graph, graph.all_nodes), target)
    assert isinstance(said, Refusal)
    assert graph.all_nodes not in generate(graph, POST_OPS_RULE).groups


def test_formats_for_which_only_slow_code_exists_are_declined_at_build(backend: Any, target: Any) -> None:
    """Softmax over channels has compiled code for channels-last only."""
    graph = make_graph([node("Softmax", ["x"], ["y"], axis=1)], {"x": zeros(2, 16, 5, 5)})
    group = Subgraph(graph, graph.all_nodes)
    plain, last = backend.variants(group, target)
    with pytest.raises(DeclinedError, match="uncompiled"):
        backend.build(group, plain, target)
    assert backend.build(group, last, target) is not None


@pytest.mark.parametrize("op", ["Relu", "Softmax", "MatMul", "Conv", "MaxPool", "ReduceSum", "Concat"])
def test_a_dead_node_is_declined(backend: Any, target: Any, op: str) -> None:
    operands = {"Conv": ["x", "w"], "MatMul": ["x", "x"], "Concat": ["x", "x"]}.get(op, ["x"])
    attributes: Any = {"MaxPool": {"kernel_shape": [2, 2]}, "Concat": {"axis": 0}}.get(op, {})
    nodes = [node(op, operands, ["dead"], name="n", **attributes), node("Neg", ["x"], ["y"])]
    graph = make_graph(nodes, {"x": zeros(1, 1, 4, 4)}, {"w": zeros(1, 1, 2, 2)})
    said = backend.variants(Subgraph(graph, [graph.nodes[0].id]), target)
    assert said == Refusal("nothing reads what the group computes", "n")


def test_a_transpose_that_is_none_is_no_neighbour(backend: Any, target: Any) -> None:
    """Neither one of another domain nor one whose permutation does not fit changes what is offered."""
    relu = node("Relu", ["x"], ["y"])
    alone = make_graph([relu], {"x": zeros(2, 3, 4, 5)})
    offered = backend.variants(Subgraph(alone, alone.all_nodes), target)
    for attributes in ({"domain": "elsewhere", "perm": [0, 1]}, {"perm": [0, 1]}, {"perm": [0, 1, 2, 9]}):
        graph = make_graph([relu, node("Neg", ["y"], ["z"])], {"x": zeros(2, 3, 4, 5)})
        first, after = graph.nodes
        made = {k: v for k, v in attributes.items() if k != "domain"}
        odd = dataclasses.replace(
            after, op_type="Transpose", domain=str(attributes.get("domain", "")), attributes=made
        )
        beside = graph.replace(nodes=(first, odd))
        assert backend.variants(Subgraph(beside, [first.id]), target) == offered


@pytest.mark.parametrize("axis", [1, 2, 3])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_what_is_built_does_not_depend_on_neighbours(backend: Any, target: Any, op: str, axis: int) -> None:
    """Costs are kept per structural key and variant: what builds in one place builds in all."""
    group, x = node(op, ["a"], ["b"], axis=axis), {"x": zeros(1, 12, 16, 16)}
    places = [
        [node("Neg", ["x"], ["a"]), group, node("Neg", ["b"], ["y"])],
        [node("Transpose", ["x"], ["a"], perm=[0, 1, 3, 2]), group, node("Neg", ["b"], ["y"])],
        [node("Neg", ["x"], ["a"]), group, node("Transpose", ["b"], ["y"], perm=[0, 3, 1, 2])],
    ]
    subgraphs = []
    for nodes in places:
        graph = make_graph(nodes, x)
        subgraphs.append(Subgraph(graph, [graph.nodes[1].id]))
    assert len({s.key for s in subgraphs}) == 1
    assert len({repr(backend.supported([s], target)) for s in subgraphs}) == 1
    offered = dict.fromkeys(v for s in subgraphs for v in backend.variants(s, target))
    assert len(offered) > len(backend.variants(subgraphs[0], target))

    def outcome(subgraph: Subgraph, variant: Variant) -> str:
        try:
            return str(backend.build(subgraph, variant, target).implementation)
        except DeclinedError as error:
            return str(error)

    for variant in offered:
        assert len({outcome(s, variant) for s in subgraphs}) == 1
    assert any("uncompiled" not in outcome(subgraphs[0], v) for v in backend.variants(subgraphs[0], target))


@pytest.mark.parametrize("op", ["ReduceMin", "ReduceSum", "ReduceL2"])
def test_a_reduction_of_axes_of_length_1_is_declined(op: str, backend: Any, target: Any) -> None:
    for axes, is_declined in (([2], True), ([0, 2], True), ([1, 2], False)):
        graph = make_graph([node(op, ["x", "axes"], ["y"])], {"x": zeros(1, 62, 1)}, {"axes": np.array(axes)})
        group = Subgraph(graph, graph.all_nodes)
        said = backend.variants(group, target)
        assert isinstance(said, Refusal) == is_declined
        if isinstance(said, Refusal):
            assert "axes of length 1" in said.reason
        else:
            backend.build(group, said[0], target)
