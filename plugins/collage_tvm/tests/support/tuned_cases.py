"""Models of one group each, for the tuner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from collage_tvm.backend import TvmBackend
from onnx import helper
from onnx.reference import ReferenceEvaluator

from collage_core.backend import Variant
from collage_core.errors import Refusal
from collage_core.ir import Graph, Subgraph, from_model
from collage_core.target import Target
from collage_core.testing import bind, make_model

__all__ = ["CASES", "TARGET", "Case", "array", "node", "product_case"]

TARGET = Target("cpu", 2)
"""What is tuned for."""
_RNG = np.random.default_rng(0)


def array(*shape: int) -> Any:
    """Normally distributed numbers in float32, others every time."""
    return _RNG.standard_normal(shape, np.float32)


class Case:
    """A model of one group, and the group."""

    def __init__(
        self, nodes: Sequence[onnx.NodeProto], inputs: dict[str, Any], constants: dict[str, Any] | None = None
    ) -> None:
        self.inputs = inputs
        self.model = make_model(nodes, inputs, constants, ["o"])
        self.graph: Graph = from_model(self.model)
        self.group = Subgraph(self.graph, self.graph.all_nodes)

    def variant(self) -> Variant:
        offered = TvmBackend().tunable(self.group, TARGET)
        assert not isinstance(offered, Refusal), str(offered)
        [variant] = offered
        return variant

    def expected(self) -> Any:
        [answer] = ReferenceEvaluator(self.model).run(["o"], self.inputs)
        return answer

    def answer(self, kernel: Any, variant: Variant) -> Any:
        bound = bind(kernel, self.group, variant, self.inputs)
        assert not bound.call()
        return bound.outputs[0]

    def check(self, kernel: Any, variant: Variant) -> None:
        got, want = self.answer(kernel, variant), self.expected()
        assert np.max(np.abs(got - want)) <= 1e-5 * np.max(np.abs(want))


def node(op: str, inputs: str, output: str = "o", **attributes: Any) -> onnx.NodeProto:
    """A node of one output; its inputs are named in one text, with spaces between."""
    return helper.make_node(op, inputs.split(), [output], name=f"{op}_{output}", **attributes)


def product_case() -> Case:
    """A product, a bias and a Relu: (24, 32) by (32, 48)."""
    nodes = [node("MatMul", "x w", "m"), node("Add", "m b", "a"), node("Relu", "a")]
    return Case(nodes, {"x": array(24, 32)}, {"w": array(32, 48), "b": array(48)})


CASES: dict[str, Callable[[], Case]] = {
    "product with a bias": product_case,
    "product of activations": lambda: Case(
        [node("MatMul", "x y", "m"), node("Mul", "m s")],
        {"x": array(2, 3, 5, 7), "y": array(3, 7, 4)},
        {"s": np.float32(0.125)},
    ),
    "product with a broadcast batch": lambda: Case(
        [node("MatMul", "x y")], {"x": array(2, 1, 5, 7), "y": array(1, 3, 7, 4)}
    ),
    "transposed product": lambda: Case(
        [node("Gemm", "x w b", alpha=0.5, beta=2.0, transB=1)],
        {"x": array(7, 30)},
        {"w": array(40, 30), "b": array(1, 40)},
    ),
    "product with both operands transposed": lambda: Case(
        [node("Gemm", "x y c", transA=1, transB=1)],
        {"x": array(9, 5), "y": array(6, 9), "c": array(5, 1)},
    ),
    "padded convolution with a bias": lambda: Case(
        [node("Conv", "x w b", "m", pads=[1, 0, 2, 1], strides=[2, 1]), node("HardSwish", "m")],
        {"x": array(1, 6, 11, 9)},
        {"w": array(10, 6, 3, 2), "b": array(10)},
    ),
    "convolution of a batch, padded by itself": lambda: Case(
        [node("Conv", "x w", auto_pad="SAME_LOWER", strides=[2, 2])],
        {"x": array(2, 3, 7, 8)},
        {"w": array(4, 3, 3, 3)},
    ),
    "depthwise convolution": lambda: Case(
        [node("Conv", "x w", "m", pads=[1, 1, 1, 1], group=12), node("Clip", "m lo hi")],
        {"x": array(1, 12, 8, 7)},
        {"w": array(12, 1, 3, 3), "lo": np.float32(0), "hi": np.float32(6)},
    ),
    "grouped convolution, dilated": lambda: Case(
        [node("Conv", "x w", dilations=[2, 2], group=4)],
        {"x": array(1, 16, 9, 9)},
        {"w": array(8, 4, 3, 3)},
    ),
    "convolution in one dimension": lambda: Case(
        [node("Conv", "x w", pads=[2, 2])], {"x": array(1, 4, 20)}, {"w": array(6, 4, 5)}
    ),
    "convolution in three dimensions": lambda: Case(
        [node("Conv", "x w", pads=[1] * 6)], {"x": array(1, 2, 5, 4, 6)}, {"w": array(3, 2, 3, 3, 3)}
    ),
    "residual": lambda: Case(
        [node("Conv", "x w", "m"), node("Add", "y m", "a"), node("Gelu", "a")],
        {"x": array(1, 5, 6, 6), "y": array(1, 7, 6, 6)},
        {"w": array(7, 5, 1, 1)},
    ),
    "used twice": lambda: Case(
        [node("Conv", "x w", "m"), node("Sigmoid", "m", "s"), node("Mul", "m s")],
        {"x": array(1, 5, 6, 6)},
        {"w": array(7, 5, 1, 1)},
    ),
}
"""By what is special about each: a function that makes it."""
