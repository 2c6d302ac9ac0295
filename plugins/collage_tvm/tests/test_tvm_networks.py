"""Whole networks over TVM alone: every operator has a kernel, and the answers are right."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from collage_tvm import plugin
from collage_tvm.backend import TvmBackend
from onnx import TensorProto, helper, numpy_helper

from collage_core import CostRecord, OpLevelSearch, Target, build, formulate, generate_candidates
from collage_core.candidates import Candidate
from collage_core.costs.check import compare
from collage_core.ir import from_model
from collage_core.ir.passes import normalise
from collage_core.plugins import Registry
from collage_core.reference import evaluate
from collage_core.search.formulate import needed_conversions

_TARGET = Target("cpu", 2)


@dataclass
class _Network:
    """Nodes and seeded weights, one after the other."""

    nodes: list[Any] = field(default_factory=list)
    weights: dict[str, Any] = field(default_factory=dict)
    random: Any = field(default_factory=lambda: np.random.default_rng(5))

    def add(self, op: str, *inputs: Any, **attributes: Any) -> str:
        names = [i if isinstance(i, str) else self._hold(i) for i in inputs]
        out = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, names, [out], name=f"n{len(self.nodes)}", **attributes))
        return out

    def _hold(self, data: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = data
        return name

    def weight(self, *shape: int) -> Any:
        return (self.random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    def conv(self, x: str, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> str:
        pads = [kernel // 2] * 4
        y = self.add(
            "Conv",
            x,
            self.weight(outputs, inputs // groups, kernel, kernel),
            pads=pads,
            strides=[stride] * 2,
            group=groups,
        )
        one = np.ones(outputs, np.float32)
        return self.add("BatchNormalization", y, one, self.weight(outputs), self.weight(outputs), one)

    def model(self, shape: tuple[int, ...], last: str) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "network",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [onnx.ValueInfoProto(name=last)],
            [numpy_helper.from_array(a, n) for n, a in self.weights.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def _mobile() -> onnx.ModelProto:
    """As MobileNetV3: inverted residuals, depthwise convolutions, squeeze and excitation, HardSwish."""
    net = _Network()
    x = net.add("HardSwish", net.conv("x", 3, 8, 3, stride=2))
    channels = 8
    for outputs, wide, kernel, stride in ((8, 24, 3, 1), (12, 40, 5, 2), (12, 40, 3, 1)):
        y = net.add("Clip", net.conv(x, channels, wide, 1), np.float32(0), np.float32(6))
        y = net.add("HardSwish", net.conv(y, wide, wide, kernel, stride, groups=wide))
        s = net.add("Relu", net.conv(net.add("GlobalAveragePool", y), wide, 8, 1))
        y = net.add("Mul", y, net.add("HardSigmoid", net.conv(s, 8, wide, 1)))
        y = net.conv(y, wide, outputs, 1)
        x = net.add("Add", x, y) if (channels, stride) == (outputs, 1) else y
        channels = outputs
    x = net.add("Flatten", net.add("GlobalAveragePool", net.add("HardSwish", net.conv(x, 12, 48, 1))))
    x = net.add("Gemm", x, net.weight(10, 48), net.weight(10), transB=1)
    return net.model((1, 3, 33, 29), net.add("Softmax", x))


def _separable() -> onnx.ModelProto:
    """As Xception: depthwise, then pointwise convolutions, with pooled shortcuts, and grouped ones."""
    net = _Network()
    x = net.add("Relu", net.conv("x", 3, 16, 3, stride=2))
    channels = 16
    for outputs in (24, 32):
        y = net.conv(net.conv(x, channels, channels, 3, groups=channels), channels, outputs, 1)
        y = net.conv(net.conv(net.add("Relu", y), outputs, outputs, 3, groups=outputs), outputs, outputs, 1)
        y = net.add("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
        x = net.add("Add", y, net.conv(x, channels, outputs, 1, stride=2))
        channels = outputs
    x = net.add("Relu", net.conv(x, 32, 32, 3, groups=4))
    x = net.add("Reshape", net.add("AveragePool", x, kernel_shape=[3, 3]), np.array([1, -1]))
    return net.model((1, 3, 40, 33), net.add("MatMul", x, net.weight(32 * 3 * 3, 7)))


def _attention() -> onnx.ModelProto:
    """An encoder layer: projections, scores, and what is done to their heads."""
    net = _Network()
    heads = np.array([1, 19, 4, 8])
    parts = [
        net.add("Reshape", net.add("Add", net.add("MatMul", "x", net.weight(32, 32)), net.weight(32)), heads)
        for _ in range(3)
    ]
    q, k, v = (
        net.add("Transpose", p, perm=[0, 2, 3, 1] if i == 1 else [0, 2, 1, 3]) for i, p in enumerate(parts)
    )
    scores = net.add("Softmax", net.add("Mul", net.add("MatMul", q, k), np.float32(8**-0.5)))
    y = net.add("Transpose", net.add("MatMul", scores, v), perm=[0, 2, 1, 3])
    y = net.add("MatMul", net.add("Reshape", y, np.array([1, 19, 32])), net.weight(32, 32))
    one = np.ones(32, np.float32)
    y = net.add("LayerNormalization", net.add("Add", y, "x"), one, net.weight(32))
    z = net.add("Gelu", net.add("Add", net.add("MatMul", y, net.weight(32, 128)), net.weight(128)))
    z = net.add("Add", net.add("MatMul", z, net.weight(128, 32)), y)
    return net.model((1, 19, 32), net.add("LayerNormalization", z, one, net.weight(32)))


@pytest.mark.parametrize("network", [_mobile, _separable, _attention])
@pytest.mark.parametrize("permuted", [False, True], ids=["plain", "permuted"])
def test_a_network_runs_on_tvm_alone(network: Any, permuted: bool) -> None:
    """No other backend is there to run any of it. permuted: which formats cost less."""
    graph, tvm = normalise(from_model(network())), TvmBackend()
    found = generate_candidates(graph, [tvm], _TARGET)

    def cost(c: Candidate) -> CostRecord:
        moved = not all(f.is_plain for f in (*c.variant.inputs, *c.variant.outputs))
        return CostRecord("ok", median_ms=(0.5 if permuted else 1.5) if moved else 1.0)

    keys = needed_conversions(graph, found.candidates)
    conversions = {k: (tvm.name, 0.1) for k in keys if tvm.converts(*k, _TARGET)}
    formulation = formulate(found, cost, conversions)
    placement = formulation.placement(OpLevelSearch().solve(formulation.problem))
    assert set(placement.backends()) <= {"tvm", "view"}
    x = np.random.default_rng(1).standard_normal(graph.shape_of("x")).astype(np.float32)
    expected = evaluate(graph, {"x": x})
    for name, result in build(graph, placement, Registry([plugin], entry_points=False))({"x": x}).items():
        error, refusal = compare(name, result, expected[name])
        assert refusal is None, f"{refusal} {error} {placement}"
