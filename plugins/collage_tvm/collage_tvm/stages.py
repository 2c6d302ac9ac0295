"""What a row of a group with reductions goes through: each reduction, then the output."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from collage_tvm.nest import Axis, Template, integer, new_scope, template
from collage_tvm.output import Output
from collage_tvm.pointwise import stored_value
from collage_tvm.reductions import reduction, tensors_below
from collage_tvm.tensor import Index, Scope, Tensor

__all__ = ["Direction", "Stages"]

Expr = Any

_MAX_KEPT_ELEMENTS = 1 << 16


def _worth_keeping(reductions: list[Tensor], root: Tensor) -> set[int]:
    """Ids of the values of the domain's shape that several stages need, and that cost more than loading them
    again."""
    domain = reduction(reductions[0]).source.shape
    stages: dict[int, set[int]] = {}
    readers: dict[int, set[int]] = {}

    def visit(x: Tensor, stage: int, reader: int) -> None:
        if x.reduction is None:
            readers.setdefault(id(x), set()).add(reader)
            if stage not in stages.setdefault(id(x), set()):
                stages[id(x)].add(stage)
                for y in x.inputs:
                    visit(y, stage, id(x))

    for k, x in enumerate(reductions):
        visit(reduction(x).source, k, 0)
    visit(root, len(reductions), 0)
    cost: dict[int, int] = {}
    for x in tensors_below(root):
        cost[id(x)] = 0 if x.reduction else x.weight + sum(cost[id(y)] for y in x.inputs)
    return {
        id(x)
        for x in tensors_below(root)
        if x.reduction is None
        and x.shape == domain
        and cost[id(x)] > 1
        and len(stages[id(x)]) > 1
        and any(r == 0 or stages[r] != stages[id(x)] for r in readers[id(x)])
    }


@dataclass
class Direction:
    """Where vectors run, and the widest of them. lane: the row within a vector of rows."""

    along: bool
    width: int
    lane: Any

    def result_buffer(self, name: str, dtype: str) -> Any:
        return tirx.decl_buffer((self.width,), dtype, name=name)

    def row_buffer(self, name: str, dtype: str, count: int) -> Any:
        return tirx.decl_buffer((count if self.along else count * self.width,), dtype, name=name)

    def in_row(self, offset: Expr) -> Expr:
        return offset if self.along else offset * integer(self.width) + self.lane

    @property
    def result_index(self) -> Expr:
        return integer(0) if self.along else self.lane


class Stages:
    """The bodies of all stages of a box of rows, written over one loop per digit."""

    def __init__(
        self,
        output: Output,
        reductions: list[Tensor],
        full: Index,
        reduced: list[Axis],
        analyzer: Any,
        *,
        keep: bool = True,
    ) -> None:
        """keep: whether what several stages need is kept."""
        self._root = output.tensor
        self.full_root = output.tensor.shape == reduction(reductions[0]).source.shape
        self.output = output
        self._full = full
        self._reduced = reduced
        self._analyzer = analyzer
        self._count = math.prod(a.extent for a in reduced)
        self._kept_ids = _worth_keeping(reductions, output.tensor) if keep else set()
        self._stored: dict[int, Callable[[Scope, Index], Expr]] = {}
        self.reductions = reductions
        self.buffers: list[Any] = []

    def probe(self) -> Template:
        """The first stage's loads, from which the direction of vectors is chosen."""
        scope = new_scope(self._analyzer, [self._root])
        scope.value(reduction(self.reductions[0]).source, self._full)
        return template(scope, [], [])

    def write(self, direction: Direction, position: Index) -> tuple[list[Template], list[Any]]:
        """A template for each reduction, whose last store is the element, and the output's; and where the
        reductions' results are."""
        templates: list[Template] = []
        results: list[Any] = []
        for k, x in enumerate(self.reductions):
            scope, stores, accesses = self._scope(direction)
            value = scope.value(reduction(x).source, self._full)
            templates.append(template(scope, [*stores, (None, integer(0), value)], accesses))
            result = direction.result_buffer(f"result{k}", x.dtype)
            results.append(result)
            load = tirx.BufferLoad(result, [direction.result_index])
            self._stored[id(x)] = lambda s, i, load=load: load  # type: ignore[misc]  # the default binds the loop's value
        scope, stores, accesses = self._scope(direction)
        value = stored_value(scope.value(self._root, position), self._root.dtype)
        offset = tirx.convert(self.output.offset(position))
        stores.append((self.output.buffer, offset, value))
        templates.append(template(scope, stores, [*accesses, offset]))
        return templates, results

    def _scope(self, direction: Direction) -> tuple[Scope, list[tuple[Any, Expr, Expr]], list[Expr]]:
        scope = new_scope(self._analyzer, [self._root])
        stores: list[tuple[Any, Expr, Expr]] = []
        accesses: list[Expr] = []

        def stored(x: Tensor, index: Index) -> Expr:
            return self._stored[id(x)](scope, index)

        def keep(x: Tensor, index: Index) -> Expr:
            if not self._is_full(index) or scope.guards:
                return x.element(scope, index)
            offset = self._row_offset()
            accesses.append(offset)
            buffer = direction.row_buffer(f"row{len(self.buffers)}", x.dtype, self._count)
            self.buffers.append(buffer)
            value = scope.let(x.element(scope, index))
            stores.append((buffer, direction.in_row(offset), value))

            def again(s: Scope, i: Index) -> Expr:
                if not self._is_full(i):
                    return x.element(s, i)
                s.accesses.append(offset)
                return tirx.BufferLoad(buffer, [direction.in_row(offset)])

            self._stored[id(x)] = again
            scope.stored[id(x)] = lambda i: value if self._is_full(i) else x.element(scope, i)
            return value

        for x in tensors_below(self._root):
            if id(x) in self._stored:
                scope.stored[id(x)] = lambda i, x=x: stored(x, i)  # type: ignore[misc]  # the default binds the loop's value
            elif (
                id(x) in self._kept_ids
                and x.dtype != "bool"
                and self._count * direction.width <= _MAX_KEPT_ELEMENTS
            ):
                scope.stored[id(x)] = lambda i, x=x: keep(x, i)  # type: ignore[misc]  # the default binds the loop's value
        return scope, stores, accesses

    def _is_full(self, index: Index) -> bool:
        return all(
            a is b or (isinstance(a, int) and isinstance(b, int) and a == b)
            for a, b in zip(index, self._full, strict=True)
        )

    def _row_offset(self) -> Expr:
        total: Expr = integer(0)
        stride = 1
        for axis in reversed(self._reduced):
            total = total + axis.var * integer(stride)
            stride *= axis.extent
        return total
