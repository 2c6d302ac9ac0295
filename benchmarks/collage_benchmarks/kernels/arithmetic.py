"""Cases of elementwise and broadcast operators: chains, diamonds, activations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx import helper

from collage_benchmarks.kernels.case import Case, floats
from collage_core.formats import Array

__all__ = [
    "add_relu",
    "bias",
    "diamond",
    "gelu_erf",
    "gelu_tanh",
    "hard_swish",
    "long_chain",
    "mish",
    "rows_and_columns",
    "several_in_and_out",
    "silu",
]

_node = helper.make_node


def add_relu(size: str, *shape: int) -> Case:
    return Case(
        f"add_relu/{size}",
        "elementwise",
        [_node("Add", ["x", "y"], ["s"]), _node("Relu", ["s"], ["o"])],
        {"x": floats(*shape), "y": floats(*shape)},
        lambda x, y: np.maximum(x + y, 0),
        lambda torch, x, y: torch.relu(x + y),
    )


def several_in_and_out(size: str, *shape: int) -> Case:
    """Four inputs; two outputs, one of which is computed from the other."""

    def in_numpy(a: Array, b: Array, c: Array, d: Array) -> tuple[Array, Array]:
        first = np.maximum(a * b + c, 0)
        return first, np.tanh(first - d)

    def in_torch(torch: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
        first = torch.relu(a * b + c)
        return first, torch.tanh(first - d)

    return Case(
        f"several_in_and_out/{size}",
        "elementwise",
        [
            _node("Mul", ["a", "b"], ["ab"]),
            _node("Add", ["ab", "c"], ["abc"]),
            _node("Relu", ["abc"], ["first"]),
            _node("Sub", ["first", "d"], ["rest"]),
            _node("Tanh", ["rest"], ["second"]),
        ],
        {name: floats(*shape) for name in "abcd"},
        in_numpy,
        in_torch,
        outputs=("first", "second"),
    )


def long_chain(size: str, *shape: int) -> Case:
    """Twelve operators, one after the other."""
    factors = [np.float32(f) for f in (1.5, 0.25, 0.75, 3.0)]
    steps = [
        ("Mul", 0),
        ("Relu", None),
        ("Add", 1),
        ("Mul", 2),
        ("Abs", None),
        ("Sub", 3),
        ("Neg", None),
        ("Mul", 0),
        ("Add", 2),
        ("Relu", None),
        ("Mul", 1),
        ("Sub", 0),
    ]
    nodes = []
    for k, (op, factor) in enumerate(steps):
        operands = [f"v{k}" if k else "x", *([] if factor is None else [f"f{factor}"])]
        nodes.append(_node(op, operands, ["o" if k == len(steps) - 1 else f"v{k + 1}"]))

    def in_numpy(x: Array) -> Array:
        y = np.abs((np.maximum(x * factors[0], 0) + factors[1]) * factors[2])
        y = -(y - factors[3]) * factors[0] + factors[2]
        result: Array = np.maximum(y, 0) * factors[1] - factors[0]
        return result

    def in_torch(torch: Any, x: Any) -> Any:
        y = torch.abs((torch.relu(x * 1.5) + 0.25) * 0.75)
        y = torch.neg(y - 3.0) * 1.5 + 0.75
        return torch.relu(y) * 0.25 - 1.5

    constants = {f"f{k}": factor for k, factor in enumerate(factors)}
    return Case(
        f"long_chain/{size}",
        "elementwise",
        nodes,
        {"x": floats(*shape)},
        in_numpy,
        in_torch,
        constants=constants,
    )


def diamond(size: str, *shape: int) -> Case:
    """One value goes two ways, which meet again."""

    def in_numpy(x: Array, y: Array) -> Array:
        s = x + y
        result: Array = np.maximum(s, 0) * (1 / (1 + np.exp(-s)))
        return result

    def in_torch(torch: Any, x: Any, y: Any) -> Any:
        s = x + y
        return torch.relu(s) * torch.sigmoid(s)

    return Case(
        f"diamond/{size}",
        "elementwise",
        [
            _node("Add", ["x", "y"], ["s"]),
            _node("Relu", ["s"], ["left"]),
            _node("Sigmoid", ["s"], ["right"]),
            _node("Mul", ["left", "right"], ["o"]),
        ],
        {"x": floats(*shape), "y": floats(*shape)},
        in_numpy,
        in_torch,
    )


def bias(size: str, rows: int, columns: int) -> Case:
    return Case(
        f"bias/{size}",
        "broadcast",
        [_node("Add", ["x", "b"], ["o"])],
        {"x": floats(rows, columns)},
        lambda x, b: x + b,
        lambda torch, x, b: x + b,
        weights={"b": floats(columns)},
    )


def rows_and_columns(size: str, rows: int, columns: int) -> Case:
    """A factor for every row and a term for every column."""
    return Case(
        f"rows_and_columns/{size}",
        "broadcast",
        [_node("Mul", ["x", "r"], ["m"]), _node("Add", ["m", "c"], ["o"])],
        {"x": floats(rows, columns), "r": floats(rows, 1), "c": floats(1, columns)},
        lambda x, r, c: x * r + c,
        lambda torch, x, r, c: x * r + c,
    )


def gelu_erf(size: str, *shape: int) -> Case:
    """As exporters write it: x * (1 + erf(x / sqrt 2)) * 0.5. NumPy has no erf; Python's is called for each
    element.
    """
    erf = np.frompyfunc(math.erf, 1, 1)
    return Case(
        f"gelu_erf/{size}",
        "elementwise",
        [
            _node("Div", ["x", "root"], ["scaled"]),
            _node("Erf", ["scaled"], ["erf"]),
            _node("Add", ["erf", "one"], ["gate"]),
            _node("Mul", ["x", "gate"], ["double"]),
            _node("Mul", ["double", "half"], ["o"]),
        ],
        {"x": floats(*shape)},
        lambda x: x * (1 + erf(x / np.float32(math.sqrt(2))).astype(np.float32)) * np.float32(0.5),
        lambda torch, x: torch.nn.functional.gelu(x),
        constants={
            "root": np.float32(math.sqrt(2)),
            "one": np.float32(1),
            "half": np.float32(0.5),
        },
    )


def gelu_tanh(size: str, *shape: int) -> Case:
    """x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))."""
    root, cubic = np.float32(math.sqrt(2 / math.pi)), np.float32(0.044715)
    return Case(
        f"gelu_tanh/{size}",
        "elementwise",
        [
            _node("Pow", ["x", "three"], ["cube"]),
            _node("Mul", ["cube", "cubic"], ["term"]),
            _node("Add", ["x", "term"], ["sum"]),
            _node("Mul", ["sum", "root"], ["scaled"]),
            _node("Tanh", ["scaled"], ["tanh"]),
            _node("Add", ["tanh", "one"], ["gate"]),
            _node("Mul", ["x", "gate"], ["double"]),
            _node("Mul", ["double", "half"], ["o"]),
        ],
        {"x": floats(*shape)},
        lambda x: x * (1 + np.tanh((x + x * x * x * cubic) * root)) * np.float32(0.5),
        lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh"),
        constants={
            "three": np.float32(3),
            "cubic": cubic,
            "root": root,
            "one": np.float32(1),
            "half": np.float32(0.5),
        },
    )


def silu(size: str, *shape: int) -> Case:
    return Case(
        f"silu/{size}",
        "elementwise",
        [_node("Sigmoid", ["x"], ["gate"]), _node("Mul", ["x", "gate"], ["o"])],
        {"x": floats(*shape)},
        lambda x: x / (1 + np.exp(-x)),
        lambda torch, x: torch.nn.functional.silu(x),
    )


def hard_swish(size: str, *shape: int) -> Case:
    return Case(
        f"hard_swish/{size}",
        "elementwise",
        [_node("HardSigmoid", ["x"], ["gate"], alpha=1 / 6, beta=0.5), _node("Mul", ["x", "gate"], ["o"])],
        {"x": floats(*shape, scale=3)},
        lambda x: x * np.clip(x * np.float32(1 / 6) + np.float32(0.5), 0, 1),
        lambda torch, x: torch.nn.functional.hardswish(x),
    )


def mish(size: str, *shape: int) -> Case:
    return Case(
        f"mish/{size}",
        "elementwise",
        [
            _node("Softplus", ["x"], ["plus"]),
            _node("Tanh", ["plus"], ["gate"]),
            _node("Mul", ["x", "gate"], ["o"]),
        ],
        {"x": floats(*shape)},
        lambda x: x * np.tanh(np.logaddexp(x, np.float32(0))),
        lambda torch, x: torch.nn.functional.mish(x),
    )
