"""What the device's programs compute: in float32, rounded to what the result is stored in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["BINARY", "FUNCTIONS", "UNARY", "compute", "convert"]

_Array = npt.NDArray[Any]


def _softmax(x: _Array, axis: int = -1) -> _Array:
    shifted = np.exp(x - x.max(axis=axis, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=axis, keepdims=True))


UNARY: Mapping[str, Any] = {
    "Abs": np.abs,
    "Ceil": np.ceil,
    "Exp": np.exp,
    "Floor": np.floor,
    "LeakyRelu": lambda x, alpha=0.01: np.where(x < 0, alpha * x, x),
    "Log": np.log,
    "Neg": np.negative,
    "Reciprocal": np.reciprocal,
    "Relu": lambda x: np.where(x < 0, 0, x),  # of NaN it is NaN
    "Sigmoid": lambda x: 0.5 * (1.0 + np.tanh(0.5 * x)),
    "Sign": np.sign,
    "Softmax": _softmax,
    "Sqrt": np.sqrt,
    "Tanh": np.tanh,
}
BINARY: Mapping[str, Any] = {
    "Add": np.add,
    "Div": np.divide,
    "MatMul": np.matmul,
    "Max": np.maximum,
    "Min": np.minimum,
    "Mul": np.multiply,
    "Sub": np.subtract,
}
FUNCTIONS: Mapping[str, Any] = {**UNARY, **BINARY}
"""By operator."""


def compute(
    engine: object, inputs: Sequence[_Array], outputs: Sequence[_Array], attributes: Mapping[str, Any]
) -> None:
    """One operator, whose name is among the attributes."""
    given = dict(attributes)
    function = FUNCTIONS[given.pop("op")]
    with np.errstate(all="ignore"):
        outputs[0][...] = function(*(x.astype(np.float32, copy=False) for x in inputs), **given)


def convert(
    engine: object, inputs: Sequence[_Array], outputs: Sequence[_Array], attributes: Mapping[str, Any]
) -> None:
    """From one dtype into another."""
    with np.errstate(all="ignore"):
        outputs[0][...] = inputs[0]
