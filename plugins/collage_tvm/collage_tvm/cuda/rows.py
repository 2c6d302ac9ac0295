"""The schedule of groups with reductions: the threads of a warp or of a block share a row, or each has one.

As on the CPU (`collage_tvm.rows`), all reductions of a group reduce the same rows, and what follows them
stays in the row. Threads combine what they have found by exchanging registers, then through shared memory,
always in the same order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from tvm import ir, sym, tirx

from collage_tvm.cuda.elements import place
from collage_tvm.cuda.launch import (
    Grid,
    Launch,
    Registers,
    first_of,
    local_buffer,
    shared_buffer,
    whole_blocks,
)
from collage_tvm.nest import Axis, Template, axes_of, integer, loop, merge, nested, sequence, variable
from collage_tvm.output import Output
from collage_tvm.reductions import combined, neutral, reduction, reductions_of
from collage_tvm.rows import runs_along
from collage_tvm.stages import Direction, Stages
from collage_tvm.tensor import refine

__all__ = ["row_launch"]

Expr = Any
Stmt = Any

_WARP = 32
_THREADS = 128
"""Of a block, unless more of them share a row."""
_MOST_THREADS = 512
_FOR_A_WARP = 256
"""Elements of a row up to which a warp is enough; more where there are many rows."""
_MANY_ROWS = 4096
_PROCESSORS = 128
"""About how many blocks are wanted at least, so that each multiprocessor has one."""
_PER_THREAD = 8
"""Elements of a row that a thread has, where a block shares it."""
_MOST_KEPT = 16
"""Elements of a row up to which a thread keeps in registers what several stages need."""
_FINDS_NAN = {"max": "maximum", "min": "minimum"}
"""All threads must find the same: a combination whose operands' order matters would let them differ."""


@dataclass
class _InRegisters(Direction):
    """Where a thread keeps what it needs of its part of a row. step: which of its elements it is at."""

    step: Any = None
    per_thread: int = 1

    def result_buffer(self, name: str, dtype: str) -> Any:
        return local_buffer(name, dtype, 1)

    def row_buffer(self, name: str, dtype: str, count: int) -> Any:
        return local_buffer(name, dtype, self.per_thread)

    def in_row(self, offset: Expr) -> Expr:
        return self.step

    @property
    def result_index(self) -> Expr:
        return integer(0)


@dataclass(frozen=True)
class _Shares:
    """rows: how many there are, of `elements`. threads: that share one. across: whether neighbouring threads
    have neighbouring rows, as where a row's elements lie apart.
    """

    rows: int
    elements: int
    threads: int
    across: bool = False

    @property
    def per_thread(self) -> int:
        return whole_blocks(self.elements, self.threads)

    @property
    def block(self) -> int:
        """Threads of a row that more than a warp shares wait for each other: it has a block of its own."""
        if self.across:
            return self.threads * _WARP
        return self.threads if self.threads > _WARP else _THREADS

    @property
    def rows_of_block(self) -> int:
        return self.block // self.threads

    @property
    def blocks(self) -> int:
        return whole_blocks(self.rows, self.rows_of_block)


def _shares(rows: int, elements: int, along: bool) -> _Shares:
    if not along and elements >= 2 * _PER_THREAD and rows < _PROCESSORS * _THREADS:
        threads = 1 << (whole_blocks(elements, _PER_THREAD) - 1).bit_length()
        return _Shares(rows, elements, min(_WARP, threads), across=True)
    if not along or elements < _WARP // 2:
        return _Shares(rows, elements, 1)
    if elements <= _FOR_A_WARP or (rows >= _MANY_ROWS and elements <= 4 * _FOR_A_WARP):
        return _Shares(rows, elements, _WARP)
    wanted = 1 << (whole_blocks(elements, _PER_THREAD) - 1).bit_length()
    most = _MOST_THREADS if rows >= _PROCESSORS else 2 * _MOST_THREADS
    return _Shares(rows, elements, max(2 * _WARP, min(most, wanted)))


def row_launch(output: Output) -> Launch:
    """A group that satisfies what `collage_tvm.groups` asks of one with reductions."""
    reductions = reductions_of(output.tensor)
    first, root = reduction(reductions[0]), output.tensor
    domain, axes = first.source, first.axes
    kept = [d for d in range(len(domain.shape)) if d not in axes]
    is_full = root.shape == domain.shape
    same_rank = len(root.shape) == len(domain.shape)
    moved = {d: d if same_rank else k for k, d in enumerate(kept)}
    order = sorted(kept, key=lambda d: output.layout.index(moved[d]))
    inner = sorted(axes, key=output.layout.index) if is_full else list(axes)
    factors = list(domain.factors)
    for d in kept:
        factors[d] = refine(factors[d], root.factors[moved[d]])
    analyzer = sym.Analyzer()
    box = tuple((0, d) for d in domain.shape)
    rows, index = axes_of(analyzer, box, factors, domain.shape, order)
    reduced, below = axes_of(analyzer, box, factors, domain.shape, inner)
    full = tuple({**index, **below}[d] for d in range(len(domain.shape)))
    back = {moved[d]: d for d in kept}
    position = full if is_full else tuple(full[back[k]] if k in back else 0 for k in range(len(root.shape)))
    probe = Stages(output, reductions, full, reduced, analyzer).probe()
    elements, count = math.prod(a.extent for a in reduced), math.prod(a.extent for a in rows)
    shares = _shares(count, elements, runs_along(probe, rows, reduced))
    keep = shares.threads > 1 and shares.per_thread <= _MOST_KEPT
    stages = Stages(output, reductions, full, reduced, analyzer, keep=keep)
    step = variable("step")
    direction = _InRegisters(True, 1, integer(0), step, shares.per_thread)
    templates, results = stages.write(direction, position)
    (rows, reduced), replaced = merge(templates, [rows, reduced])
    return _Schedule(stages, templates, results, (rows, reduced), replaced, shares, step).launch()


class _Schedule:
    def __init__(
        self,
        stages: Stages,
        templates: list[Template],
        results: list[Any],
        axes: tuple[list[Axis], list[Axis]],
        replaced: dict[Any, Expr],
        shares: _Shares,
        step: Any,
    ) -> None:
        self._stages, self._templates, self._results = stages, templates, results
        self._rows, self._reduced = axes
        self._replaced = replaced
        self._shares = shares
        self._step = step
        self._grid = Grid()
        self._buffers: list[Any] = [*results, *stages.buffers]
        outer, inner = (
            operation(self._grid.thread, integer(_WARP if shares.across else shares.threads))
            for operation in (tirx.indexdiv, tirx.indexmod)
        )
        self._lane, self._row_of_block = (outer, inner) if shares.across else (inner, outer)

    def launch(self) -> Launch:
        shares = self._shares
        row = self._grid.block * shares.rows_of_block
        if shares.rows_of_block > 1:
            row = row + self._row_of_block
        covered, here = shares.blocks * shares.rows_of_block, row
        if shares.across and covered > shares.rows:  # whoever has no row waits for the others all the same
            here = tirx.min(row, integer(shares.rows - 1))
        at = place(self._rows, here)
        moved = {**{v: at.get(e, e) for v, e in self._replaced.items()}, **at}
        body: list[Stmt] = []
        *stages, last = self._templates
        for x, stage, result in zip(self._stages.reductions, stages, self._results, strict=True):
            how = reduction(x).combine
            how = _FINDS_NAN.get(how, how)
            body.append(tirx.BufferStore(result, neutral(how, x.dtype), [integer(0)]))
            body.append(self._over_row(_added(stage, how, result), moved))
            body += self._exchanged(how, result, x.dtype)
        if self._stages.full_root:
            final = self._over_row(last, moved)
        else:
            own = Registers()
            final = last.instantiate(moved, own)
            self._buffers += own.buffers
            final = final if shares.threads == 1 else tirx.IfThenElse(self._lane == 0, final, None)
        if shares.across:
            whole = sequence([*body, first_of(shares.rows, covered, row, final)])
        else:
            whole = first_of(shares.rows, covered, row, sequence([*body, final]))
        return Launch(self._grid, shares.blocks, shares.block, whole, self._buffers)

    def _over_row(self, stage: Template, moved: dict[Any, Expr]) -> Stmt:
        """A stage for all elements of a row that are this thread's."""
        own = Registers()
        if self._shares.threads == 1:
            body = nested(self._reduced, stage.instantiate(moved, own))
            self._buffers += own.buffers
            return body
        shares, step = self._shares, variable("step")
        element = step * shares.threads + self._lane
        at = place(self._reduced, element)
        there = {v: at.get(e, e) for v, e in moved.items()} | at | {self._step: step}
        body = stage.instantiate(there, own)
        self._buffers += own.buffers
        body = first_of(shares.elements, shares.per_thread * shares.threads, element, body)
        kind = tirx.ForKind.UNROLLED if shares.per_thread <= _MOST_KEPT else tirx.ForKind.SERIAL
        return loop(step, shares.per_thread, body, kind)

    def _exchanged(self, how: str, result: Any, dtype: str) -> list[Stmt]:
        """What all threads of a row have found, combined in each of them."""
        threads = self._shares.threads
        if threads == 1:
            return []
        if self._shares.across:
            return self._through_memory(how, result, dtype, self._grid.thread, (threads, _WARP))
        body: list[Stmt] = []
        lanes = _WARP // 2
        while lanes:
            mine = tirx.BufferLoad(result, [integer(0)])
            other = tirx.Var("other", ir.PrimType(dtype))
            body.append(tirx.Bind(other, tirx.call_extern(dtype, "collage_shuffle", mine, integer(lanes))))
            body.append(tirx.BufferStore(result, combined(how, mine, other), [integer(0)]))
            lanes //= 2
        if threads == _WARP:
            return body
        warp = tirx.indexdiv(self._grid.thread, integer(_WARP))
        return [*body, *self._through_memory(how, result, dtype, warp, (threads // _WARP, 1))]

    def _through_memory(
        self, how: str, result: Any, dtype: str, place_of: Expr, shape: tuple[int, int]
    ) -> list[Stmt]:
        """`shape[0]` results combined, for each of `shape[1]` rows; place_of: where this thread's is."""
        count, rows = shape
        zero = integer(0)
        shared = shared_buffer("found", dtype, count * rows)
        self._buffers.append(shared)
        mine: Stmt = tirx.BufferStore(shared, tirx.BufferLoad(result, [zero]), [place_of])
        if rows == 1:  # all threads of a warp have found the same
            first = tirx.indexmod(self._grid.thread, integer(_WARP)) == 0
            mine = tirx.IfThenElse(first, mine, None)
        body = [mine, tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared"))]
        for k in range(count):
            at = self._row_of_block + k * rows if rows > 1 else integer(k)
            total = tirx.BufferLoad(shared, [at])
            if k:
                total = combined(how, tirx.BufferLoad(result, [zero]), total)
            body.append(tirx.BufferStore(result, total, [zero]))
        return body


def _added(stage: Template, how: str, result: Any) -> Template:
    """A stage whose value is combined into `result`."""
    *stores, (_, _, value) = stage.stores
    zero = integer(0)
    total = combined(how, tirx.BufferLoad(result, [zero]), value)
    return replace(stage, stores=[*stores, (result, zero, total)])
