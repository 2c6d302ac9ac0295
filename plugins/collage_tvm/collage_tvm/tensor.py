"""Tensors as index expressions: what a group is lowered to before a loop nest is made of it.

A `Tensor` knows how to write the expression of one of its elements from the elements of its inputs. Nothing
is stored between two operators, so a chain of them is fused by construction; what is worth storing is decided
by the schedule, through `Scope.stored`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import tvm_ffi
from tvm import ir, sym, tirx

from collage_tvm.contraction import Contraction

__all__ = [
    "ARITHMETIC",
    "TRANSCENDENTAL",
    "Expr",
    "Index",
    "Memory",
    "Read",
    "Reduction",
    "Scan",
    "Scope",
    "Tensor",
    "as_int",
    "buffer_dtype",
    "constant",
    "linear",
    "make",
    "refine",
]

Expr = Any
Index = tuple[Any, ...]
"""One index per logical dimension: Python ints or TVM expressions (int32)."""

ARITHMETIC, TRANSCENDENTAL = 1, 12
"""Rough cost of an element: what decides whether a value used twice is kept, and whether a thread is worth
its start."""


@dataclass(frozen=True)
class Reduction:
    """sum, prod, max or min of `source` over `axes` (ascending); maximum and minimum find NaNs as well."""

    source: Tensor
    axes: tuple[int, ...]
    combine: str
    keepdims: bool


@dataclass(frozen=True)
class Scan:
    """Sums of `source` along `axis` up to every element (down to it: reverse), with it or without
    (exclusive)."""

    source: Tensor
    axis: int
    exclusive: bool
    reverse: bool


@dataclass(frozen=True)
class Memory:
    """Where an argument of the kernel lies: a flat buffer, and the elements between neighbours along each
    dimension, 0 along those of size 1."""

    buffer: Any
    strides: tuple[int, ...]


@dataclass(eq=False)
class Tensor:
    """A value of the group, or a step inside an operator.

    factors: per dimension, sizes (outermost first) whose product is the dimension: a reshape's digits, so
        that loops over them leave no division in the index.
    cuts: per dimension, positions at which the expression changes (a concat's borders, a padding's edge): the
        schedule makes a loop nest for each part, in which the conditions are decided.
    weight: cost of the expression without its inputs'.
    reduction, scan, contraction: what the schedule computes; its elements are stored before they are read.
    memory: of an argument.
    """

    shape: tuple[int, ...]
    dtype: str
    inputs: tuple[Tensor, ...]
    element: Callable[[Scope, Index], Expr]
    weight: int = 0
    factors: tuple[tuple[int, ...], ...] = ()
    cuts: tuple[frozenset[int], ...] = ()
    reduction: Reduction | None = None
    scan: Scan | None = None
    contraction: Contraction | None = None
    memory: Memory | None = None

    def __post_init__(self) -> None:
        self.factors = self.factors or tuple((d,) for d in self.shape)
        self.cuts = self.cuts or tuple(frozenset() for _ in self.shape)


def as_int(index: Expr) -> int | None:
    """The value of an index that is a constant."""
    if isinstance(index, int):
        return index
    return int(index.value) if isinstance(index, tirx.IntImm) else None


def buffer_dtype(dtype: str) -> str:
    """How a dtype is stored: numpy keeps a bool in a byte; bfloat16 is handled by its bits."""
    return {"bool": "uint8", "bfloat16": "uint16"}.get(dtype, dtype)


def constant(value: Any, dtype: str) -> Expr:
    if dtype.startswith("float"):
        return tirx.const(float(value), dtype)
    return tirx.const(bool(value) if dtype == "bool" else int(value), dtype)


def make(
    shape: Sequence[int],
    dtype: str,
    inputs: Sequence[Tensor],
    element: Callable[[Scope, Index], Expr],
    **rest: Any,
) -> Tensor:
    return Tensor(tuple(shape), dtype, tuple(inputs), element, **rest)


@dataclass(frozen=True)
class Read:
    """`var` holds element `offset` of a flat buffer."""

    var: Any
    buffer: Any
    offset: Expr


@dataclass
class Scope:
    """Where expressions are written: one body of a loop nest.

    bindings: variables of the body and what they hold, in order. accesses: offsets of all loads. escaped:
    index expressions used other than to load. guards: the conditions around what is written now, outermost
    first; guarded: whether there was any. reads: the loads outside conditions, each in a variable, so that
    the schedule may load it in a way of its own. stored: values that the schedule has at hand already, by id
    of the tensor.
    """

    analyzer: sym.Analyzer
    uses: dict[int, int]
    stored: dict[int, Callable[[Index], Expr]] = field(default_factory=dict)
    bindings: list[tuple[Any, Expr]] = field(default_factory=list)
    accesses: list[Expr] = field(default_factory=list)
    escaped: list[Expr] = field(default_factory=list)
    guards: list[Expr] = field(default_factory=list)
    guarded: bool = False
    reads: list[Read] = field(default_factory=list)
    _memos: list[dict[tuple[object, ...], tuple[Expr, Index]]] = field(default_factory=lambda: [{}])
    """What has been written, outside conditions and under each of `guards`."""

    def value(self, tensor: Tensor, index: Index) -> Expr:
        """The expression of one element; a value that several others read is computed once."""
        if (stored := self.stored.get(id(tensor))) is not None:
            return stored(index)
        key = (id(tensor), *(i if isinstance(i, int) else ("v", id(i)) for i in index))
        for memo in self._memos:
            if (found := memo.get(key)) is not None:
                return found[0]
        result = tensor.element(self, index)
        # the time of TVM's analyses would grow exponentially with the depth of conditions on conditions
        if tensor.weight and (tensor.dtype == "bool" or self.uses.get(id(tensor), 0) > 1):
            result = self.let(result)
        self._memos[-1][key] = (result, index)
        return result

    def let(self, value: Expr) -> Expr:
        """`value` in a variable of its own. Where the conditions around it do not hold, the variable is some
        number."""
        simple = isinstance(value, tirx.FloatImm | tirx.IntImm)
        if isinstance(value, tirx.Var):
            simple = not any(read.var.same_as(value) for read in self.reads)
        if simple:
            return value
        var = tirx.Var(f"v{len(self.bindings)}", value.ty)
        if self.guards and _may_trap(value):
            for condition in reversed(self.guards):
                value = tirx.if_then_else(condition, value, constant(0, value.ty.dtype))
        self.bindings.append((var, value))
        return var

    def load(self, buffer: Any, offset: Expr, dtype: str) -> Expr:
        """Element `offset` of a flat buffer."""
        simple = (
            self.analyzer.simplify(tirx.convert(offset))
            if not isinstance(offset, int)
            else tirx.const(offset, "int32")
        )
        self.accesses.append(simple)
        value = tirx.BufferLoad(buffer, [simple])
        if not self.guards:
            self.reads.append(Read(tirx.Var(f"read{len(self.reads)}", value.ty), buffer, simple))
            self.bindings.append((self.reads[-1].var, value))
            value = self.reads[-1].var
        return tirx.NE(value, tirx.const(0, "uint8")) if dtype == "bool" else value

    def when(self, condition: Expr, then: Callable[[], Expr], otherwise: Callable[[], Expr]) -> Expr:
        """One of the two, of which only the chosen one is evaluated."""
        if isinstance(condition, bool):
            return then() if condition else otherwise()
        simple = self.analyzer.simplify(condition)
        if (known := as_int(simple)) is not None:
            return then() if known else otherwise()
        self.escaped.append(simple)
        self.guarded = True
        return tirx.if_then_else(simple, self._under(simple, then), self._under(tirx.Not(simple), otherwise))

    def _under(self, condition: Expr, write: Callable[[], Expr]) -> Expr:
        self.guards.append(condition)
        self._memos.append({})
        try:
            return write()
        finally:
            self.guards.pop()
            self._memos.pop()


def _may_trap(value: Expr) -> bool:
    """Whether evaluating it without need could read out of bounds or divide an integer by zero."""

    def judge(part: Expr) -> Any:
        harmless = isinstance(part, tirx.Div | tirx.Mod) and part.ty.dtype.startswith("float")
        return None if harmless else tvm_ffi.VisitInterrupt(part)

    suspects = (tirx.Div, tirx.Mod, ir.expr.TensorLoad)
    return tvm_ffi.structural_walk(value, (suspects, judge), order="pre") is not None


def linear(index: Index, strides: Sequence[int]) -> Expr:
    """sum(index * strides)."""
    total: Expr = 0
    for i, s in zip(index, strides, strict=True):
        if s and not (isinstance(i, int) and i == 0):
            total = i * s + total
    return total


def refine(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The coarsest digits of a dimension that divide both `a`'s and `b`'s, or `a` if their borders do not
    nest."""
    borders = sorted({*_borders(a), *_borders(b)})
    if any(large % small for small, large in pairwise(borders)):
        return a
    return tuple(reversed([large // small for small, large in pairwise(borders)])) or a


def _borders(factors: tuple[int, ...]) -> list[int]:
    result = [1]
    for f in reversed(factors):
        result.append(result[-1] * f)
    return result
