"""Cases of reductions, and of the normalisations made of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx import helper

from collage_benchmarks.kernels.case import Case, floats, positive
from collage_core.formats import Array

__all__ = [
    "argmax",
    "cumsum",
    "layer_norm",
    "layer_norm_decomposed",
    "log_softmax",
    "masked_softmax",
    "mean",
    "softmax",
]

_node = helper.make_node
_EPSILON = 1e-5


def mean(size: str, axes: tuple[int, ...], *shape: int) -> Case:
    """The mean over `axes`, which leave the result."""
    return Case(
        f"mean/{size}",
        "reduction",
        [_node("ReduceMean", ["x", "axes"], ["o"], keepdims=0)],
        {"x": positive(*shape)},
        lambda x: np.asarray(np.mean(x, axis=axes)),
        lambda torch, x: torch.mean(x, dim=axes),
        constants={"axes": np.array(axes, np.int64)},
    )


def _softmax(x: Array) -> Array:
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    total: Array = e / np.sum(e, axis=-1, keepdims=True)
    return total


def softmax(size: str, *shape: int) -> Case:
    return Case(
        f"softmax/{size}",
        "softmax",
        [_node("Softmax", ["x"], ["o"], axis=-1)],
        {"x": floats(*shape)},
        _softmax,
        lambda torch, x: torch.softmax(x, dim=-1),
    )


def log_softmax(size: str, *shape: int) -> Case:
    def in_numpy(x: Array) -> Array:
        centred = x - np.max(x, axis=-1, keepdims=True)
        result: Array = centred - np.log(np.sum(np.exp(centred), axis=-1, keepdims=True))
        return result

    return Case(
        f"log_softmax/{size}",
        "softmax",
        [_node("LogSoftmax", ["x"], ["o"], axis=-1)],
        {"x": floats(*shape)},
        in_numpy,
        lambda torch, x: torch.log_softmax(x, dim=-1),
    )


def masked_softmax(size: str, heads: int, tokens: int) -> Case:
    """Attention's: scores scaled, a mask added that is the same for every head and row, softmax."""
    root = math.sqrt(64)
    return Case(
        f"masked_softmax/{size}",
        "softmax",
        [
            _node("Div", ["x", "root"], ["scaled"]),
            _node("Add", ["scaled", "mask"], ["masked"]),
            _node("Softmax", ["masked"], ["o"], axis=-1),
        ],
        {"x": floats(1, heads, tokens, tokens, scale=8), "mask": floats(1, 1, 1, tokens, scale=4)},
        lambda x, mask: _softmax(x / np.float32(root) + mask),
        lambda torch, x, mask: torch.softmax(x / root + mask, dim=-1),
        constants={"root": np.float32(root)},
    )


def _layer_norm(x: Array, scale: Array, bias: Array) -> Array:
    centred = x - np.mean(x, axis=-1, keepdims=True)
    variance = np.mean(centred * centred, axis=-1, keepdims=True)
    result: Array = centred / np.sqrt(variance + np.float32(_EPSILON)) * scale + bias
    return result


def _torch_layer_norm(torch: Any, x: Any, scale: Any, bias: Any) -> Any:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], scale, bias, _EPSILON)


def layer_norm(size: str, rows: int, columns: int) -> Case:
    """The ONNX operator."""
    return Case(
        f"layer_norm/{size}",
        "normalisation",
        [_node("LayerNormalization", ["x", "scale", "bias"], ["o"], axis=-1, epsilon=_EPSILON)],
        {"x": floats(rows, columns)},
        _layer_norm,
        _torch_layer_norm,
        weights={"scale": positive(columns), "bias": floats(columns)},
    )


def layer_norm_decomposed(size: str, rows: int, columns: int) -> Case:
    """Nine operators, as exporters write it for old opsets."""
    return Case(
        f"layer_norm_decomposed/{size}",
        "normalisation",
        [
            _node("ReduceMean", ["x", "last"], ["mean"]),
            _node("Sub", ["x", "mean"], ["centred"]),
            _node("Pow", ["centred", "two"], ["squares"]),
            _node("ReduceMean", ["squares", "last"], ["variance"]),
            _node("Add", ["variance", "epsilon"], ["shifted"]),
            _node("Sqrt", ["shifted"], ["deviation"]),
            _node("Div", ["centred", "deviation"], ["normal"]),
            _node("Mul", ["normal", "scale"], ["scaled"]),
            _node("Add", ["scaled", "bias"], ["o"]),
        ],
        {"x": floats(rows, columns)},
        _layer_norm,
        _torch_layer_norm,
        weights={"scale": positive(columns), "bias": floats(columns)},
        constants={
            "last": np.array([-1], np.int64),
            "two": np.float32(2),
            "epsilon": np.float32(_EPSILON),
        },
    )


def argmax(size: str, *shape: int) -> Case:
    return Case(
        f"argmax/{size}",
        "reduction",
        [_node("ArgMax", ["x"], ["o"], axis=-1, keepdims=0)],
        {"x": floats(*shape)},
        lambda x: np.argmax(x, axis=-1),
        lambda torch, x: torch.argmax(x, dim=-1),
    )


def cumsum(size: str, rows: int, columns: int) -> Case:
    return Case(
        f"cumsum/{size}",
        "scan",
        [_node("CumSum", ["x", "last"], ["o"])],
        {"x": positive(rows, columns)},
        lambda x: np.cumsum(x, axis=-1),
        lambda torch, x: torch.cumsum(x, dim=-1),
        constants={"last": np.array(1, np.int64)},
    )
