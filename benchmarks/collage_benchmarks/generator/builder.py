"""A model in the making: the values so far, and operands of the kind that the next operator wants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import onnx
import onnx.defs
from hypothesis import assume
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from collage_benchmarks.generator.domains import ANY, Domain
from collage_benchmarks.generator.samples import answers, inferred_types, ir_version_for
from collage_benchmarks.generator.values import (
    DTYPES,
    FLOATS,
    INTEGERS,
    USABLE,
    Case,
    Value,
    agree,
    cancelled,
    legal_dtypes,
    usable,
    value_info,
)
from collage_core.formats import Array

__all__ = ["FLOATS", "INTEGERS", "Builder", "Case", "Value"]

T = TypeVar("T")

_SIZES = (1, 2, 3, 4, 5, 7, 16, 17)
_MOST_ELEMENTS = 2048
_EXACT = {
    *("Abs", "Identity", "Max", "Min", "Neg", "Relu", "Dropout", "Where", "ConstantOfShape", "EyeLike"),
    *("Concat", "Split", "Slice", "Pad", "Tile", "Expand", "Reshape", "Flatten", "Squeeze", "Unsqueeze"),
    *("Transpose", "DepthToSpace", "SpaceToDepth", "ReverseSequence", "Trilu", "CenterCropPad"),
    *("Gather", "GatherElements", "GatherND", "MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin"),
}
"""Operators that hand their inputs' numbers on, whoever computes them."""


@dataclass(slots=True)
class Builder:
    """Nodes, inputs and constants so far, and what hypothesis draws for the next.

    reuse: how often in eight an operand is a value that exists already, if one fits. plain: parameters such
    as axes and shapes are initialisers; otherwise some are Constant nodes, or computed from others' shapes.
    names: how values and nodes are called. second_opinion: whether ONNX Runtime runs every node so far.
    settled: whether no answer is what rounding errors have left of numbers that cancel each other.
    """

    draw: Callable[[st.SearchStrategy[Any]], Any]
    opset: int
    reuse: int = 0
    plain: bool = True
    names: str = "{kind}{number}"
    dtypes: frozenset[str] = frozenset(DTYPES)
    rng: np.random.Generator = field(init=False)
    values: list[Value] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: dict[str, Array] = field(default_factory=dict)
    initializers: dict[str, Array] = field(default_factory=dict)
    shapeless: set[str] = field(default_factory=set)
    second_opinion: bool = True
    settled: bool = True
    _count: int = 0

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.draw(st.integers(0, 2**32 - 1)))

    # What is drawn

    def flag(self) -> bool:
        return self.integer(0, 1) == 1

    def integer(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def choice(self, among: Sequence[T]) -> T:
        return among[self.integer(0, len(among) - 1)]

    def one_in(self, count: int) -> bool:
        return self.integer(0, count - 1) == count - 1

    def permuted(self, items: Sequence[T]) -> list[T]:
        """The items in some order."""
        return list(self.draw(st.permutations(list(items)))) if len(items) > 1 else list(items)

    def shape(self, low: int = 0, high: int = 5, most: int = _MOST_ELEMENTS) -> tuple[int, ...]:
        """A shape of `low` to `high` dimensions and at most `most` elements."""
        sizes: list[int] = []
        for _ in range(self.integer(low, high)):
            room = most // int(np.prod(sizes, dtype=np.int64))
            sizes.append(self.choice([s for s in _SIZES if s <= room]))
        return tuple(self.permuted(sizes))

    def sizes(self, *ranges: tuple[int, int]) -> tuple[int, ...]:
        """A shape with each size in a range of its own."""
        return tuple(self.integer(*r) for r in ranges)

    def broadcastable(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape that broadcasts to `shape`: often the same, else without leading sizes or with ones."""
        if self.flag():
            return tuple(shape)
        kept = tuple(shape)[self.integer(0, len(shape)) :]
        return tuple(1 if self.one_in(3) else s for s in kept)

    def axis(self, rank: int) -> int:
        """An axis, counted from either end."""
        return self.integer(-rank, rank - 1)

    def axes(self, rank: int, least: int = 1) -> list[int]:
        """Different axes in any order, each counted from either end."""
        found = self.draw(st.lists(st.integers(0, rank - 1), min_size=least, max_size=rank, unique=True))
        return [a - rank if self.one_in(3) else a for a in found]

    def dtype(self, op: str, parameter: str | None = None, among: Sequence[str] | None = None) -> str:
        """A dtype that the operator takes for a type parameter (its first input's by default)."""
        legal = [d for d in legal_dtypes(op, self.opset, parameter) if d in self.dtypes]
        legal = [d for d in legal if among is None or d in among]
        assume(legal)
        common = [d for d in ("float32", "int64") if d in legal]
        return self.choice(common) if common and self.flag() else self.choice(legal)

    # Operands

    def some(
        self,
        dtypes: str | Sequence[str],
        low: int = 0,
        high: int = 5,
        domain: Domain = ANY,
        *,
        exact: bool = False,
        most: int = _MOST_ELEMENTS,
        fits: Callable[[Value], bool] = lambda v: True,
    ) -> Value:
        """A value of one of the dtypes and of `low` to `high` dimensions: one that exists, or a new input.

        exact: none that two libraries compute slightly differently.
        """
        dtypes = (dtypes,) if isinstance(dtypes, str) else dtypes
        found = self._existing(
            lambda v: v.dtype in dtypes and low <= v.rank <= high and fits(v), domain, exact, most
        )
        if found is not None:
            return found
        dtype = self.choice(dtypes)
        if domain.distinct and np.dtype(dtype).itemsize == 1:
            most = min(most, 120)
        shape = self.shape(low, high, most)
        return self.fresh(dtype, shape, domain)

    def operand(
        self, dtype: str, shape: Sequence[int], domain: Domain = ANY, *, exact: bool = False
    ) -> Value:
        """A value of this very dtype and shape: one that exists, a new input, or a constant."""
        shape = tuple(shape)
        found = self._existing(lambda v: v.dtype == dtype and v.shape == shape, domain, exact, None)
        return found or self.fresh(dtype, shape, domain)

    def fresh(self, dtype: str, shape: Sequence[int], domain: Domain = ANY) -> Value:
        """A new input, or one time in three a constant, but no model is without inputs."""
        array = domain.sample(self.rng, dtype, tuple(shape))
        return self.constant(array) if self.inputs and self.one_in(3) else self.input(array)

    def _existing(
        self, fits: Callable[[Value], bool], domain: Domain, exact: bool, most: int | None
    ) -> Value | None:
        if not self.reuse or self.integer(0, 7) >= self.reuse:
            return None
        found = []
        for v in self.values:
            small = most is None or int(np.prod(v.shape, dtype=np.int64)) <= most
            if v.sample is None or not small or not fits(v) or (exact and not v.exact):
                continue
            if domain.holds(v.sample):
                found.append(v)
        if not found:
            return None
        # The latest are the likeliest, so that chains grow.
        return found[-1 - min(self.integer(0, len(found) - 1), self.integer(0, len(found) - 1))]

    def input(self, array: Array) -> Value:
        name = self._name("x")
        self.inputs[name] = array
        return self._add(Value(name, array.dtype.name, array.shape, array))

    def constant(self, array: Array) -> Value:
        """An initialiser, or a Constant node where the model is not `plain`."""
        name = self._name("c")
        array = np.ascontiguousarray(array).reshape(array.shape)
        if self.plain or self.flag():
            self.initializers[name] = array
        else:
            self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array)))
        return self._add(Value(name, array.dtype.name, array.shape, array, constant=True))

    def parameter(self, numbers: Sequence[int] | int, dtype: str = "int64") -> Value:
        """Axes, a shape or the like. In a model that is not `plain` it may be computed from shapes."""
        array = np.asarray(numbers, dtype)
        listed = dtype == "int64" and array.ndim == 1 and array.size > 0
        if self.plain or not listed or np.abs(array).max() > USABLE or not self.one_in(3):
            return self.constant(array)
        return self._computed(array)

    def _computed(self, array: Array) -> Value:
        """The same numbers by Range where they are one, otherwise by Shape, Gather and Concat."""
        if array.size > 1 and len(set(np.diff(array).tolist())) == 1 and array[1] != array[0]:
            step = int(array[1] - array[0])
            ends = (int(array[0]), int(array[-1]) + step, step)
            return self.node("Range", [self.constant(np.asarray(e, "int64")) for e in ends])[0]
        parts: list[Value | None] = []
        for number in array.tolist():
            sources = [v for v in self.values if number in v.shape]
            if not sources:
                parts.append(self.constant(np.asarray([number], "int64")))
                continue
            source = sources[-1]
            shape = self.node("Shape", [source])[0]
            place = self.constant(np.asarray([source.shape.index(number)], "int64"))
            parts.append(self.node("Gather", [shape, place], axis=0)[0])
        return self.node("Concat", parts, axis=0)[0]

    # Nodes

    def compound(
        self,
        op: str,
        operands: Sequence[Value | None],
        read: Sequence[Value],
        *,
        outputs: int = 1,
        **attributes: Any,
    ) -> list[Value]:
        """A node that holds graphs, which read values from outside."""
        return self._append(op, operands, [True] * outputs, read, attributes)

    def node(
        self, op: str, operands: Sequence[Value | None], outputs: int | Sequence[bool] = 1, **attributes: Any
    ) -> list[Value]:
        """Append a node; returns its named outputs. outputs: how many, or for each whether it is named.

        Attributes that are None are left out, as are absent operands at the end.
        """
        wanted = [True] * outputs if isinstance(outputs, int) else list(outputs)
        return self._append(op, operands, wanted, (), attributes)

    def _append(
        self,
        op: str,
        operands: Sequence[Value | None],
        wanted: Sequence[bool],
        read: Sequence[Value],
        attributes: Mapping[str, Any],
    ) -> list[Value]:
        given = list(operands)
        while given and given[-1] is None:
            given.pop()
        names = [self._name("v") if w else "" for w in wanted]
        proto = helper.make_node(
            op,
            [v.name if v else "" for v in given],
            names,
            name=self._name(op),
            **{k: a for k, a in attributes.items() if a is not None},
        )
        self.nodes.append(proto)
        needed = [v for v in (*given, *read) if v]
        samples = {v.name: v.sample for v in needed if v.sample is not None}
        complete = len(samples) == len({v.name for v in needed})
        found, by_runtime = answers(proto, self.opset, samples) if complete else (None, False)
        self.second_opinion = self.second_opinion and by_runtime
        self.settled = self.settled and (found is None or not cancelled(samples, found))
        named = [n for n in names if n]
        types = inferred_types(proto, self.opset, samples)
        if found is None or not all(agree(found[n], t) for n, t in zip(named, types, strict=True)):
            return self._unknown(named, types)
        exact = all(v.exact for v in needed)
        constant = bool(needed) and all(v.constant for v in needed)
        results = []
        for name in named:
            array = found[name]
            same = exact and (op in _EXACT or array.dtype.kind not in "f")
            known = array if usable(array) else None
            value = Value(name, array.dtype.name, array.shape, known, constant, same)
            results.append(self._add(value))
        return results

    def _unknown(self, names: list[str], types: list[tuple[str, tuple[int, ...] | None]]) -> list[Value]:
        for name, (dtype, shape) in zip(names, types, strict=True):
            self._add(Value(name, dtype, shape or (), None, exact=False))
            if shape is None:
                self.shapeless.add(name)
        return self.values[len(self.values) - len(names) :]

    def snapshot(self) -> Callable[[], None]:
        """A function that takes back what is added from now on."""
        counts = [len(c) for c in (self.values, self.nodes, self.inputs, self.initializers)]
        before = self.second_opinion, self.settled

        def undo() -> None:
            del self.values[counts[0] :], self.nodes[counts[1] :]
            self.inputs = dict(list(self.inputs.items())[: counts[2]])
            self.initializers = dict(list(self.initializers.items())[: counts[3]])
            self.second_opinion, self.settled = before

        return undo

    def case(self, outputs: Sequence[str], value_infos: bool = False) -> Case:
        """The model that returns the values named, checked in full, with its inputs."""
        types = {v.name: v for v in self.values}
        graph = helper.make_graph(
            self.nodes,
            "generated",
            [value_info(types[n]) for n in self.inputs],
            [value_info(types[n], n in self.shapeless) for n in outputs],
            [numpy_helper.from_array(a, n) for n, a in self.initializers.items()],
        )
        if value_infos:
            graph.value_info.extend(
                value_info(v)
                for v in self.values
                if v.sample is not None and v.name not in {*outputs, *self.inputs, *self.initializers}
            )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", self.opset)],
            ir_version=ir_version_for(self.opset),
            producer_name="collage-benchmarks",
        )
        onnx.checker.check_model(model, full_check=True)
        return Case(model, dict(self.inputs))

    def _add(self, value: Value) -> Value:
        self.values.append(value)
        return value

    def _name(self, prefix: str) -> str:
        self._count += 1
        return self.names.format(kind=prefix, number=self._count)
