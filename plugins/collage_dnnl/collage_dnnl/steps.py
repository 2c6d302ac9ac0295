"""Elementwise and binary ONNX operators as the steps that oneDNN's post-ops are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from collage_core.errors import Refusal
from collage_core.formats import Array
from collage_core.ir import Graph, Node
from collage_dnnl.enums import Alg
from collage_dnnl.kernels.plan import Eltwise

__all__ = ["BINARY_OPS", "UNARY_OPS", "Binary", "Step", "broadcasts", "diamond_steps", "steps_of"]

_FLOAT_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Binary:
    """d = s (alg) `operand`, which broadcasts to s."""

    alg: Alg
    operand: str


Step = Eltwise | Binary

_Maker = Callable[[Graph, Node], "list[Step] | Refusal"]


def _plain(alg: Alg, alpha: float = 0.0, beta: float = 0.0) -> _Maker:
    return lambda graph, node: [Eltwise(alg, alpha, beta)]


def _number(node: Node, name: str, default: float) -> float:
    return float(node.attributes.get(name, default))


def _text(node: Node, name: str, default: str) -> str:
    value = node.attributes.get(name, default)
    return value.decode() if isinstance(value, bytes) else str(value)


def _gelu(graph: Graph, node: Node) -> list[Step] | Refusal:
    tanh = _text(node, "approximate", "none") == "tanh"
    return [Eltwise(Alg.ELTWISE_GELU_TANH if tanh else Alg.ELTWISE_GELU_ERF)]


def _selu(graph: Graph, node: Node) -> list[Step] | Refusal:
    alpha = _number(node, "alpha", 1.67326319217681884765625)
    gamma = _number(node, "gamma", 1.05070102214813232421875)
    return [Eltwise(Alg.ELTWISE_ELU, alpha), Eltwise(Alg.ELTWISE_LINEAR, gamma)]


def _clip(graph: Graph, node: Node) -> list[Step] | Refusal:
    low, high = _number(node, "min", -_FLOAT_MAX), _number(node, "max", _FLOAT_MAX)
    bounds = [low, high]
    for i, name in enumerate(node.inputs[1:3]):
        if name:
            value = scalar(graph, name)
            if value is None:
                return Refusal("the bounds of Clip are not constant", node.name)
            bounds[i] = value
    if bounds[0] > bounds[1]:
        return Refusal("Clip's lower bound is above its upper bound", node.name)
    return [Eltwise(Alg.ELTWISE_CLIP, bounds[0], bounds[1])]


def _power(graph: Graph, node: Node) -> list[Step] | Refusal:
    exponent = scalar(graph, node.inputs[1])
    if exponent is None:
        return Refusal("Pow's exponent is not one constant number", node.name)
    if exponent == 2.0:
        return [Eltwise(Alg.ELTWISE_SQUARE)]
    if exponent == 0.5:
        return [Eltwise(Alg.ELTWISE_SQRT)]
    return [Eltwise(Alg.ELTWISE_POW, 1.0, exponent)]


UNARY_OPS: dict[str, _Maker] = {
    "Abs": _plain(Alg.ELTWISE_ABS),
    "Clip": _clip,
    "Elu": lambda g, n: [Eltwise(Alg.ELTWISE_ELU, _number(n, "alpha", 1.0))],
    "Exp": _plain(Alg.ELTWISE_EXP),
    "Gelu": _gelu,
    "HardSigmoid": lambda g, n: [
        Eltwise(Alg.ELTWISE_HARDSIGMOID, _number(n, "alpha", 0.2), _number(n, "beta", 0.5))
    ],
    "HardSwish": _plain(Alg.ELTWISE_HARDSWISH, 1.0 / 6.0, 0.5),
    "LeakyRelu": lambda g, n: [Eltwise(Alg.ELTWISE_RELU, _number(n, "alpha", 0.01))],
    "Log": _plain(Alg.ELTWISE_LOG),
    "Mish": _plain(Alg.ELTWISE_MISH),
    "Neg": _plain(Alg.ELTWISE_LINEAR, -1.0),
    "Pow": _power,
    "Reciprocal": _plain(Alg.ELTWISE_POW, 1.0, -1.0),
    "Relu": _plain(Alg.ELTWISE_RELU),
    "Round": _plain(Alg.ELTWISE_ROUND),
    "Selu": _selu,
    "Sigmoid": _plain(Alg.ELTWISE_LOGISTIC),
    "Softplus": _plain(Alg.ELTWISE_SOFT_RELU, 1.0),
    "Sqrt": _plain(Alg.ELTWISE_SQRT),
    "Swish": lambda g, n: [Eltwise(Alg.ELTWISE_SWISH, _number(n, "alpha", 1.0))],
    "Tanh": _plain(Alg.ELTWISE_TANH),
}
"""Operators of one variable input."""

BINARY_OPS: dict[str, Alg] = {
    "Add": Alg.BINARY_ADD,
    "Div": Alg.BINARY_DIV,
    "Max": Alg.BINARY_MAX,
    "Mean": Alg.BINARY_ADD,
    "Min": Alg.BINARY_MIN,
    "Mul": Alg.BINARY_MUL,
    "Sub": Alg.BINARY_SUB,
    "Sum": Alg.BINARY_ADD,
}
"""Operators of two or more inputs that broadcast."""


def scalar(graph: Graph, name: str) -> float | None:
    """The number that the constant `name` holds, or None if it is no constant or holds more than one."""
    data: Array | None = graph.constants.get(name)
    return float(data.reshape(())) if data is not None and data.size == 1 else None


def steps_of(graph: Graph, node: Node, running: str) -> list[Step] | Refusal:
    """The steps that turn the value `running` into `node`'s output; a Refusal says why there are none."""
    maker = UNARY_OPS.get(node.op_type)
    if maker is not None:
        if node.inputs[0] != running:
            return Refusal(f"{node.op_type} is supported in its first input only", node.name)
        return maker(graph, node)
    if node.op_type not in BINARY_OPS:
        return Refusal(f"{node.op_type} cannot be a post-operation", node.name)
    if graph.shape_of(running) != graph.shape_of(node.outputs[0]):
        return Refusal("the value that is passed along would be broadcast", node.name)
    others = list(node.inputs)
    others.remove(running)
    if running in others:
        return _with_itself(node, others)
    if not others:
        return Refusal(f"{node.op_type} of a single input", node.name)
    if any(not broadcasts(graph.shape_of(v), graph.shape_of(running)) for v in others):
        return Refusal("an operand does not broadcast to the value that is passed along", node.name)
    first = node.inputs[0] == running
    steps: list[Step] = []
    for other in others:
        steps += _binary_steps(graph, node.op_type, other, first)
    if node.op_type == "Mean":
        steps.append(Eltwise(Alg.ELTWISE_LINEAR, 1.0 / len(node.inputs)))
    return steps


def broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Whether an operand of `shape` may be combined with a value of shape `to` without changing that."""
    missing = len(to) - len(shape)
    return missing >= 0 and all(a in (1, b) for a, b in zip(shape, to[missing:], strict=True))


def _binary_steps(graph: Graph, op: str, other: str, first: bool) -> list[Step]:
    number = scalar(graph, other)
    if op == "Sub" and not first:
        if number is not None:
            return [Eltwise(Alg.ELTWISE_LINEAR, -1.0, number)]
        # c - x is -(x - c)
        return [Binary(Alg.BINARY_SUB, other), Eltwise(Alg.ELTWISE_LINEAR, -1.0)]
    if op == "Div" and not first:
        if number is not None:
            return [Eltwise(Alg.ELTWISE_POW, number, -1.0)]
        # c / x is (x / c)^-1
        return [Binary(Alg.BINARY_DIV, other), Eltwise(Alg.ELTWISE_POW, 1.0, -1.0)]
    if number is not None:
        if op in ("Add", "Sum", "Mean"):
            return [Eltwise(Alg.ELTWISE_LINEAR, 1.0, number)]
        if op == "Sub":
            return [Eltwise(Alg.ELTWISE_LINEAR, 1.0, -number)]
        if op == "Mul":
            return [Eltwise(Alg.ELTWISE_LINEAR, number)]
        if op == "Div" and number != 0.0:
            return [Eltwise(Alg.ELTWISE_LINEAR, 1.0 / number)]
    return [Binary(BINARY_OPS[op], other)]


def _with_itself(node: Node, others: list[str]) -> list[Step] | Refusal:
    if len(others) == 1 and node.op_type == "Mul":
        return [Eltwise(Alg.ELTWISE_SQUARE)]
    if len(others) == 1 and node.op_type in ("Add", "Sum"):
        return [Eltwise(Alg.ELTWISE_LINEAR, 2.0)]
    return Refusal(f"{node.op_type} of a value with itself", node.name)


def diamond_steps(nodes: list[Node], running: str) -> list[Step] | None:
    """The step that equals several nodes which branch off `running` and join again in a Mul; None if it is no
    known one.

    x * Sigmoid(x), x * HardSigmoid(x), x * Tanh(Softplus(x)). `nodes` in topological order, the Mul last.
    """
    kinds = [n.op_type for n in nodes]
    chain, join = nodes[:-1], nodes[-1]
    value = running
    for n in chain:
        if n.inputs != (value,):
            return None
        value = n.outputs[0]
    if join.op_type != "Mul" or sorted(join.inputs) != sorted((running, value)):
        return None
    if kinds == ["Sigmoid", "Mul"]:
        return [Eltwise(Alg.ELTWISE_SWISH, 1.0)]
    if kinds == ["HardSigmoid", "Mul"]:
        n = nodes[0]
        return [Eltwise(Alg.ELTWISE_HARDSWISH, _number(n, "alpha", 0.2), _number(n, "beta", 0.5))]
    if kinds == ["Softplus", "Tanh", "Mul"]:
        return [Eltwise(Alg.ELTWISE_MISH)]
    return None
