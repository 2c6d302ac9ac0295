"""ONNX Runtime as a backend: which groups it takes, in which layouts, and that its answers are right."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from collage_benchmarks.networks import NETWORKS
from collage_onnxruntime import plugin
from collage_onnxruntime.backend import OnnxRuntimeBackend
from onnx import TensorProto, helper
from onnxruntime_groups import array, block, convolution, variants_of

from collage_core.backend import BackendKind, Variant, plain_variant
from collage_core.errors import BackendError, Refusal
from collage_core.formats import Array, channels_last, plain
from collage_core.ir import Graph, NodeSet, Subgraph, Value, ValueKind, from_model, subgraph_model
from collage_core.ir.passes import normalise
from collage_core.plugins import Registry
from collage_core.target import Target
from collage_core.testing import check_group, make_graph, make_group, node

RunGroup = Callable[[Subgraph, Mapping[str, Array]], Sequence[Variant]]


def _whole(graph: Graph) -> Subgraph:
    return Subgraph(graph, graph.all_nodes)


def _part(graph: Graph, *names: str) -> Subgraph:
    return Subgraph(graph, NodeSet(graph.node_named(n).id for n in names))


_ELEMENTWISE = [
    "Relu",
    "Sigmoid",
    "Tanh",
    "Erf",
    "Exp",
    "Neg",
    "Abs",
    "Softplus",
    "HardSwish",
    "Gelu",
    "Floor",
]


@pytest.mark.parametrize("op", _ELEMENTWISE)
def test_elementwise(op: str, run: RunGroup) -> None:
    x = array(3, 5, 7)
    assert len(run(make_group([node(op, ["x"], "y")], {"x": x}), {"x": x})) == 1


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Less", "Equal"])
@pytest.mark.parametrize("shape", [(3, 5, 7), (5, 1), (7,), ()])
def test_broadcasts(op: str, shape: tuple[int, ...], run: RunGroup) -> None:
    inputs = {"x": array(3, 5, 7), "z": np.asarray(array(*shape, seed=1))}
    run(make_group([node(op, ["x", "z"], "y")], inputs), inputs)


@pytest.mark.parametrize(
    ("op", "attributes", "constants"),
    [
        ("Softmax", {"axis": -1}, {}),
        ("LogSoftmax", {"axis": 1}, {}),
        ("ReduceMean", {"keepdims": 0}, {"axes": np.array([1], np.int64)}),
        ("ReduceMax", {}, {"axes": np.array([-1], np.int64)}),
        ("LayerNormalization", {}, {"scale": array(8, seed=2), "bias": array(8, seed=3)}),
        ("MatMul", {}, {"w": array(8, 32, seed=4)}),
        ("Reshape", {}, {"shape": np.array([4, -1], np.int64)}),
        ("Transpose", {"perm": [2, 0, 1]}, {}),
        ("Slice", {}, {k: np.array([v], np.int64) for k, v in (("start", 1), ("end", 3), ("axis", 1))}),
        ("Pad", {}, {"pads": np.array([0, 1, 0, 0, 0, 2], np.int64)}),
        ("Expand", {}, {"shape": np.array([2, 4, 6, 8], np.int64)}),
        ("Gather", {"axis": 1}, {"indices": np.array([[5, 0], [2, 2]], np.int64)}),
        ("CumSum", {}, {"axis": np.array(1, np.int64)}),
        ("Cast", {"to": onnx.TensorProto.INT32}, {}),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_operators_with_constants(
    op: str, attributes: dict[str, Any], constants: dict[str, Array], run: RunGroup
) -> None:
    x = 3 * array(4, 6, 8)
    run(make_group([node(op, ["x", *constants], "y", **attributes)], {"x": x}, constants), {"x": x})


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "bool"])
def test_integers_and_booleans_at_the_border(dtype: str, run: RunGroup) -> None:
    inputs = {v: np.random.default_rng(i).integers(0, 2, (3, 4)).astype(dtype) for i, v in enumerate("xz")}
    run(make_group([node("Equal", ["x", "z"], "y")], inputs), inputs)
    nodes = [node("Cast", ["y"], "f", to=onnx.TensorProto.FLOAT), node("Concat", ["x", "z"], "y", axis=1)]
    run(make_group(nodes[::-1], inputs), inputs)


_CONVOLUTIONS: dict[str, Any] = {
    "blocked": ((9, 11), 32, 1, {"pads": [1, 1, 1, 1]}),
    "strided": ((9, 11), 16, 1, {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    "odd": ((7, 5), 5, 1, {"pads": [2, 1, 0, 1], "dilations": [2, 1]}),
    "grouped": ((8, 8), 32, 4, {}),
    "depthwise": ((8, 8), 16, 16, {"pads": [1, 1, 1, 1]}),
    "1d": ((17,), 6, 1, {}),
    "3d": ((5, 6, 7), 4, 1, {"pads": [1, 1, 1, 1, 1, 1]}),
}


@pytest.mark.parametrize("which", _CONVOLUTIONS)
def test_convolutions(which: str, run: RunGroup) -> None:
    spatial, channels, group, attributes = _CONVOLUTIONS[which]
    conv, x, constants = convolution(spatial, channels, group, **attributes)
    variants = run(make_group([conv], {"x": x}, constants), {"x": x})
    assert len(variants) == (1 if which == "1d" else 2)
    assert variants[-1].inputs[0] == (plain if which == "1d" else channels_last)("float32", x.shape)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
        ("AveragePool", {"kernel_shape": [2, 3], "pads": [1, 1, 0, 1], "count_include_pad": 1}),
        ("GlobalAveragePool", {}),
        ("LRN", {"size": 3}),
    ],
)
@pytest.mark.parametrize("channels", [16, 3])
def test_pooling(op: str, attributes: dict[str, Any], channels: int, run: RunGroup) -> None:
    x = array(1, channels, 8, 10)
    assert len(run(make_group([node(op, ["x"], "y", **attributes)], {"x": x}), {"x": x})) == 2


def test_resize(run: RunGroup) -> None:
    x = array(1, 4, 5, 6)
    constants = {"scales": np.array([1, 1, 2, 2], np.float32)}
    resize = node("Resize", ["x", "", "scales"], "y", mode="linear")
    assert len(run(make_group([resize], {"x": x}, constants), {"x": x})) == 2


def test_transposed_convolution(run: RunGroup) -> None:
    x, w = array(1, 6, 5, 5), array(6, 4, 3, 3, seed=1)
    conv = node("ConvTranspose", ["x", "w"], "y", strides=[2, 2], output_padding=[1, 1])
    run(make_group([conv], {"x": x}, {"w": w}), {"x": x})


@pytest.mark.parametrize("channels", [16, 6])
@pytest.mark.parametrize(
    "names", [("c", "r", "d", "s", "t", "p", "q"), ("c", "r"), ("d", "s", "t"), ("s", "t", "p"), ("p", "q")]
)
def test_groups(channels: int, names: Sequence[str], run: RunGroup) -> None:
    graph, inputs = block(channels)
    for variant in run(_part(graph, *names), inputs):
        assert len(set(variant.inputs)) <= 2


def test_channels_last_where_images_are(run: RunGroup) -> None:
    """Inside or right beside: at the border, floats of rank 4 and 5 are channels-last then."""
    graph, inputs = block()
    (_, last) = run(_part(graph, "t", "p", "q"), inputs)
    image = channels_last("float32", inputs["x"].shape)
    assert last.inputs == (image, plain("float32", (1, 16, 1, 1)))
    assert last.outputs == (image, plain("float32", (2, 16, 1, 1)))
    for names in (("c",), ("r",), ("s",), ("t",)):
        (_, last) = run(_part(graph, *names), inputs)
        assert set(last.inputs) == set(last.outputs) == {image}


@pytest.mark.parametrize(
    ("op", "attributes", "constants"),
    [
        ("Identity", {}, {}),
        ("Dropout", {}, {}),
        ("Cast", {"to": onnx.TensorProto.FLOAT}, {}),
        ("Transpose", {"perm": [0, 2, 3, 1]}, {}),
        ("Reshape", {}, {"shape": np.array([2, 16, 63, 1])}),
        ("Flatten", {}, {}),
        ("Slice", {}, {"starts": np.array([0, 0, 0, 0]), "ends": np.array([2, 16, 7, 9])}),
    ],
)
def test_what_computes_nothing_still_writes_its_output(
    op: str, attributes: dict[str, Any], constants: dict[str, Array], run: RunGroup
) -> None:
    """Beside a convolution, so in both layouts; the library may drop the node, not the copy."""
    conv, x, weights = convolution((9, 11), 16)
    last = node(op, ["c", *constants], "y", **attributes)
    assert len(run(_part(make_graph([conv, last], {"x": x}, {**weights, **constants}), "y"), {"x": x})) == 2


def test_no_channels_last_without_images(run: RunGroup) -> None:
    x = array(1, 12, 8, 16)
    part = make_group([node("Softmax", ["x"], "y")], {"x": x})
    (variant,) = run(part, {"x": x})
    assert variant == replace(plain_variant(part), options=variant.options)


def _operators(part: Subgraph, variant: Variant, path: Path) -> list[str]:
    """What the library makes of the group."""
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.optimized_model_filepath = str(path)
    model = subgraph_model(part, variant.inputs, variant.outputs).SerializeToString()
    runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return [n.op_type for n in onnx.load(path).graph.node]


def test_the_library_folds_channels_last_into_its_own_layouts(
    backend: OnnxRuntimeBackend, tmp_path: Path
) -> None:
    """No Transpose is left where its convolutions are blocked, nor in elementwise groups beside them."""
    conv, x, constants = convolution((9, 11), 32)
    nodes = [
        conv,
        node("Relu", ["c"], "r"),
        node("Mul", ["r", "k"], "m"),
        node("Add", ["m", "z"], "a"),
        node("Tanh", ["a"], "t"),
        node("MaxPool", ["t"], "p", kernel_shape=[2, 2]),
    ]
    inputs = {"x": x, "z": array(2, 32, 7, 9)}
    graph = make_graph(nodes, inputs, {**constants, "k": array(32, 1, 1)})
    for names, expected in (
        (("c", "r"), ["ReorderInput", "Conv", "ReorderOutput"]),
        (("m", "a", "t"), ["Mul", "Add", "Tanh"]),
        (("p",), ["ReorderInput", "MaxPool", "ReorderOutput"]),
    ):
        part = _part(graph, *names)
        for variant in variants_of(backend, part):
            assert _operators(part, variant, tmp_path / "optimised.onnx") == expected


@pytest.mark.parametrize("network", ["tiny_conv", "tiny_encoder", "mnist"])
def test_whole_networks(network: str, run: RunGroup) -> None:
    graph = normalise(from_model(NETWORKS[network].build()))
    run(_whole(graph), NETWORKS[network].inputs(0))


@pytest.mark.parametrize("network", ["tiny_conv", "tiny_encoder", "mnist"])
def test_networks_node_by_node(network: str, run: RunGroup) -> None:
    graph = normalise(from_model(NETWORKS[network].build()))
    inputs = NETWORKS[network].inputs(0)
    for made in graph.nodes:
        run(Subgraph(graph, NodeSet([made.id])), inputs)


def test_what_no_library_knows_is_refused_alone(backend: OnnxRuntimeBackend, target: Target) -> None:
    x = array(2, 3)
    graph = make_graph(
        [
            node("Relu", ["x"], "a"),
            node("Frobnicate", ["x"], "b", domain="nowhere"),
            node("Abs", ["x"], "c"),
        ],
        {"x": x},
        outputs=["a", "c"],
    )
    known = Value("b", graph.type_of("a"), ValueKind.INTERMEDIATE)
    graph = graph.replace(values={**graph.values, "b": known}, outputs=("a", "b", "c"))
    parts = [Subgraph(graph, NodeSet([n.id])) for n in graph.nodes]
    first, second, third = backend.supported([*parts], target)
    assert first is None
    assert third is None
    assert isinstance(second, Refusal)
    assert second.node == "b"
    assert "Frobnicate" in second.reason
    with pytest.raises(BackendError, match="Frobnicate"):
        backend.build(parts[1], plain_variant(parts[1]), target)


def test_the_library_itself_decides(backend: OnnxRuntimeBackend, target: Target) -> None:
    """ONNX allows it, this library has no implementation for it."""
    x = np.arange(6, dtype=np.int8).reshape(2, 3)
    part = make_group([node("Softplus", ["x"], "y")], {"x": array(2, 3)})
    assert backend.supported([part], target) == [None]
    part = make_group([node("CumSum", ["x", "axis"], "y")], {"x": x.astype(np.uint32)}, {"axis": np.array(0)})
    (refusal,) = backend.supported([part], target)
    assert refusal is not None
    assert "CumSum" in refusal.reason
    assert refusal.node == "y"


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "float8_e4m3fn"])
def test_other_floats_are_handed_over(dtype: str, backend: OnnxRuntimeBackend, target: Target) -> None:
    """There and back, with a constant of that dtype in between where there is arithmetic in it."""
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [node("Cast", ["x"], "low", to=code)]
    check_group(backend, make_group(nodes, {"x": array(300)}), {"x": array(300)}, target)
    nodes = [node("Cast", ["x"], "y", to=TensorProto.FLOAT)]
    low = array(300).astype(dtype)
    check_group(backend, make_group(nodes, {"x": low}), {"x": low}, target)
    if dtype in ("float64", "float16"):  # it computes with no others
        nodes = [node("Add", ["x", "c"], "y")]
        check_group(backend, make_group(nodes, {"x": low}, {"c": low}), {"x": low}, target)


def test_numbers_of_four_bits_are_not_handed_over(backend: OnnxRuntimeBackend, target: Target) -> None:
    part = make_group([node("Identity", ["x"], "y")], {"x": array(3).astype("int4")})
    refusal = backend.variants(part, target)
    assert isinstance(refusal, Refusal)
    assert str(refusal) == "y: 'x' is int4, which is not handed over"
    assert backend.supported([part], target) == [refusal]


def test_discovery_loads_no_library() -> None:
    code = """
import sys
import numpy as np
from onnx import helper
from collage_core.target import Target
from collage_core.ir import Subgraph, from_model
from collage_onnxruntime import plugin
(backend,) = plugin.collage_backends()
assert backend.info().available, backend.info().reason
border = [helper.make_tensor_value_info(v, 1, [2]) for v in "xy"]
graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", border[:1], border[1:])
graph = from_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]))
assert backend.variants(Subgraph(graph, graph.all_nodes), Target())
assert not [m for m in sys.modules if m.split(".")[0] == "onnxruntime"]
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_registry_finds_it() -> None:
    backend = Registry([plugin], entry_points=False).backend("ONNXRuntime")
    assert isinstance(backend, OnnxRuntimeBackend)
    info = backend.info()
    assert info.kind is BackendKind.GRAPH
    assert info.library_version == pytest.importorskip("onnxruntime").__version__


def test_threads_stay_awake_for_a_moment_in_the_whole_graph_alone() -> None:
    x = array(1, 12, 8, 16)
    nodes = [node("MaxPool", ["x"], "p", kernel_shape=[2, 2]), node("Flatten", ["p"], "y")]
    graph = make_graph(nodes, {"x": x})
    backend, target = OnnxRuntimeBackend(), Target(threads=2)

    def options(subgraph: Subgraph) -> list[dict[str, str]]:
        variants = backend.variants(subgraph, target)
        assert not isinstance(variants, Refusal)
        return [dict(v.options) for v in variants]

    assert options(_whole(graph)) == [{"waiting": "SPIN_BRIEFLY"}, {}]
    assert options(_part(graph, "p")) == [{}, {}], "what follows is a view, and yet another group"
