"""The schedule of groups with reductions: row by row, everything that a row needs while it is in the cache.

All reductions of the group reduce the same axes of values of one shape, the *domain*. For every kept position
(a row) the stages run one after the other: each reduction over the row, then the output. What several stages
need is computed once and kept in a buffer of a row's size. Where the elements of a row are neighbours in
memory, vectors run along the row; otherwise they run across rows that are neighbours.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import sym, tirx

from collage_tvm.bits import is_nan
from collage_tvm.nest import (
    Axis,
    Box,
    Lanes,
    Nest,
    Template,
    axes_of,
    boxes_of,
    integer,
    loop,
    merge,
    nested,
    new_scope,
    put,
    sequence,
    stride_of,
    template,
    variable,
    vectorized,
)
from collage_tvm.output import Output
from collage_tvm.pointwise import segments, stored_value
from collage_tvm.tensor import Index, Reduction, Scope, Tensor, refine
from collage_tvm.vectors import lines_ahead, vector_body

__all__ = ["WIDE", "fill", "reductions_of", "row_groups", "row_nests"]

Expr = Any
Stmt = Any

_MAX_KEPT_ELEMENTS = 1 << 16
WIDE = 4
"""Vectors in flight, so that a sum need not wait for its previous addition."""
_PAGE = 1024
"""Elements."""
_SHORT_ROW = 8
"""Rows shorter than this are not worth vectors of their own."""


def tensors_below(root: Tensor) -> list[Tensor]:
    """`root` and all it is computed from, each after its inputs."""
    found: list[Tensor] = []
    seen: set[int] = set()

    def visit(x: Tensor) -> None:
        if id(x) not in seen:
            seen.add(id(x))
            for y in x.inputs:
                visit(y)
            found.append(x)

    visit(root)
    return found


def reductions_of(root: Tensor) -> list[Tensor]:
    """All reductions below `root`, each after those it depends on."""
    return [x for x in tensors_below(root) if x.reduction is not None]


def _of(x: Tensor) -> Reduction:
    assert x.reduction is not None
    return x.reduction


def _combine(how: str, a: Expr, b: Expr) -> Expr:
    if how == "sum":
        return a + b
    if how == "prod":
        return a * b
    best = tirx.max(a, b) if how.startswith("max") else tirx.min(a, b)
    if how in ("maximum", "minimum") and (dtype := a.ty.dtype).startswith("float"):
        return tirx.Select(is_nan(a, dtype), a, best)  # a NaN in b is the larger and the smaller already
    return best


def _neutral(how: str, dtype: str) -> Expr:
    if how in ("sum", "prod"):
        return tirx.const(float(how == "prod") if dtype.startswith("float") else int(how == "prod"), dtype)
    if dtype.startswith("float"):
        return tirx.const(-math.inf if how.startswith("max") else math.inf, dtype)
    limits = np.iinfo(dtype)
    return tirx.const(int(limits.min if how.startswith("max") else limits.max), dtype)


def _worth_keeping(reductions: list[Tensor], root: Tensor) -> set[int]:
    """Ids of the values of the domain's shape that several stages need, and that cost more than loading them
    again."""
    domain = _of(reductions[0]).source.shape
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
        visit(_of(x).source, k, 0)
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
class _Direction:
    """Where vectors run, and the widest of them. lane: the row within a vector of rows."""

    along: bool
    width: int
    lane: Any

    def row_buffer(self, name: str, dtype: str, count: int) -> Any:
        return tirx.decl_buffer((count if self.along else count * self.width,), dtype, name=name)

    def in_row(self, offset: Expr) -> Expr:
        return offset if self.along else offset * integer(self.width) + self.lane

    @property
    def result_index(self) -> Expr:
        return integer(0) if self.along else self.lane


class _Stages:
    """The bodies of all stages of a box of rows, written over one loop per digit."""

    def __init__(
        self, output: Output, reductions: list[Tensor], full: Index, reduced: list[Axis], analyzer: Any
    ) -> None:
        self._root = output.tensor
        self.full_root = output.tensor.shape == _of(reductions[0]).source.shape
        self.output = output
        self._full = full
        self._reduced = reduced
        self._analyzer = analyzer
        self._count = math.prod(a.extent for a in reduced)
        self._kept_ids = _worth_keeping(reductions, output.tensor)
        self._stored: dict[int, Callable[[Scope, Index], Expr]] = {}
        self.reductions = reductions
        self.buffers: list[Any] = []

    def probe(self) -> Template:
        """The first stage's loads, from which the direction of vectors is chosen."""
        scope = new_scope(self._analyzer, [self._root])
        scope.value(_of(self.reductions[0]).source, self._full)
        return template(scope, [], [])

    def write(self, direction: _Direction, position: Index) -> tuple[list[Template], list[Any]]:
        """A template for each reduction, whose last store is the element, and the output's; and where the
        reductions' results are."""
        templates: list[Template] = []
        results: list[Any] = []
        for k, x in enumerate(self.reductions):
            scope, stores, accesses = self._scope(direction)
            value = scope.value(_of(x).source, self._full)
            templates.append(template(scope, [*stores, (None, integer(0), value)], accesses))
            result = tirx.decl_buffer((direction.width,), x.dtype, name=f"result{k}")
            results.append(result)
            load = tirx.BufferLoad(result, [direction.result_index])
            self._stored[id(x)] = lambda s, i, load=load: load  # type: ignore[misc]  # the default binds the loop's value
        scope, stores, accesses = self._scope(direction)
        value = stored_value(scope.value(self._root, position), self._root.dtype)
        offset = tirx.convert(self.output.offset(position))
        stores.append((self.output.buffer, offset, value))
        templates.append(template(scope, stores, [*accesses, offset]))
        return templates, results

    def _scope(self, direction: _Direction) -> tuple[Scope, list[tuple[Any, Expr, Expr]], list[Expr]]:
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


def _elements(box: Box) -> int:
    """The largest part of an image comes first, as it goes through memory in order; its borders, which do
    not, are then in the cache."""
    return math.prod(high - low for low, high in box)


def row_nests(output: Output, lanes: int) -> list[Nest]:
    """`lanes`: of a vector. The group must satisfy what `collage_tvm.groups` asks of one with reductions."""
    reductions = reductions_of(output.tensor)
    first, root = _of(reductions[0]), output.tensor
    domain, axes = first.source, first.axes
    kept = [d for d in range(len(domain.shape)) if d not in axes]
    full_root = root.shape == domain.shape
    same_rank = len(root.shape) == len(domain.shape)
    place = {d: d if same_rank else k for k, d in enumerate(kept)}
    order = sorted(kept, key=lambda d: output.layout.index(place[d]))
    inner = sorted(axes, key=output.layout.index) if full_root else list(axes)
    factors, cuts = list(domain.factors), [frozenset[int]() for _ in domain.shape]
    for d in kept:
        factors[d] = refine(factors[d], root.factors[place[d]])
        cuts[d] = domain.cuts[d] | root.cuts[place[d]]
    nests: list[Nest] = []
    for box in sorted(boxes_of(domain.shape, cuts), key=_elements, reverse=True):
        analyzer = sym.Analyzer()
        rows, index = axes_of(analyzer, box, factors, domain.shape, order)
        reduced, below = axes_of(analyzer, box, factors, domain.shape, inner)
        full = tuple({**index, **below}[d] for d in range(len(domain.shape)))
        back = {place[d]: d for d in kept}
        position = (
            full if full_root else tuple(full[back[k]] if k in back else 0 for k in range(len(root.shape)))
        )
        stages = _Stages(output, reductions, full, reduced, analyzer)
        nests += _emit(stages, rows, reduced, position, lanes)
    return nests


def _emit(stages: _Stages, rows: list[Axis], reduced: list[Axis], position: Index, lanes: int) -> list[Nest]:
    direction = _Direction(_runs_along(stages.probe(), rows, reduced), 1, variable("row"))
    if not direction.along:
        direction.width = lanes * WIDE if rows else 1
    templates, results = stages.write(direction, position)
    (rows, reduced), replace = merge(templates, [rows, reduced])
    if direction.along:
        return [_along(stages, templates, results, rows, reduced, replace, lanes)]
    return _across(stages, templates, results, rows, reduced, replace, direction, lanes)


def _runs_along(first: Template, rows: list[Axis], reduced: list[Axis]) -> bool:
    """Whether a row's elements are neighbours, and the row is long enough for vectors of its own."""
    if not reduced:
        return False
    (_, merged), _ = merge([first], [rows, reduced])
    if not rows:
        return True
    inner = reduced[-1]
    neighbours = any(stride_of(a, inner.var) == 1 for a in first.accesses)
    return neighbours and merged[-1].extent >= _SHORT_ROW


def _combined(stage: Template, how: str, accumulator: Any, lanes: Lanes) -> Template:
    """One element of a reduction, combined into accumulator[lane]."""
    *stores, (_, _, value) = stage.stores
    combined = _combine(how, tirx.BufferLoad(accumulator, [lanes.lane]), value)
    return dataclasses.replace(stage, stores=[*stores, (accumulator, lanes.lane, combined)])


def fill(buffer: Any, lanes: int, value: Expr) -> Stmt:
    """`value` in the first elements of a buffer."""
    lane = variable("l")
    return vectorized(lane, lanes, tirx.BufferStore(buffer, value, [lane]))


def _along(
    stages: _Stages,
    templates: list[Template],
    results: list[Any],
    rows: list[Axis],
    reduced: list[Axis],
    replace: dict[Any, Expr],
    lanes: int,
) -> Nest:
    body: list[Stmt] = []
    buffers = [*results, *stages.buffers]
    *outer, inner = reduced or [Axis(variable("one"), 1)]
    for x, stage, result in zip(stages.reductions, templates, results, strict=False):
        how = _of(x).combine
        neutral = _neutral(how, x.dtype)
        parts = list(_row_parts(inner.extent, lanes))
        accumulators: list[tuple[Any, int]] = []
        steps: list[Stmt] = []
        for start, blocks, width, unroll in parts:
            block, lane = variable("b"), variable("l")
            several: list[Stmt] = []
            for u in range(unroll):
                accumulator = tirx.decl_buffer((width,), x.dtype, name=f"sum{len(accumulators)}")
                accumulators.append((accumulator, width))
                at = block * (width * unroll) + lane + (start + u * width)
                own = Lanes(lane, width)
                element, moved = _combined(stage, how, accumulator, own), put(replace, inner.var, at)
                if stage is templates[0]:  # later stages find what they read in the cache
                    several += lines_ahead(stage, moved, {lane: integer(0)})
                several.append(vector_body(element, moved, own, lanes))
                buffers += own.buffers
            steps.append(loop(block, blocks, sequence(several)))
        body += [fill(a, w, neutral) for a, w in accumulators]
        body.append(nested(outer, sequence(steps)))
        buffers += [a for a, _ in accumulators]
        body += _horizontal(how, accumulators, result)
    if not stages.full_root:
        own = Lanes(integer(0), 1)
        body.append(templates[-1].instantiate(replace, own))
        return Nest(rows, sequence(body), buffers + own.buffers)
    for start, blocks, width in segments(inner.extent, lanes):
        block, lane = variable("b"), variable("l")
        at = block * width + lane + start
        own = Lanes(lane, width)
        final = vector_body(templates[-1], put(replace, inner.var, at), own, lanes, output=stages.output)
        buffers += own.buffers
        body.append(nested(outer, loop(block, blocks, final)))
    return Nest(rows, sequence(body), buffers)


def _row_parts(extent: int, lanes: int) -> Iterator[tuple[int, int, int, int]]:
    """(start, blocks, lanes, vectors per block) that cover 0..extent."""
    done = 0
    for width, unroll in ((lanes, WIDE), (lanes, 1)):
        blocks = (extent - done) // (width * unroll)
        if blocks:
            yield done, blocks, width, unroll
            done += blocks * width * unroll
    if done < extent:
        yield done, 1, extent - done, 1


def _horizontal(how: str, accumulators: list[tuple[Any, int]], result: Any) -> list[Stmt]:
    """All lanes of all accumulators combined into result[0]: equal widths as vectors first, then each half
    with the other. Step by step through memory, which LLVM takes away: a combination may read an operand
    several times, and written as one expression they would grow exponentially."""
    body: list[Stmt] = []
    widths: dict[int, list[Any]] = {}
    for a, w in accumulators:
        widths.setdefault(w, []).append(a)
    for width, (first, *others) in widths.items():
        for other in others:
            body.append(_onto(how, first, other, width))
        while width > 1:
            half = (width + 1) // 2
            body.append(_onto(how, first, first, width - half, half))
            width = half
    first, *others = [same[0] for same in widths.values()]
    body += [_onto(how, first, other, 1) for other in others]
    zero = integer(0)
    return [*body, tirx.BufferStore(result, tirx.BufferLoad(first, [zero]), [zero])]


def _onto(how: str, buffer: Any, other: Any, lanes: int, start: int = 0) -> Stmt:
    """buffer[k] combined with other[start + k]."""
    lane = variable("l")
    value = _combine(how, tirx.BufferLoad(buffer, [lane]), tirx.BufferLoad(other, [lane + start]))
    return vectorized(lane, lanes, tirx.BufferStore(buffer, value, [lane]))


def _across(
    stages: _Stages,
    templates: list[Template],
    results: list[Any],
    rows: list[Axis],
    reduced: list[Axis],
    replace: dict[Any, Expr],
    direction: _Direction,
    lanes: int,
) -> list[Nest]:
    if rows and _apart(templates, rows[-1], replace):
        rows = [*rows, Axis(variable("one"), 1)]
    *outer, inner = rows or [Axis(variable("one"), 1)]
    nests: list[Nest] = []
    for start, blocks, width in _overlapping(row_groups(inner.extent, (lanes * WIDE, lanes)), lanes):
        block = variable("b")
        at = block * width + direction.lane + start
        moved = put(replace, inner.var, at)
        own = Lanes(direction.lane, width)
        first = {**{a.var: integer(0) for a in reduced}, direction.lane: integer(0)}
        body = [line for stage in templates[:1] for line in lines_ahead(stage, moved, first)]
        for x, stage, result in zip(stages.reductions, templates, results, strict=False):
            how = _of(x).combine
            step = vector_body(_combined(stage, how, result, own), moved, own, lanes)
            body += [fill(result, width, _neutral(how, x.dtype)), nested(reduced, step)]
        final = vector_body(templates[-1], moved, own, lanes, output=stages.output)
        body.append(nested(reduced, final) if stages.full_root else final)
        nests.append(
            Nest([*outer, Axis(block, blocks)], sequence(body), [*results, *stages.buffers, *own.buffers])
        )
    return nests


def row_groups(extent: int, widths: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(start, blocks, rows per block) that cover 0..extent: as many as go of each width in turn, then what is
    left."""
    done = 0
    for width in widths:
        blocks = (extent - done) // width
        if blocks:
            yield done, blocks, width
            done += blocks * width
    if done < extent:
        yield done, 1, extent - done


def _apart(templates: list[Template], rows: Axis, replace: dict[Any, Expr]) -> bool:
    """Whether any two rows lie pages apart everywhere, as the corners of images: each lane would be loaded
    and stored by itself, and better when its image is at hand."""
    sources = {e: v for v, e in replace.items() if isinstance(e, type(rows.var))}
    var = sources.get(rows.var, rows.var)
    strides = [stride_of(a, var) for t in templates for a in t.accesses]
    return None not in strides and all(s == 0 or abs(s) > _PAGE for s in strides if s is not None)


def _overlapping(groups: Iterable[tuple[int, int, int]], lanes: int) -> Iterator[tuple[int, int, int]]:
    """The same, but what is left behind other groups is a whole vector, which begins among them: computing
    some rows twice costs less than a vector of odd length."""
    for start, blocks, width in groups:
        if start and width < lanes:
            yield start + width - lanes, 1, lanes
        else:
            yield start, blocks, width
