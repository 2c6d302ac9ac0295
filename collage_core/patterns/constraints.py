"""What a pattern may ask of the operator or value it matches, beyond its place in the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collage_core.errors import CollageError
from collage_core.ir import Attribute, Graph, Operator
from collage_core.ir.attributes import Attributes, matches_attribute

__all__ = ["Constraint", "HasAttr", "HasDtype", "HasShape"]


@dataclass(frozen=True, slots=True)
class HasAttr:
    """Attributes of the operator that computes the value, sorted by name; values are hashable."""

    attributes: tuple[tuple[str, Attribute], ...]

    @classmethod
    def of(cls, attributes: Mapping[str, Attribute]) -> HasAttr:
        return cls(tuple(sorted((name, _hashable(value)) for name, value in attributes.items())))

    def refuses(self, graph: Graph, op: Operator | None, value: str) -> str | None:
        if op is None:
            return "nothing computes it, so it has no attributes"
        stated = Attributes(op)
        for name, expected in self.attributes:
            if name not in stated:
                return f"it has no attribute {name!r}"
            if not matches_attribute(name, expected, stated[name]):
                return f"its {name} is {stated[name]!r}, not {expected!r}"
        return None

    def __str__(self) -> str:
        return f".has_attr({dict(self.attributes)!r})"


@dataclass(frozen=True, slots=True)
class HasShape:
    """Shape of the value; None stands for any size."""

    shape: tuple[int | str | None, ...]

    @classmethod
    def of(cls, shape: Sequence[int | str | None]) -> HasShape:
        return cls(tuple(shape))

    def refuses(self, graph: Graph, op: Operator | None, value: str) -> str | None:
        if not value:
            return "its first output is absent"
        actual = graph.type_of(value).shape
        if len(actual) == len(self.shape) and all(
            e in (None, a) for e, a in zip(self.shape, actual, strict=True)
        ):
            return None
        return f"its shape is {actual}, not {self.shape}"

    def __str__(self) -> str:
        return f".has_shape({self.shape!r})"


@dataclass(frozen=True, slots=True)
class HasDtype:
    """Element type of the value, as numpy names it."""

    dtype: str

    @classmethod
    def of(cls, dtype: object) -> HasDtype:
        try:
            return cls(np.dtype(dtype).name)  # type: ignore[call-overload]  # whatever numpy takes for a dtype
        except TypeError:
            if isinstance(dtype, str):
                return cls(dtype)
            raise CollageError(f"{dtype!r} is no element type") from None

    def refuses(self, graph: Graph, op: Operator | None, value: str) -> str | None:
        if not value:
            return "its first output is absent"
        actual = graph.type_of(value).dtype
        return None if actual == self.dtype else f"its dtype is {actual}, not {self.dtype}"

    def __str__(self) -> str:
        return f".has_dtype({self.dtype!r})"


Constraint = HasAttr | HasShape | HasDtype


def _hashable(value: Any) -> Attribute:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    return tuple(_hashable(v) for v in value) if isinstance(value, list | tuple) else value
