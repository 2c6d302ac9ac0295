"""What is declined, with which reason, without asking the library; and what is offered."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest
from collage_cudnn.asking import refusal_of
from collage_cudnn.backend import CudnnBackend
from collage_cudnn.description import Description
from collage_cudnn.presence import missing_reason
from collage_cudnn.rules import FUSION_RULE
from cudnn_checks import ROUNDING, TARGET

from collage_core import generate
from collage_core.errors import DeclinedError, Refusal
from collage_core.formats import Array
from collage_core.ir import Subgraph
from collage_core.target import Target
from collage_core.testing import make_graph, make_group, node

_X = np.ones((2, 6, 8, 8), np.float32)
_W = np.ones((4, 6, 3, 3), np.float32)


@pytest.mark.parametrize(
    ("nodes", "constants", "reason"),
    [
        ([node("Conv", ["x", "w"], "y", pads=[3, 0, 0, 0])], {"w": _W}, "in the padding alone"),
        ([node("MaxPool", ["x"], "y", kernel_shape=[2, 2], dilations=[2, 2])], {}, "not dilated"),
        ([node("MaxPool", ["x"], ["y", "i"], kernel_shape=[2, 2])], {}, "indices"),
        ([node("MaxPool", ["x"], "y", kernel_shape=[2, 2], pads=[0, 0, 1, 1])], {}, "another size"),
        (
            [node("AveragePool", ["x"], "y", kernel_shape=[3, 3], ceil_mode=1, strides=[2, 2])],
            {},
            "another size",
        ),
        ([node("Elu", ["x"], "y", alpha=0.5)], {}, "no alpha"),
        ([node("Pow", ["x", "e"], "y")], {"e": np.float32(0.5)}, "exponent"),
        ([node("Clip", ["x", "", "h"], "y"), node("Relu", ["y"], "z")], {"h": np.float32(np.nan)}, "bound"),
        ([node("Round", ["x"], "y")], {}, "no counterpart"),
        ([node("ReduceSum", ["x"], "y", noop_with_empty_axes=1)], {}, "no axis"),
        ([node("Softmax", ["x"], "s"), node("Relu", ["s"], "y")], {}, "nothing is fused to Softmax"),
        ([node("Relu", ["x"], "r"), node("Conv", ["r", "w"], "y")], {"w": _W}, "an input of its anchor"),
        (
            [node("Conv", ["x", "w"], "c"), node("Conv", ["x", "w"], "d"), node("Add", ["c", "d"], "y")],
            {"w": _W},
            "a second operator",
        ),
        (
            [node("Conv", ["x", "w"], "c"), node("Add", ["c", "a"], "y")],
            {"w": np.ones((1, 6, 3, 3), np.float32), "a": np.ones((4, 1, 1), np.float32)},
            "anchor is broadcast",
        ),
        ([node("Gemm", ["m", "m"], "y", transA=1)], {}, "transposed"),
        (
            [node("MatMul", ["x", "x"], "p"), node("Softmax", ["p"], "s"), node("MatMul", ["s", "x"], "y")],
            {},
            "three values",
        ),
        ([node("Gemm", ["m", "m"], "y", alpha=2.0)], {}, "alpha"),
    ],
)
def test_refusal(
    backend: CudnnBackend, nodes: Sequence[onnx.NodeProto], constants: Mapping[str, Array], reason: str
) -> None:
    read = {v for n in nodes for v in n.input}
    inputs = {n: a for n, a in (("x", _X), ("m", np.ones((5, 5), np.float32))) if n in read}
    group = make_group(nodes, inputs, constants)
    found = backend.variants(group, TARGET)
    assert isinstance(found, Refusal)
    assert reason in found.reason


def test_other_types(backend: CudnnBackend) -> None:
    found = backend.variants(make_group([node("Abs", ["x"], "y")], {"x": np.ones(3)}), TARGET)
    assert isinstance(found, Refusal)
    assert "float64 is not supported" in found.reason


def test_half_as_it_is(backend: CudnnBackend) -> None:
    found = backend.variants(make_group([node("Abs", ["x"], "y")], {"x": np.ones(3, np.float16)}), ROUNDING)
    assert [str(v) for v in found] == ["(float16:plain@cuda) -> (float16:plain@cuda)"]  # type: ignore[union-attr]


def test_device_that_does_not_take_part(backend: CudnnBackend) -> None:
    group = make_group([node("Abs", ["x"], "y")], {"x": _X})
    assert isinstance(backend.variants(group, Target("cpu", 1)), Refusal)


def test_offer(backend: CudnnBackend) -> None:
    group = make_group([node("Conv", ["x", "w"], "y")], {"x": _X}, {"w": _W})
    offered = backend.variants(group, ROUNDING)
    assert [str(v) for v in offered] == [  # type: ignore[union-attr]
        "(float32:0231@cuda) -> (float32:0231@cuda)",
        "(bfloat16:0231@cuda) -> (bfloat16:0231@cuda)",
        "(float16:0231@cuda) -> (float16:0231@cuda)",
        "(float32:plain@cuda) -> (float32:plain@cuda)",
    ]


def test_groups() -> None:
    nodes = [
        node("Conv", ["x", "w"], "c"),
        node("Sigmoid", ["c"], "g"),
        node("Mul", ["c", "g"], "m"),
        node("Softmax", ["m"], "y"),
    ]
    graph = make_graph(nodes, {"x": _X}, {"w": _W})
    found = [str(Subgraph(graph, nodes)) for nodes in generate(graph, FUSION_RULE).groups]
    assert "Conv+Sigmoid+Mul" in found
    assert "Sigmoid+Mul" in found
    assert not any("Softmax" in name and "+" in name for name in found)


class _Declines:
    def check(self, description: Description) -> None:
        raise DeclinedError("cuDNN has no plan")


def test_reason_of_the_library(backend: CudnnBackend) -> None:
    group = make_group([node("Conv", ["x", "w"], "y")], {"x": _X}, {"w": _W})
    found = refusal_of(_Declines(), group, backend.variants(group, TARGET))
    assert found == Refusal("cuDNN has no plan", "y")


def test_calls_are_not_asked_about(backend: CudnnBackend) -> None:
    group = make_group([node("Softmax", ["x"], "y")], {"x": _X})
    assert refusal_of(_Declines(), group, backend.variants(group, TARGET)) is None


def test_discovery_loads_nothing() -> None:
    script = (
        "import sys; from collage_cudnn.backend import CudnnBackend; b = CudnnBackend();"
        "b.info(); b.patterns(); b.rules();"
        "print([m for m in sys.modules if m.split('.')[0] in ('cudnn', 'cuda', 'nvidia')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_is_missing(backend: CudnnBackend) -> None:
    assert backend.info().reason == missing_reason()
