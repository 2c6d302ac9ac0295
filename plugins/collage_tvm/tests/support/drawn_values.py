"""Values drawn at random, with what is known of each, and the graph that they become."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper

from collage_core.formats import Array

__all__ = ["FLOATS", "INTEGERS", "MAX_ELEMENTS", "SIZES", "Draft", "Value", "broadcast", "fit"]

SIZES = (1, 2, 3, 1, 5, 7, 16, 17, 31, 33, 67)
"""Of dimensions: around the widths of vectors, and one more often than others."""
MAX_ELEMENTS = 12_000
"""What no value exceeds."""
_EXACT_BOUND, _ROUNDED_BOUND = 2.0**20, 100.0
INTEGERS, FLOATS = ("int32", "int64"), ("float32", "float64")
"""The dtypes that values have, besides bool."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Value:
    """bound: its largest magnitude. exact: no operator has rounded it."""

    name: str
    shape: Shape
    dtype: str
    bound: float = 3.0
    exact: bool = True

    @property
    def floating(self) -> bool:
        return self.dtype in FLOATS


class Draft:
    """A graph whose nodes come one after the other, each over values that are there or over new ones."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self._random = np.random.default_rng(draw(st.integers(0, 999)))
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: dict[str, Array] = {}
        self.constants: dict[str, Array] = {}
        self.values: list[Value] = []

    def one(self, *choices: Any) -> Any:
        return self._draw(st.sampled_from(choices))

    def flag(self) -> bool:
        return self._draw(st.booleans())

    def count(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))

    def leaf(self, shape: Shape, dtype: str, low: int = -3, *, constant: bool | None = None) -> Value:
        data = self._random.integers(0 if dtype == "bool" else low, 2 if dtype == "bool" else 4, shape)
        constant = self.flag() if constant is None else constant
        store = self.constants if constant else self.inputs
        name = f"leaf{len(self.inputs) + len(self.constants)}"
        store[name] = np.asarray(data).astype(dtype)
        return Value(name, shape, dtype, 1.0 if dtype == "bool" else 3.0)

    def fixed(self, data: Any) -> str:
        name = f"fixed{len(self.constants)}"
        self.constants[name] = np.asarray(data)
        return name

    def some(self, wanted: Callable[[Value], bool] = lambda v: True) -> Value | None:
        """One of the latest values, so that graphs grow deep and join again."""
        found = [v for v in self.values if wanted(v)][-4:][::-1]
        return self.one(*found[:1] * 3, *found) if found else None

    def add(
        self,
        op: str,
        inputs: Sequence[Any],
        shape: Shape,
        like: Value,
        bound: float | None = None,
        *,
        dtype: str | None = None,
        rounds: bool = False,
        **attributes: Any,
    ) -> bool:
        sources = [v for v in inputs if isinstance(v, Value)]
        dtype = dtype or like.dtype
        exact = not rounds and all(v.exact for v in sources)
        bound = max(v.bound for v in sources) if bound is None else bound
        if bound > (_EXACT_BOUND if exact else _ROUNDED_BOUND) or math.prod(shape) > MAX_ELEMENTS:
            return False
        value = Value(f"v{len(self.nodes)}", shape, dtype, bound, exact)
        names = [v.name if isinstance(v, Value) else v for v in inputs]
        self.nodes.append(helper.make_node(op, names, [value.name], **attributes))
        self.values.append(value)
        return True

    def partner(self, x: Value, low: int = -3, exact: bool = False) -> Value:
        """Something of x's dtype that broadcasts with x, either way."""
        if low < 0 and self.flag():
            found = self.some(
                lambda v: v.dtype == x.dtype and fit(v.shape, x.shape) and (v.exact or not exact)
            )
            if found is not None:
                return found
        shape = [self.one(1, d) if d > 1 else self.one(1, 1, *SIZES) for d in x.shape]
        if math.prod(broadcast(tuple(shape), x.shape)) > MAX_ELEMENTS:
            shape = list(x.shape)
        return self.leaf(tuple(shape[self.count(0, len(shape)) :]), x.dtype, low)


def fit(a: Shape, b: Shape) -> bool:
    """Whether the two broadcast, to something that is not too large."""
    pairs = zip(reversed(a), reversed(b), strict=False)
    return all(x == y or 1 in (x, y) for x, y in pairs) and math.prod(broadcast(a, b)) <= MAX_ELEMENTS


def broadcast(a: Shape, b: Shape) -> Shape:
    """The shape that both are broadcast to."""
    return np.broadcast_shapes(a, b)
