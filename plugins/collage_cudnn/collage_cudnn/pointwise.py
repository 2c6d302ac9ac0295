"""ONNX's elementwise operators as the pointwise steps of cuDNN's graphs.

What a step computes: https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/Pointwise.html
The frontend asks for CUDNN_PROPAGATE_NAN wherever a step has the choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from collage_core.errors import Refusal
from collage_core.formats import Array
from collage_core.ir import Graph, Node, Operator

__all__ = ["POINTWISE_OPS", "Emitter", "emit", "operands_of", "pointwise_refusal", "scalar"]


class Emitter(Protocol):
    """Where the steps of one node go. Numbers are those of `description.Description`.

    is_split: bounds on both sides are two steps.
    """

    is_split: bool

    def step(self, kind: str, *inputs: int, **attributes: float) -> int: ...

    def number(self, value: float) -> int: ...

    def channels(self, data: Array) -> int:
        """One number for each channel (the second dimension)."""
        ...


_Maker = Callable[[Emitter, Node, Graph, Sequence[int]], int]


def _one(kind: str) -> _Maker:
    return lambda to, node, graph, x: to.step(kind, x[0])


def _folded(kind: str) -> _Maker:
    def make(to: Emitter, node: Node, graph: Graph, x: Sequence[int]) -> int:
        if len(x) == 1:
            return to.step("identity", x[0])
        result = x[0]
        for other in x[1:]:
            result = to.step(kind, result, other)
        return result

    return make


def _mean(to: Emitter, node: Node, graph: Graph, x: Sequence[int]) -> int:
    return to.step("mul", _folded("add")(to, node, graph, x), to.number(1.0 / len(x)))


def _clip(to: Emitter, node: Node, graph: Graph, x: Sequence[int]) -> int:
    return _bounded(to, x[0], *_bounds(graph, node))


def _bounded(to: Emitter, x: int, low: float | None, high: float | None) -> int:
    if low is not None and high is not None and not to.is_split:
        return to.step("relu", x, lower_clip=low, upper_clip=high)
    if low is not None:
        x = to.step("relu", x) if low == 0.0 else to.step("max", x, to.number(low))
    if high is not None:
        x = to.step("min", x, to.number(high))
    return to.step("identity", x) if low is None and high is None else x


def _leaky(to: Emitter, node: Node, graph: Graph, x: Sequence[int]) -> int:
    return to.step("relu", x[0], negative_slope=_float(graph, node, "alpha"))


def _gelu(to: Emitter, node: Node, graph: Graph, x: Sequence[int]) -> int:
    is_tanh = str(Operator(graph, node).attrs["approximate"]) == "tanh"
    return to.step("gelu_approx_tanh" if is_tanh else "gelu", x[0])


def _swish(to: Emitter, node: Node, graph: Graph, x: Sequence[int]) -> int:
    return to.step("swish", x[0], swish_beta=float(node.attributes.get("alpha", 1.0)))


def _hard(to: Emitter, x: int, alpha: float, beta: float) -> int:
    line = to.step("add", to.step("mul", x, to.number(alpha)), to.number(beta))
    return _bounded(to, line, 0.0, 1.0)


def _hard_sigmoid(to: Emitter, node: Node, graph: Graph, x: Sequence[int]) -> int:
    return _hard(to, x[0], _float(graph, node, "alpha"), _float(graph, node, "beta"))


def _hard_swish(to: Emitter, node: Node, graph: Graph, x: Sequence[int]) -> int:
    return to.step("mul", x[0], _hard(to, x[0], 1.0 / 6.0, 0.5))


def _mish(to: Emitter, node: Node, graph: Graph, x: Sequence[int]) -> int:
    return to.step("mul", x[0], to.step("tanh", to.step("softplus", x[0])))


def _softsign(to: Emitter, node: Node, graph: Graph, x: Sequence[int]) -> int:
    return to.step("div", x[0], to.step("add", to.step("abs", x[0]), to.number(1.0)))


def _power(to: Emitter, node: Node, graph: Graph, x: Sequence[int]) -> int:
    square = to.step("mul", x[0], x[0])
    return square if scalar(graph, node.inputs[1]) == 2.0 else to.step("mul", square, x[0])


def _batch_norm(to: Emitter, node: Node, graph: Graph, x: Sequence[int]) -> int:
    """(x - mean) * (scale / sqrt(variance + epsilon)) + bias."""
    scale, bias, mean, variance = (np.asarray(graph.constants[v], np.float64) for v in node.inputs[1:5])
    gain = scale / np.sqrt(variance + _float(graph, node, "epsilon"))
    centred = to.step("sub", x[0], to.channels(mean))
    return to.step("add", to.step("mul", centred, to.channels(gain)), to.channels(bias))


POINTWISE_OPS: Mapping[str, _Maker] = {
    "Abs": _one("abs"),
    "Add": _folded("add"),
    "BatchNormalization": _batch_norm,
    "Ceil": _one("ceil"),
    "Clip": _clip,
    "Cos": _one("cos"),
    "Div": _folded("div"),
    "Elu": _one("elu"),
    "Erf": _one("erf"),
    "Exp": _one("exp"),
    "Floor": _one("floor"),
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "LeakyRelu": _leaky,
    "Log": _one("log"),
    "Max": _folded("max"),
    "Mean": _mean,
    "Min": _folded("min"),
    "Mish": _mish,
    "Mul": _folded("mul"),
    "Neg": _one("neg"),
    "Pow": _power,
    "Reciprocal": _one("reciprocal"),
    "Relu": _one("relu"),
    "Sigmoid": _one("sigmoid"),
    "Sin": _one("sin"),
    "Softplus": _one("softplus"),
    "Softsign": _softsign,
    "Sqrt": _one("sqrt"),
    "Sub": _folded("sub"),
    "Sum": _folded("add"),
    "Swish": _swish,
    "Tan": _one("tan"),
    "Tanh": _one("tanh"),
}
"""Operators, with what makes steps of them."""

_FOLDED = frozenset(["Add", "Div", "Max", "Mean", "Min", "Mul", "Sub", "Sum"])


def emit(to: Emitter, node: Node, graph: Graph, operands: Sequence[int]) -> int:
    """The number of the node's result. operands: those of `operands_of`."""
    return POINTWISE_OPS[node.op_type](to, node, graph, operands)


def operands_of(node: Node) -> tuple[str, ...]:
    """The inputs that are read as tensors; the others are parameters."""
    return node.inputs if node.op_type in _FOLDED else node.inputs[:1]


def scalar(graph: Graph, name: str) -> float | None:
    """The number that the constant `name` holds, or None if it is no constant or holds more than one."""
    data = graph.constants.get(name)
    return float(data.reshape(())) if data is not None and data.size == 1 else None


def _bounds(graph: Graph, node: Node) -> tuple[float | None, float | None]:
    """Of a Clip whose bounds are constant; None for one that it does not have."""
    given = [scalar(graph, v) if v else None for v in (*node.inputs[1:3], "", "")[:2]]
    low, high = (node.attributes.get(n, v) for n, v in zip(("min", "max"), given, strict=True))
    return (None if low is None else float(low), None if high is None else float(high))


def pointwise_refusal(graph: Graph, node: Node) -> Refusal | None:
    """Why the node is not one that can be made pointwise steps of; None if it is."""
    check = _CHECKS.get(node.op_type)
    reason = None if check is None else check(graph, node)
    return None if reason is None else Refusal(reason, node.name)


def _float(graph: Graph, node: Node, name: str) -> float:
    return float(Operator(graph, node).attrs[name])


def _clip_reason(graph: Graph, node: Node) -> str | None:
    if any(v and scalar(graph, v) is None for v in node.inputs[1:3]):
        return "the bounds of Clip are not constant"
    low, high = _bounds(graph, node)
    if not (-math.inf if low is None else low) <= (math.inf if high is None else high):
        return "Clip's lower bound is above its upper bound, or one of them is no number"
    return None


def _elu_reason(graph: Graph, node: Node) -> str | None:
    return None if _float(graph, node, "alpha") == 1.0 else "cuDNN's Elu has no alpha"


def _power_reason(graph: Graph, node: Node) -> str | None:
    if scalar(graph, node.inputs[1]) not in (2.0, 3.0):
        return "Pow's exponent is not constantly 2 or 3"
    return None


def _batch_norm_reason(graph: Graph, node: Node) -> str | None:
    if node.attributes.get("training_mode", 0) or any(node.outputs[1:]):
        return "batch normalisation for training"
    if any(v not in graph.constants for v in node.inputs[1:5]):
        return "batch normalisation whose parameters are not constant"
    if len(graph.shape_of(node.inputs[0])) < 2:
        return "batch normalisation without channels"
    return None


_CHECKS: Mapping[str, Callable[[Graph, Node], str | None]] = {
    "BatchNormalization": _batch_norm_reason,
    "Clip": _clip_reason,
    "Elu": _elu_reason,
    "Pow": _power_reason,
}
