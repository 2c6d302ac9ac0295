"""Groups that are refused, each with its reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from collage_tvm.backend import TvmBackend
from random_arrays import f

from collage_core.errors import Refusal
from collage_core.ir import Subgraph, TensorType
from collage_core.target import Target
from collage_core.testing import make_graph, make_group, node

Refusing = Callable[..., Refusal]

_TWICE = {"region": np.zeros(0, np.float32), "scales": np.array([1, 1, 2, 2], np.float32)}


def _resize(**attributes: Any) -> Any:
    return node("Resize", ["x", "region", "scales"], ["o"], **attributes)


@pytest.mark.parametrize(
    ("nodes", "inputs", "constants", "reason"),
    [
        ([node("NonZero", ["x"], ["o"])], {"x": f(4, 4)}, {}, "NonZero is not lowered"),
        ([node("Add", ["x", "x"], ["o"])], {"x": f(4).astype(np.float16)}, {}, "not for float16"),
        ([node("Erf", ["x"], ["o"])], {"x": f(4).astype(np.float64)}, {}, "not for float64"),
        ([node("Relu", ["x"], ["o"])], {"x": f(0, 4)}, {}, "is empty"),
        (
            [node("Slice", ["x", "b", "e"], ["o"])],
            {"x": f(4), "b": np.array([1])},
            {"e": np.array([2])},
            "not known|not a constant",
        ),
        ([node("Pad", ["x", "p"], ["o"])], {"x": f(4)}, {"p": np.array([-1, 2])}, "crops"),
        (
            [node("Pad", ["x", "p"], ["o"], mode="reflect")],
            {"x": f(4)},
            {"p": np.array([4, 0])},
            "more than the input holds",
        ),
        (
            [node("MaxPool", ["x"], ["o", "i"], kernel_shape=[2, 2])],
            {"x": f(1, 1, 4, 4)},
            {},
            "only its first output",
        ),
        (
            [node("Relu", ["x"], ["r"]), node("MaxPool", ["r"], ["o"], kernel_shape=[2, 2])],
            {"x": f(1, 2, 4, 4)},
            {},
            "reads every element several times",
        ),
        (
            [node("Softmax", ["x"], ["s"]), node("Transpose", ["s"], ["o"])],
            {"x": f(4, 5)},
            {},
            "not rearranged",
        ),
        (
            [node("Softmax", ["x"], ["s"], axis=0), node("Softmax", ["s"], ["o"], axis=1)],
            {"x": f(4, 5)},
            {},
            "other rows",
        ),
        (
            [node("ReduceSum", ["x", "a"], ["s"]), node("Add", ["s", "y"], ["o"])],
            {"x": f(4, 5), "y": f(4, 7)},
            {"a": np.array([1])},
            "broadcast to another shape",
        ),
        (
            [node("ReduceSum", ["x", "a"], ["s"], keepdims=0), node("Add", ["s", "y"], ["o"])],
            {"x": f(4, 4), "y": f(4, 4)},
            {"a": np.array([1])},
            "without keepdims is broadcast",
        ),
        (
            [node("Relu", ["x"], ["r"]), node("LRN", ["r"], ["o"], size=3)],
            {"x": f(1, 2, 4, 4)},
            {},
            "LRN reads every element several times",
        ),
        (
            [node("Relu", ["x"], ["r"]), node("CumSum", ["r", "a"], ["o"])],
            {"x": f(4, 4)},
            {"a": np.array(0)},
            "a scan is compiled on its own",
        ),
        (
            [node("CumSum", ["x", "a"], ["o"])],
            {"x": f(4), "a": np.array(0)},
            {},
            "the axis is not a constant",
        ),
        (
            [node("CumSum", ["x", "a"], ["o"])],
            {"x": f(4).astype(np.uint32)},
            {"a": np.array(0)},
            "not for uint32",
        ),
        ([node("ArgMax", ["x"], ["o"])], {"x": f(4).astype(np.int8)}, {}, "not for int8"),
        (
            [node("OneHot", ["x", "d", "v"], ["o"])],
            {"x": np.arange(3), "d": np.array(4)},
            {"v": f(2)},
            "not known|the depth is not a constant",
        ),
        (
            [node("Trilu", ["x", "k"], ["o"])],
            {"x": f(4, 4), "k": np.array(1)},
            {},
            "the diagonal is not a constant",
        ),
        ([_resize(mode="cubic")], {"x": f(1, 1, 4, 4)}, _TWICE, "mode 'cubic'"),
        ([_resize(mode="linear", antialias=1)], {"x": f(1, 1, 4, 4)}, _TWICE, "antialias"),
        ([_resize(mode="linear", exclude_outside=1)], {"x": f(1, 1, 4, 4)}, _TWICE, "exclude_outside"),
        (
            [_resize(coordinate_transformation_mode="tf_crop_and_resize")],
            {"x": f(1, 1, 4, 4)},
            {**_TWICE, "region": np.array([0, 0, 0.2, 0.2, 1, 1, 0.8, 0.8], np.float32)},
            "'tf_crop_and_resize'",
        ),
        (
            [_resize(mode="linear")],
            {"x": f(1, 1, 4, 4).astype(np.float16)},
            _TWICE,
            "not for float16",
        ),
        (
            [node("Pow", ["x", "two"], ["o"])],
            {"x": np.arange(4)},
            {"two": np.array(2)},
            "not for int64",
        ),
        (
            [node("ReduceMean", ["x", "axes"], ["o"])],
            {"x": np.arange(4, dtype=np.int32)},
            {"axes": np.array([0])},
            "not for int32",
        ),
        (
            [node("LayerNormalization", ["x", "g"], ["o", "m"])],
            {"x": f(4, 5), "g": f(5)},
            {},
            "only its first output",
        ),
    ],
)
def test_refusals(refusal: Refusing, nodes: Any, inputs: Any, constants: Any, reason: str) -> None:
    answer = refusal(nodes, inputs, [v for n in nodes[-1:] for v in n.output], constants)
    assert re.search(reason, answer.reason), answer
    assert answer.node is not None


@pytest.mark.parametrize(
    ("made", "x", "constants", "declared", "reason"),
    [
        (node("Pad", ["x", "p"], ["o"]), f(2, 3), {"p": np.array([1, 1])}, (2, 3), "does not fit"),
        (node("Softmax", ["x"], ["o"]), f(), {}, (), "a single number"),
        (node("ReduceSum", ["x", "a"], ["o"]), f(), {"a": np.array([0])}, (), "a single number"),
    ],
)
def test_what_onnx_cannot_infer_is_declined(
    made: Any, x: Any, constants: Any, declared: Any, reason: str
) -> None:
    group = make_group([made], {"x": x}, constants, types={"o": TensorType("float32", declared)})
    said = TvmBackend().variants(group, Target("cpu", 2))
    assert isinstance(said, Refusal)
    assert reason in said.reason


@pytest.mark.parametrize("op", ["Relu", "Softmax", "MaxPool", "ReduceSum", "Concat", "Transpose"])
def test_a_dead_node_is_declined(op: str) -> None:
    """As it may be where the pass that removes dead code is skipped."""
    attributes: Any = {"MaxPool": {"kernel_shape": [2, 2]}, "Concat": {"axis": 0}}.get(op, {})
    nodes = [node(op, ["x"], ["dead"], name="n", **attributes), node("Neg", ["x"], ["o"])]
    graph = make_graph(nodes, {"x": f(1, 2, 4, 4)})
    group = Subgraph(graph, [graph.nodes[0].id])
    assert not group.outputs
    said = TvmBackend().variants(group, Target("cpu", 2))
    assert said == Refusal("nothing reads what the group computes", "n")
