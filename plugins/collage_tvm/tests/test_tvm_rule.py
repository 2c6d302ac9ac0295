"""The paper's rule (section 3, Figure 4) as TVM's backend has it: each condition, met and nearly met."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from collage_tvm.backend import TvmBackend
from collage_tvm.rules import tvm_rule
from onnx import helper

from collage_core.backend import Variant
from collage_core.errors import Refusal
from collage_core.rules import generate
from collage_core.target import Target
from collage_core.testing import make_group

Nodes = list[onnx.NodeProto]
node = helper.make_node
_CONSTANTS = {"one": np.array([1]), "nought": np.array(0), "rows": np.array([0])}


def _chain(count: int) -> Nodes:
    ops = ("Relu", "Neg", "Sigmoid", "Abs")
    names = ["x", *(f"v{k}" for k in range(1, count)), "o"]
    return [node(ops[k % 4], [names[k]], [names[k + 1]]) for k in range(count)]


_NORM = [
    node("Mul", ["s", "s"], ["q"]),
    node("ReduceSum", ["q", "one"], ["t"]),
    node("Sqrt", ["t"], ["n"]),
    node("Div", ["s", "n"], ["o"]),
]

_FUSED: dict[str, Nodes] = {
    "elementwise": _chain(2),
    "more than ten operators": _chain(12),
    "as many as a kernel may have": _chain(32),
    "broadcast": [node("Add", ["x", "w"], ["a"]), node("Relu", ["a"], ["o"])],
    "a diamond": [
        node("Neg", ["x"], ["a"]),
        node("Exp", ["a"], ["b"]),
        node("Tanh", ["a"], ["c"]),
        node("Add", ["b", "c"], ["o"]),
    ],
    "movers among arithmetic": [
        node("Relu", ["x"], ["r"]),
        node("Transpose", ["r"], ["t"]),
        node("Neg", ["t"], ["o"]),
    ],
    "movers and arithmetic before a reduction": [
        node("Transpose", ["x"], ["t"]),
        node("Relu", ["t"], ["r"]),
        node("Softmax", ["r"], ["o"]),
    ],
    "arithmetic around a reduction": [
        node("Neg", ["x"], ["n"]),
        node("Softmax", ["n"], ["s"]),
        node("Exp", ["s"], ["o"]),
    ],
    "a diamond with a reduction": [node("Neg", ["x"], ["s"]), *_NORM],
    "two reductions of the same rows": [
        node("Softmax", ["x"], ["s"]),
        node("ReduceMax", ["s", "one"], ["o"]),
    ],
    "arithmetic after a window": [node("LRN", ["i"], ["l"], size=3), node("Relu", ["l"], ["o"])],
}

_APART: dict[str, tuple[Nodes, str, str]] = {
    "one operator too many": (_chain(33), "no more than 32 operators", "Relu_0"),
    "a split": (
        [node("Split", ["x"], ["p", "q"], num_outputs=2, axis=0), node("Add", ["p", "q"], ["o"])],
        "a split is compiled on its own",
        "Split_0",
    ),
    "a scan": (
        [node("Relu", ["x"], ["r"]), node("CumSum", ["r", "nought"], ["o"])],
        "a scan is compiled on its own",
        "CumSum_1",
    ),
    "a mover after a reduction": (
        [node("Softmax", ["x"], ["s"]), node("Transpose", ["s"], ["o"])],
        "the result of a reduction is not rearranged",
        "Transpose_1",
    ),
    "reductions of different rows": (
        [node("Softmax", ["x"], ["s"], axis=0), node("Softmax", ["s"], ["o"], axis=1)],
        "it reduces other rows",
        "Softmax_1",
    ),
    "arithmetic before a window": (
        [node("Relu", ["i"], ["r"]), node("LRN", ["r"], ["o"], size=3)],
        "LRN reads every element several times",
        "LRN_1",
    ),
    "a gain that depends on the rows": (
        [
            node("LayerNormalization", ["y", "w"], ["n"], axis=0),
            node("LayerNormalization", ["y", "n"], ["o"], axis=0),
        ],
        "its parameters depend on a reduction in the same kernel",
        "LayerNormalization_1",
    ),
    "a statistic that outgrows its rows": (
        [node("ReduceSum", ["x", "one"], ["s"]), node("Add", ["s", "z"], ["o"])],
        "broadcast to another shape",
        "Add_1",
    ),
    "a statistic without its axis": (
        [node("ReduceSum", ["x", "one"], ["s"], keepdims=0), node("Add", ["x", "s"], ["o"])],
        "without keepdims is broadcast",
        "Add_1",
    ),
}
_INPUTS = {
    "x": np.zeros((6, 6), np.float32),
    "w": np.zeros((6,), np.float32),
    "y": np.zeros((6,), np.float32),
    "z": np.zeros((6, 7), np.float32),
    "i": np.zeros((1, 4, 6, 6), np.float32),
}


def _asked(
    nodes: Sequence[onnx.NodeProto], outputs: Sequence[str] = ("o",)
) -> tuple[bool, Sequence[Variant] | Refusal, list[Refusal]]:
    """Whether the rule forms a group of all nodes, what the backend says to it, what the rule declines."""
    read = {v for n in nodes for v in n.input}
    inputs, constants = ({k: v for k, v in d.items() if k in read} for d in (_INPUTS, _CONSTANTS))
    group = make_group(nodes, inputs, constants, outputs)
    found = generate(group.graph, tvm_rule())
    offered = TvmBackend().variants(group, Target("cpu", 2))
    return group.node_set in found.groups, offered, list(found.refusals)


@pytest.mark.parametrize("what", _FUSED)
def test_fused(what: str) -> None:
    formed, offered, declined = _asked(_FUSED[what])
    assert formed, declined
    assert not isinstance(offered, Refusal), offered


@pytest.mark.parametrize("what", _APART)
def test_apart_with_the_reason_and_the_node(what: str) -> None:
    nodes, reason, at = _APART[what]
    _, offered, _ = _asked(nodes)
    assert isinstance(offered, Refusal)
    assert re.search(reason, offered.reason), offered
    assert offered.node == at


@pytest.mark.parametrize("what", ["a split", "a mover after a reduction", "arithmetic before a window"])
def test_the_rule_itself_does_not_form_it(what: str) -> None:
    nodes, reason, _ = _APART[what]
    formed, _, declined = _asked(nodes)
    assert not formed
    assert any(re.search(reason, r.reason) for r in declined), declined


def test_a_group_may_have_several_outputs_but_not_with_a_reduction() -> None:
    _, offered, _ = _asked(_FUSED["a diamond"], ["a", "c", "o"])
    assert not isinstance(offered, Refusal)
    assert [len(v.outputs) for v in offered] == [3]
    _, offered, _ = _asked(_FUSED["arithmetic around a reduction"], ["n", "o"])
    assert offered == Refusal("a kernel with a reduction has one output", "Softmax_1")
