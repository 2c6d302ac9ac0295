"""Values of a model in the making, and what may be said of an operator's answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import onnx
import onnx.defs
from onnx import helper

from collage_core.formats import Array

__all__ = [
    "DTYPES",
    "FLOATS",
    "INTEGERS",
    "USABLE",
    "Case",
    "Value",
    "agree",
    "cancelled",
    "legal_dtypes",
    "usable",
    "value_info",
]

FLOATS = ("float32", "float64", "float16")
INTEGERS = ("int64", "int32", "int8", "uint8", "int16", "uint16", "uint32", "uint64")
DTYPES = {*FLOATS, *INTEGERS, "bool"}

USABLE = 1e3
"""Larger numbers are returned, but nothing is computed from them: what follows might overflow."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model and an array for each of its inputs."""

    model: onnx.ModelProto
    inputs: dict[str, Array]


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the model. sample: what it is for the case's inputs, None where nobody could tell.

    exact: the same whoever computes it, so that comparing and rounding it has one answer.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    sample: Array | None
    constant: bool = False
    exact: bool = True

    @property
    def rank(self) -> int:
        return len(self.shape)


@cache
def legal_dtypes(op: str, opset: int, parameter: str | None) -> tuple[str, ...]:
    schema = onnx.defs.get_schema(op, opset)
    wanted = parameter or schema.inputs[0].type_str
    names = {"float": "float32", "double": "float64"}
    for constraint in schema.type_constraints:
        if constraint.type_param_str == wanted:
            texts = [t.removeprefix("tensor(").removesuffix(")") for t in constraint.allowed_type_strs]
            found = {names.get(t, t) for t in texts} & DTYPES
            return tuple(d for d in (*FLOATS, *INTEGERS, "bool") if d in found)
    return (names.get(wanted[7:-1], wanted[7:-1]),)


def cancelled(operands: Mapping[str, Array], results: Mapping[str, Array]) -> bool:
    """Whether an answer is tiny beside every number that it is made of."""
    floats = [np.abs(a[np.isfinite(a)]) for a in operands.values() if a.dtype.kind == "f"]
    least = min((float(a.max()) for a in floats if a.size), default=0.0)
    for array in results.values():
        if array.dtype.kind == "f" and array.size:
            largest = float(np.nan_to_num(np.abs(array)).max())
            if 0 < largest < 1e-3 * least:
                return True
    return False


def usable(array: Array) -> bool:
    if array.dtype.kind != "f":
        return bool(array.dtype == bool or not array.size or np.abs(array.astype(np.float64)).max() < 1e9)
    return not array.size or bool(np.isfinite(array).all() and np.abs(array).max() <= USABLE)


def agree(array: Array, type: tuple[str, tuple[int, ...] | None]) -> bool:
    """Whether an answer has the dtype that ONNX infers, and the shape, where it infers one."""
    return array.dtype.name == type[0] and type[1] in (None, array.shape)


def value_info(value: Value, shapeless: bool = False) -> onnx.ValueInfoProto:
    element = helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype))
    return helper.make_tensor_value_info(value.name, element, None if shapeless else value.shape)
