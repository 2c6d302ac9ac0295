"""The order in which a schedule stores a weight: read and checked without TVM."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collage_core.errors import BackendError

__all__ = ["Digit", "digits_of"]

_MOST_NODES = 1 << 10
_VARIABLE, _CONSTANT, _DIVISION, _REMAINDER = "ir.Var", "ir.IntImm", "prim.FloorDiv", "prim.FloorMod"


@dataclass(frozen=True, slots=True)
class Digit:
    """`index[dimension] % below // divisor`; `below` is None where nothing is cut off."""

    dimension: int
    divisor: int
    below: int | None


def digits_of(text: str, shape: Sequence[int]) -> list[Digit]:
    """The stored index in terms of the logical one, from what TVM writes of such a map (JSON).

    BackendError unless it takes every element of `shape` to a place of its own, and leaves none empty: each
    dimension is cut into tiles of equal size, whose numbers are put in any order. The inverse that the text
    states is not looked at.
    """
    try:
        data = json.loads(text)
        nodes = data["nodes"]
        if len(nodes) > _MOST_NODES:
            raise ValueError(f"{len(nodes)} nodes")
        whole = _data(nodes, data["root_index"], "tirx.IndexMap")
        variables = _data(nodes, whole["initial_indices"], "ffi.Array")
        dimensions = {v: d for d, v in enumerate(variables) if _data(nodes, v, _VARIABLE)}
        finals = _data(nodes, whole["final_indices"], "ffi.Array")
        digits = [d for f in finals if (d := _digit(nodes, f, dimensions)) is not None]
        if len(dimensions) != len(shape) or not digits:
            raise ValueError(f"{len(dimensions)} dimensions for {len(shape)}")
        for dimension, extent in enumerate(shape):
            _check_digits([d for d in digits if d.dimension == dimension], extent)
    except (LookupError, RecursionError, TypeError, ValueError) as error:
        raise BackendError(f"the tuned schedule stores a weight in an order that is none ({error})") from None
    return digits


def _data(nodes: Sequence[Mapping[str, Any]], index: object, kind: str) -> Any:
    """What the node of this number holds, which must be of this kind."""
    if type(index) is not int or not 0 <= index < len(nodes) or nodes[index]["type"] != kind:
        raise ValueError(f"{index!r} is no {kind}")
    return nodes[index]["data"]


def _digit(nodes: Sequence[Mapping[str, Any]], index: int, dimensions: Mapping[int, int]) -> Digit | None:
    """None for the constant 0, which stands where there is nothing to count."""
    if type(index) is int and nodes[index]["type"] == _CONSTANT and not _constant(nodes, index):
        return None
    divisor, below = 1, None
    if nodes[index]["type"] == _DIVISION:
        data = _data(nodes, index, _DIVISION)
        index, divisor = data["a"], _constant(nodes, data["b"])
    if nodes[index]["type"] == _REMAINDER:
        data = _data(nodes, index, _REMAINDER)
        index, below = data["a"], _constant(nodes, data["b"])
    return Digit(dimensions[index], divisor, below)


def _constant(nodes: Sequence[Mapping[str, Any]], index: object) -> int:
    number = _data(nodes, _data(nodes, index, _CONSTANT)["value"], "int")
    if type(number) is not int:
        raise ValueError(f"{number!r} is no integer")
    return number


def _check_digits(digits: Sequence[Digit], extent: int) -> None:
    """ValueError unless these tell every number below `extent` from every other, and nothing else."""
    reached = 1
    for digit in sorted(digits, key=lambda d: d.divisor):
        below = extent if digit.below is None else digit.below
        if digit.divisor != reached or below < 1 or below % reached:
            raise ValueError(f"{digit} is not the next digit of {extent}")
        reached = below
    if reached != extent:
        raise ValueError(f"{reached} places for {extent}")
