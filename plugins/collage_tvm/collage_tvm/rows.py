"""The schedule of groups with reductions: row by row, everything that a row needs while it is in the cache.

All reductions of the group reduce the same axes of values of one shape, the *domain*. For every kept position
(a row) the stages run one after the other: each reduction over the row, then the output. What several stages
need is computed once and kept in a buffer of a row's size. Where the elements of a row are neighbours in
memory, vectors run along the row; otherwise they run across rows that are neighbours.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import sym, tirx

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
    put,
    sequence,
    stride_of,
    variable,
    vectorized,
)
from collage_tvm.output import Output
from collage_tvm.pointwise import segments
from collage_tvm.reductions import combined, neutral, reduction, reductions_of
from collage_tvm.stages import Direction, Stages
from collage_tvm.tensor import Index, refine
from collage_tvm.vectors import lines_ahead, vector_body

__all__ = ["WIDE", "fill", "row_groups", "row_nests", "runs_along"]

Expr = Any
Stmt = Any

WIDE = 4
"""Vectors in flight, so that a sum need not wait for its previous addition."""
_PAGE = 1024
"""Elements."""
_SHORT_ROW = 8
"""Rows shorter than this are not worth vectors of their own."""


def _elements(box: Box) -> int:
    """The largest part of an image comes first, as it goes through memory in order; its borders, which do
    not, are then in the cache."""
    return math.prod(high - low for low, high in box)


def row_nests(output: Output, lanes: int) -> list[Nest]:
    """`lanes`: of a vector. The group must satisfy what `collage_tvm.groups` asks of one with reductions."""
    reductions = reductions_of(output.tensor)
    first, root = reduction(reductions[0]), output.tensor
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
        stages = Stages(output, reductions, full, reduced, analyzer)
        nests += _emit(stages, rows, reduced, position, lanes)
    return nests


@dataclass
class _Written:
    """The stages of a box of rows as written for one direction of vectors, with its loops joined.

    templates: of each reduction, then of the output. results: where the reductions' are. replace: what the
    loops that were joined are in those that are left.
    """

    templates: list[Template]
    results: list[Any]
    rows: list[Axis]
    reduced: list[Axis]
    replace: dict[Any, Expr]


def _emit(stages: Stages, rows: list[Axis], reduced: list[Axis], position: Index, lanes: int) -> list[Nest]:
    direction = Direction(runs_along(stages.probe(), rows, reduced), 1, variable("row"))
    if not direction.along:
        direction.width = lanes * WIDE if rows else 1
    templates, results = stages.write(direction, position)
    (rows, reduced), replace = merge(templates, [rows, reduced])
    written = _Written(templates, results, rows, reduced, replace)
    if direction.along:
        return [_along(stages, written, lanes)]
    return _across(stages, written, direction, lanes)


def runs_along(first: Template, rows: list[Axis], reduced: list[Axis]) -> bool:
    """Whether a row's elements are neighbours, and the row is long enough for vectors of its own."""
    if not reduced:
        return False
    (_, merged), _ = merge([first], [rows, reduced])
    if not rows:
        return True
    inner = reduced[-1]
    neighbours = any(stride_of(a, inner.var) == 1 for a in first.accesses)
    return neighbours and merged[-1].extent >= _SHORT_ROW


def _element(stage: Template, how: str, accumulator: Any, lanes: Lanes) -> Template:
    """One element of a reduction, combined into accumulator[lane]."""
    *stores, (_, _, value) = stage.stores
    total = combined(how, tirx.BufferLoad(accumulator, [lanes.lane]), value)
    return dataclasses.replace(stage, stores=[*stores, (accumulator, lanes.lane, total)])


def fill(buffer: Any, lanes: int, value: Expr) -> Stmt:
    """`value` in the first elements of a buffer."""
    lane = variable("l")
    return vectorized(lane, lanes, tirx.BufferStore(buffer, value, [lane]))


def _along(stages: Stages, written: _Written, lanes: int) -> Nest:
    templates, replace = written.templates, written.replace
    body: list[Stmt] = []
    buffers = [*written.results, *stages.buffers]
    *outer, inner = written.reduced or [Axis(variable("one"), 1)]
    for x, stage, result in zip(stages.reductions, templates, written.results, strict=False):
        how = reduction(x).combine
        first = neutral(how, x.dtype)
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
                element, moved = _element(stage, how, accumulator, own), put(replace, inner.var, at)
                if stage is templates[0]:  # later stages find what they read in the cache
                    several += lines_ahead(stage, moved, {lane: integer(0)})
                several.append(vector_body(element, moved, own, lanes))
                buffers += own.buffers
            steps.append(loop(block, blocks, sequence(several)))
        body += [fill(a, w, first) for a, w in accumulators]
        body.append(nested(outer, sequence(steps)))
        buffers += [a for a, _ in accumulators]
        body += _horizontal(how, accumulators, result)
    if not stages.full_root:
        own = Lanes(integer(0), 1)
        body.append(templates[-1].instantiate(replace, own))
        return Nest(written.rows, sequence(body), buffers + own.buffers)
    for start, blocks, width in segments(inner.extent, lanes):
        block, lane = variable("b"), variable("l")
        at = block * width + lane + start
        own = Lanes(lane, width)
        final = vector_body(templates[-1], put(replace, inner.var, at), own, lanes, output=stages.output)
        buffers += own.buffers
        body.append(nested(outer, loop(block, blocks, final)))
    return Nest(written.rows, sequence(body), buffers)


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
    value = combined(how, tirx.BufferLoad(buffer, [lane]), tirx.BufferLoad(other, [lane + start]))
    return vectorized(lane, lanes, tirx.BufferStore(buffer, value, [lane]))


def _across(stages: Stages, written: _Written, direction: Direction, lanes: int) -> list[Nest]:
    templates, results, replace = written.templates, written.results, written.replace
    rows, reduced = written.rows, written.reduced
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
            how = reduction(x).combine
            step = vector_body(_element(stage, how, result, own), moved, own, lanes)
            body += [fill(result, width, neutral(how, x.dtype)), nested(reduced, step)]
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
