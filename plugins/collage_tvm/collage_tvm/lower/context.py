"""What a lowering is handed, and the table of all lowerings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collage_core.formats import Array
from collage_core.ir import Attribute, Graph, Node
from collage_tvm.tensor import Scope, Tensor, constant, linear, make, refine

__all__ = ["LOWERINGS", "Lowering", "LoweringContext", "broadcast", "lowering", "scalar_value"]


@dataclass
class LoweringContext:
    """One node, its inputs as tensors. `hold` makes a tensor of an array that the kernel will own."""

    graph: Graph
    node: Node
    values: dict[str, Tensor]
    hold: Callable[[Array], Tensor]

    def attribute(self, name: str, default: Attribute = None) -> Attribute:
        value = self.node.attributes.get(name, default)
        if isinstance(value, float):
            return float(np.float32(value))  # as ONNX keeps them, its defaults as well
        return value.decode() if isinstance(value, bytes) else value

    def has(self, index: int) -> bool:
        return index < len(self.node.inputs) and bool(self.node.inputs[index])

    def constant(self, index: int) -> Array | None:
        """Data of an input that is constant."""
        return self.graph.constants.get(self.node.inputs[index]) if self.has(index) else None

    def integers(self, index: int, attribute: str) -> list[int] | None:
        """A list that newer opsets give as a constant input and older ones as an attribute."""
        if (data := self.constant(index)) is not None:
            return [int(v) for v in np.ravel(data)]
        given = self.attribute(attribute)
        return (
            None
            if given is None
            else [int(v) for v in (given if isinstance(given, list | tuple) else [given])]
        )

    def tensor(self, index: int) -> Tensor:
        """An input; its constant, when it has one, becomes an immediate or an argument of the kernel."""
        name = self.node.inputs[index]
        if name not in self.values:
            data = self.graph.constants[name]
            self.values[name] = immediate(data) if data.size == 1 else self.hold(data)
        return self.values[name]

    def tensors(self) -> list[Tensor]:
        return [self.tensor(k) for k in range(len(self.node.inputs)) if self.has(k)]

    def immediate(self, attribute: str, dtype: str) -> Tensor | None:
        value = self.attribute(attribute)
        return None if value is None else immediate(np.asarray(value, dtype))

    def dtype(self, output: int = 0) -> str:
        return self.graph.type_of(self.node.outputs[output]).dtype

    def shape(self, output: int = 0) -> tuple[int, ...]:
        return self.graph.shape_of(self.node.outputs[output])

    def reshaped(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """`x` with other dimensions, the row-major order of its elements unchanged."""
        count = math.prod(x.shape)
        known = math.prod(d for d in shape if d != -1)
        target = tuple(count // known if d == -1 else d for d in shape)
        if target == x.shape:
            return x
        own, theirs = _strides(target), _strides(x.shape)

        def element(s: Scope, i: tuple[Any, ...]) -> Any:
            flat = linear(i, own)
            return s.value(
                x,
                tuple(
                    0 if d == 1 else _digit(s, flat, t, d, count)
                    for d, t in zip(x.shape, theirs, strict=True)
                ),
            )

        factors, cuts = _regroup(x, target)
        return make(target, x.dtype, [x], element, factors=factors, cuts=cuts)


def _digit(s: Scope, flat: Any, stride: int, size: int, count: int) -> Any:
    if isinstance(flat, int):
        return flat // stride % size
    digit = flat // stride if stride > 1 else flat
    return s.analyzer.simplify(digit % size if stride * size < count else digit)


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))


def _regroup(
    x: Tensor, shape: tuple[int, ...]
) -> tuple[tuple[tuple[int, ...], ...], tuple[frozenset[int], ...]]:
    """Digits of the dimensions after a reshape, outermost first; cuts survive where a dimension does."""
    flat = [f for factors in x.factors for f in factors if f != 1]
    result: list[tuple[int, ...]] = []
    for size in reversed(shape):
        digits: list[int] = []
        rest = size
        while rest > 1 and flat and (rest % flat[-1] == 0 or flat[-1] % rest == 0):
            if rest % flat[-1] == 0:
                digits.append(flat.pop())
            else:
                digits.append(rest)
                flat[-1] //= rest
            rest //= digits[-1]
        if rest > 1:
            flat = []
        result.append(tuple(reversed(digits)) if rest == 1 and digits else (size,))
    kept = {(math.prod(x.shape[:k]), d): c for k, (d, c) in enumerate(zip(x.shape, x.cuts, strict=True))}
    cuts = tuple(kept.get((math.prod(shape[:k]), d), frozenset[int]()) for k, d in enumerate(shape))
    return tuple(reversed(result)), cuts


def immediate(data: Array) -> Tensor:
    """A constant of one element, written into the code."""
    dtype, value = str(data.dtype), data.reshape(-1)[0]
    return make(data.shape, dtype, [], lambda s, i: constant(value, dtype))


def scalar_value(data: Array | None) -> float | None:
    return float(data.reshape(-1)[0]) if data is not None and data.size == 1 else None


Broadcast = tuple[tuple[int, ...], tuple[tuple[int, ...], ...], tuple[frozenset[int], ...]]


def broadcast(inputs: Sequence[Tensor]) -> Broadcast:
    """Shape, digits and cuts of a value computed from `inputs`, broadcast against each other."""
    rank = max(len(x.shape) for x in inputs)
    shape = np.broadcast_shapes(*[x.shape for x in inputs])
    factors: list[tuple[int, ...]] = [(d,) for d in shape]
    cuts: list[frozenset[int]] = [frozenset() for _ in shape]
    for x in inputs:
        for k, d in enumerate(x.shape, rank - len(x.shape)):
            own = k - rank + len(x.shape)
            if d == shape[k]:
                factors[k] = refine(factors[k], x.factors[own])
                cuts[k] = cuts[k] | x.cuts[own]
    return tuple(shape), tuple(factors), tuple(cuts)


Lowering = Callable[[LoweringContext], list[Tensor]]
LOWERINGS: dict[str, Lowering] = {}


def lowering(*ops: str) -> Callable[[Lowering], Lowering]:
    """Registers the lowering of ONNX operators."""

    def register(function: Lowering) -> Lowering:
        LOWERINGS.update(dict.fromkeys(ops, function))
        return function

    return register
