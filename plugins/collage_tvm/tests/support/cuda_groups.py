"""Groups that networks on a GPU are made of, small."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from collage_core.ir import Subgraph
from collage_core.testing import make_group, node

Arrays = Mapping[str, "np.ndarray[Any, Any]"]
Case = tuple[Sequence[Any], Arrays, Arrays, Sequence[str]]


def normal(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def _case(
    nodes: Sequence[Any], inputs: Arrays, constants: Arrays | None = None, outputs: Any = ("o",)
) -> Case:
    return nodes, inputs, constants or {}, outputs


_NORM = {"g": normal(96), "b": normal(96)}
_DECOMPOSED = [
    node("ReduceMean", ["x", "axes"], "m"),
    node("Sub", ["x", "m"], "d"),
    node("Pow", ["d", "two"], "s"),
    node("ReduceMean", ["s", "axes"], "v"),
    node("Add", ["v", "epsilon"], "e"),
    node("Sqrt", ["e"], "r"),
    node("Div", ["d", "r"], "n"),
    node("Mul", ["n", "g"], "p"),
    node("Add", ["p", "b"], "o"),
]
_DECOMPOSED_CONSTANTS = {
    "axes": np.array([-1]),
    "two": np.float32(2),
    "epsilon": np.float32(1e-5),
    **_NORM,
}

CASES: dict[str, Case] = {
    "chain": _case(
        [node("Add", ["x", "y"], "a"), node("Relu", ["a"], "r"), node("Mul", ["r", "x"], "o")],
        {"x": normal(3, 8, 16), "y": normal(8, 16)},
    ),
    "nothing of it": _case(
        [node("Mul", ["x", "c"], "m"), node("Sigmoid", ["m"], "o")],
        {"x": normal(5, 8)},
        {"c": np.zeros((), np.float32)},
    ),
    "odd chain": _case(
        [node("Add", ["x", "y"], "a"), node("Sigmoid", ["a"], "o")], {"x": normal(3, 7, 5), "y": normal(7, 1)}
    ),
    "gelu": _case([node("Gelu", ["x"], "o")], {"x": normal(5, 64)}),
    "erf": _case([node("Erf", ["x"], "o")], {"x": normal(5, 64)}),
    "swish": _case(
        [node("Sigmoid", ["x"], "s"), node("Mul", ["x", "s"], "t"), node("Tanh", ["t"], "o")],
        {"x": normal(70)},
    ),
    "where": _case(
        [node("Greater", ["x", "y"], "c"), node("Where", ["c", "x", "y"], "o")],
        {"x": normal(6, 20), "y": normal(20)},
    ),
    "cast": _case([node("Cast", ["x"], "o", to=7)], {"x": 9 * normal(6, 20)}),
    "round": _case([node("Round", ["x"], "o")], {"x": 9 * normal(6, 20)}),
    "layer norm": _case([node("LayerNormalization", ["x", "g", "b"], "o")], {"x": normal(5, 96)}, _NORM),
    "decomposed layer norm": _case(_DECOMPOSED, {"x": normal(2, 5, 96)}, _DECOMPOSED_CONSTANTS),
    "long layer norm": _case(
        [node("LayerNormalization", ["x", "g", "b"], "o")],
        {"x": normal(3, 9001)},
        {"g": normal(9001), "b": normal(9001)},
    ),
    "softmax": _case([node("Softmax", ["x"], "o")], {"x": normal(2, 9, 128)}),
    "masked softmax": _case(
        [node("Add", ["x", "m"], "a"), node("Softmax", ["a"], "o")],
        {"x": normal(2, 9, 40), "m": normal(1, 1, 40)},
    ),
    "softmax of channels": _case([node("Softmax", ["x"], "o", axis=1)], {"x": normal(2, 9, 33)}),
    "sum of all": _case([node("ReduceSum", ["x"], "o", keepdims=0)], {"x": normal(7, 30, 11)}),
    "largest": _case([node("ArgMax", ["x"], "o", axis=1)], {"x": normal(7, 300)}),
    "sum of rows": _case([node("ReduceSum", ["x", "a"], "o")], {"x": normal(70, 50)}, {"a": np.array([0])}),
    "few rows that lie apart": _case(
        [node("Softmax", ["x"], "s", axis=1), node("Relu", ["s"], "o")], {"x": normal(1, 100, 45)}
    ),
    "running sum": _case([node("CumSum", ["x", "a"], "o")], {"x": normal(3, 9, 5)}, {"a": np.array(1)}),
    "transpose": _case([node("Transpose", ["x"], "o", perm=[0, 2, 1])], {"x": normal(3, 70, 40)}),
    "transpose and arithmetic": _case(
        [
            node("Transpose", ["x"], "t", perm=[0, 2, 1]),
            node("Add", ["t", "y"], "a"),
            node("Relu", ["a"], "o"),
        ],
        {"x": normal(2, 40, 64), "y": normal(64, 40)},
    ),
    "short transpose": _case([node("Transpose", ["x"], "o", perm=[1, 0])], {"x": normal(5, 300)}),
    "heads": _case(
        [node("Reshape", ["x", "s"], "r"), node("Transpose", ["r"], "o", perm=[0, 2, 1, 3])],
        {"x": normal(1, 12, 64)},
        {"s": np.array([1, 12, 4, 16])},
    ),
    "embedding": _case(
        [node("Gather", ["t", "i"], "e"), node("Add", ["e", "p"], "o")],
        {"i": np.array([[1, 29, -1, 0]])},
        {"t": normal(30, 24), "p": normal(4, 24)},
    ),
    "concat": _case([node("Concat", ["x", "y"], "o", axis=1)], {"x": normal(2, 3, 8), "y": normal(2, 5, 8)}),
    "slice": _case(
        [node("Slice", ["x", "a", "b"], "o")], {"x": normal(9, 8)}, {"a": np.array([2]), "b": np.array([7])}
    ),
    "split": _case(
        [node("Split", ["x", "s"], ["o", "p"], axis=1)],
        {"x": normal(2, 7, 4)},
        {"s": np.array([2, 5])},
        ("o", "p"),
    ),
    "pad": _case([node("Pad", ["x", "p"], "o")], {"x": normal(5, 6)}, {"p": np.array([1, 0, 2, 3])}),
    "resize": _case(
        [node("Resize", ["x", "", "s"], "o", mode="nearest")],
        {"x": normal(1, 3, 4, 5)},
        {"s": np.array([1, 1, 2, 2], np.float32)},
    ),
    "max pool": _case(
        [node("MaxPool", ["x"], "o", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])],
        {"x": normal(1, 8, 9, 9)},
    ),
    "average pool": _case(
        [node("AveragePool", ["x"], "o", kernel_shape=[3, 3], pads=[1, 1, 1, 1])], {"x": normal(1, 8, 9, 9)}
    ),
    "global pool": _case([node("GlobalAveragePool", ["x"], "o")], {"x": normal(2, 40, 7, 7)}),
    "product": _case(
        [node("MatMul", ["x", "w"], "m"), node("Add", ["m", "b"], "o")],
        {"x": normal(70, 50)},
        {"w": normal(50, 90), "b": normal(90)},
    ),
    "attention": _case(
        [node("MatMul", ["x", "y"], "o")], {"x": normal(2, 3, 33, 16), "y": normal(2, 3, 16, 20)}
    ),
    "large product": _case([node("MatMul", ["x", "w"], "o")], {"x": normal(1500, 9)}, {"w": normal(9, 1500)}),
    "gemm": _case(
        [node("Gemm", ["x", "w", "b"], "o", transB=1)],
        {"x": normal(1, 50)},
        {"w": normal(30, 50), "b": normal(30)},
    ),
    "thin product": _case(
        [node("MatMul", ["x", "w"], "m"), node("Relu", ["m"], "o")],
        {"x": normal(3, 70)},
        {"w": normal(70, 45)},
    ),
    "thin products": _case(
        [node("MatMul", ["x", "y"], "o")], {"x": normal(2, 2, 33), "y": normal(2, 33, 64)}
    ),
    "one image": _case(
        [node("Conv", ["x", "w"], "o", pads=[1, 1, 1, 1])],
        {"x": normal(1, 7, 2, 2)},
        {"w": normal(40, 7, 3, 3)},
    ),
    "convolution": _case(
        [node("Conv", ["x", "w", "b"], "c", pads=[1, 1, 1, 1]), node("Relu", ["c"], "o")],
        {"x": normal(2, 5, 9, 9)},
        {"w": normal(12, 5, 3, 3), "b": normal(12)},
    ),
    "grouped convolution": _case(
        [node("Conv", ["x", "w"], "o", group=4, strides=[2, 2], pads=[1, 1, 1, 1])],
        {"x": normal(1, 16, 9, 9)},
        {"w": normal(16, 4, 3, 3)},
    ),
    "depthwise convolution": _case(
        [node("Conv", ["x", "w"], "o", group=12, pads=[1, 1, 1, 1])],
        {"x": normal(1, 12, 9, 9)},
        {"w": normal(12, 1, 3, 3)},
    ),
}


def group_of(case: Case) -> Subgraph:
    nodes, inputs, constants, outputs = case
    return make_group(nodes, inputs, constants, outputs)
