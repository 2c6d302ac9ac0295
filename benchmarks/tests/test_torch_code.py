"""Networks as PyTorch would have them: the same answers as the reference's."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from collage_benchmarks.gpu.torch_code import module_of, source_of
from collage_benchmarks.networks import NETWORKS

from collage_core.errors import CollageError
from collage_core.formats import Array
from collage_core.ir import Graph, from_model
from collage_core.ir.passes import normalise
from collage_core.reference import evaluate
from collage_core.testing import make_graph, node

X = np.random.default_rng(3).standard_normal((2, 4, 9, 9)).astype(np.float32)
W = np.random.default_rng(4).standard_normal((6, 2, 3, 3)).astype(np.float32)


def _graph(*nodes: onnx.NodeProto, **constants: Array) -> Graph:
    return make_graph(nodes, {"x": X}, constants)


def test_it_is_one_call_for_each_node() -> None:
    graph = _graph(node("Conv", ["x", "w"], "c", group=2, pads=[1, 1, 1, 1]), node("Relu", ["c"], "y"), w=W)
    source, held = source_of(graph)
    assert source == (
        "def forward(self, x0):\n"
        "    v2 = F.conv2d(x0, self.c0, None, stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups=2)\n"
        "    v3 = F.relu(v2)\n"
        "    return (v3, )\n"
    )
    assert held["c0"] is graph.constants["w"]


@pytest.mark.parametrize(
    "written",
    [
        node("Conv", ["x", "w"], "y", pads=[0, 0, 1, 1]),
        node("Conv", ["x", "w"], "y", auto_pad="SAME_UPPER"),
        node("Selu", ["x"], "y"),
    ],
)
def test_what_has_no_counterpart_is_named(written: onnx.NodeProto) -> None:
    constants = {"w": W} if "w" in written.input else {}
    with pytest.raises(CollageError, match="y"):
        source_of(_graph(written, **constants))


@pytest.mark.parametrize("name", ["tiny_conv", "tiny_encoder", "dcgan", "squeezenet"])
def test_networks_answer_what_the_reference_does(name: str) -> None:
    torch = pytest.importorskip("torch")
    network = NETWORKS[name]
    graph = normalise(from_model(network.build()))
    inputs = network.inputs(5)
    expected = evaluate(graph, inputs)
    with torch.inference_mode():
        found = module_of(graph, "float32")(*(torch.from_numpy(inputs[v]) for v in graph.inputs))
    for value, tensor in zip(graph.outputs, found, strict=True):
        scale = np.abs(expected[value]).max()
        assert np.abs(tensor.numpy() - expected[value]).max() <= 1e-5 * scale
