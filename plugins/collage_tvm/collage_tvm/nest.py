"""Loop nests: the parts that all schedules share.

A schedule writes the body of a nest once, over one loop per digit of every dimension (`axes_of`), as a
`Template`. `merge` then joins adjacent loops over which all offsets advance evenly, `instantiate` puts other
expressions in place of the loops' variables, and `assemble` shares the nests out to threads.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import ir, sym, tirx

from collage_tvm.tensor import Read, Scope, Tensor

__all__ = [
    "Axis",
    "Box",
    "Lanes",
    "Nest",
    "Template",
    "assemble",
    "axes_of",
    "boxes_of",
    "free_variables",
    "integer",
    "lanes_from",
    "loop",
    "merge",
    "nested",
    "new_scope",
    "prefetched",
    "put",
    "sequence",
    "stride_of",
    "substitute",
    "substituted",
    "template",
    "variable",
    "vectorized",
]

Expr = Any
Stmt = Any
Box = tuple[tuple[int, int], ...]
"""A part of a shape: first position and end per dimension."""

_MAX_BOXES = 64


@dataclass(frozen=True)
class Axis:
    """A loop from 0 to `extent` over `var`."""

    var: Any
    extent: int


@dataclass
class Template:
    """The body of a nest: variables with their values, then stores (buffer, index, value). accesses: offsets
    of all loads and stores; escaped: expressions that use indices otherwise; guarded: whether anything is
    evaluated only where a condition holds; reads: those bindings that are loads."""

    bindings: list[tuple[Any, Expr]]
    stores: list[tuple[Any, Expr, Expr]]
    accesses: list[Expr]
    escaped: list[Expr]
    guarded: bool
    reads: list[Read] = field(default_factory=list)

    def instantiate(
        self, replace: Mapping[Any, Expr], lanes: Lanes, taken: Mapping[Any, Expr] | None = None
    ) -> Stmt:
        """The body for some lanes, with expressions in place of variables, and bound variables of its own.
        taken: what stands for some of the reads, by their variable.

        What a variable holds passes through memory that LLVM takes away again: TVM's analyses would otherwise
        see through every variable, and their time grow exponentially with the depth of the expression. Where
        lanes may take different ways, TVM writes them one by one and loses variables: memory serves.
        """
        fresh: dict[Any, Expr] = {}
        body: list[Stmt] = []
        loads = {read.var for read in self.reads}
        for v, value in self.bindings:
            if taken is not None and v in taken:
                fresh[v] = taken[v]
                continue
            if v in loads:  # where it is read, as lanes written one by one lose variables
                fresh[v] = substituted(value, {**replace, **fresh})
                continue
            fresh[v] = tirx.Var(v.name, v.ty)
            if (value in loads or isinstance(value, ir.expr.TensorLoad)) and not self.guarded:
                body.append(tirx.Bind(fresh[v], value))
                continue
            slot = lanes.buffer(value.ty)
            body.append(tirx.BufferStore(slot, value, [lanes.lane]))
            held = tirx.BufferLoad(slot, [lanes.lane])
            if self.guarded:
                fresh[v] = held
            else:
                body.append(tirx.Bind(fresh[v], held))
        body += [tirx.BufferStore(buffer, value, [index]) for buffer, index, value in self.stores]
        return substitute(sequence(body), {**replace, **fresh})


@dataclass
class Lanes:
    """The lanes that a body is written for: `lane` from 0 to `width`. buffers: what it needs, one element per
    lane each."""

    lane: Expr
    width: int
    buffers: list[Any] = field(default_factory=list)

    def buffer(self, dtype: Any) -> Any:
        self.buffers.append(tirx.decl_buffer((self.width,), dtype, name="slot"))
        return self.buffers[-1]


@dataclass
class Nest:
    """Loops, outermost first, around a body that allocates `buffers` for each thread. before: what comes
    before the innermost loop."""

    loops: list[Axis]
    body: Stmt
    buffers: list[Any] = field(default_factory=list)
    before: list[Stmt] = field(default_factory=list)

    def within(self, outer: int) -> Stmt:
        """What is inside the outermost `outer` loops."""
        loops = self.loops[outer:]
        return nested(loops[:-1], sequence([*self.before, nested(loops[-1:], self.body)]))


def integer(value: int) -> Expr:
    return tirx.const(value, "int32")


def variable(name: str) -> Any:
    return tirx.Var(name, "int32")


def sequence(body: Sequence[Stmt]) -> Stmt:
    return body[0] if len(body) == 1 else tirx.SeqStmt(list(body))


def lanes_from(offset: Expr, count: int) -> Expr:
    """The indices of `count` elements from `offset` on, as one vector."""
    return offset if count == 1 else tirx.Ramp(offset, integer(1), count)


def prefetched(buffer: Any, offset: Expr, level: int) -> Stmt:
    """Asks for the line of an element, which may lie behind the last, in the cache of a level (1 to 3)."""
    address = tirx.address_of(tirx.BufferLoad(buffer, [offset]))
    reading, locality, data = 0, 4 - level, 1  # as LLVM's prefetch numbers them
    return tirx.Evaluate(tirx.call_intrin("void", "tirx.prefetch", address, reading, locality, data))


def substitute(body: Stmt, replace: Mapping[Any, Expr]) -> Stmt:
    """`body` with expressions in place of free variables."""
    if not replace:
        return body
    # TVM shows Python no substitution, but specialising a function on its parameters is one
    function = tirx.PrimFunc(list(replace), body)
    return function.specialize({v: integer(e) if isinstance(e, int) else e for v, e in replace.items()}).body


def substituted(value: Expr, replace: Mapping[Any, Expr]) -> Expr:
    """`value` with expressions in place of variables."""
    return substitute(tirx.Evaluate(value), replace).value


def loop(var: Any, extent: Any, body: Stmt, kind: Any = tirx.ForKind.SERIAL) -> Stmt:
    return tirx.For(var, integer(0), integer(extent) if isinstance(extent, int) else extent, kind, body)


def vectorized(lane: Any, lanes: int, body: Stmt) -> Stmt:
    """`body` for all values of `lane` at once; the variable is replaced by one of this loop's own."""
    own = variable("lane")
    if lanes == 1:
        return substitute(body, {lane: 0})
    return loop(own, lanes, substitute(body, {lane: own}), tirx.ForKind.VECTORIZED)


def boxes_of(shape: Sequence[int], cuts: Sequence[frozenset[int]]) -> list[Box]:
    """The parts into which `cuts` divide a shape; the whole where there would be too many."""
    borders = [[0, *sorted(c), d] for d, c in zip(shape, cuts, strict=True)]
    while math.prod(len(b) - 1 for b in borders) > _MAX_BOXES:
        longest = max(range(len(borders)), key=lambda k: len(borders[k]))
        borders[longest] = [0, shape[longest]]
    return [tuple(box) for box in itertools.product(*[list(itertools.pairwise(b)) for b in borders])]


def axes_of(
    analyzer: Any, box: Box, factors: Sequence[tuple[int, ...]], shape: Sequence[int], order: Sequence[int]
) -> tuple[list[Axis], dict[int, Expr]]:
    """Loops over the dimensions `order` of a box, outermost first, and the index of each of those
    dimensions."""
    axes: list[Axis] = []
    index: dict[int, Expr] = {}
    for d in order:
        low, high = box[d]
        digits = factors[d] if high - low == shape[d] else (high - low,)
        total: Expr = low
        for k, f in enumerate(digits):
            if f == 1:
                continue
            var = variable(f"i{d}")
            analyzer.bind(var, ir.Range(0, f))
            axes.append(Axis(var, f))
            stride = math.prod(digits[k + 1 :])
            term = var if stride == 1 else var * stride
            total = term if isinstance(total, int) and total == 0 else total + term
        index[d] = total
    return axes, index


def new_scope(analyzer: Any, roots: Iterable[Tensor]) -> Scope:
    """A scope that knows how many others read each tensor."""
    uses: dict[int, int] = {}
    seen: set[int] = set()
    queue = list(roots)
    while queue:
        tensor = queue.pop()
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        for x in tensor.inputs:
            uses[id(x)] = uses.get(id(x), 0) + 1
            queue.append(x)
    return Scope(analyzer, uses)


def template(scope: Scope, stores: list[tuple[Any, Expr, Expr]], accesses: list[Expr]) -> Template:
    return Template(
        scope.bindings, stores, scope.accesses + accesses, scope.escaped, scope.guarded, scope.reads
    )


def stride_of(offset: Expr, var: Any) -> int | None:
    """By how much an offset advances with a variable; None if not evenly."""
    found = sym.detect_linear_equation(offset, [var])
    return int(found[0].value) if len(found) and isinstance(found[0], tirx.IntImm) else None


def merge(
    templates: Sequence[Template], groups: Sequence[list[Axis]]
) -> tuple[list[list[Axis]], dict[Any, Expr]]:
    """In each group, adjacent loops joined over which every offset advances evenly; and what replaces the old
    variables."""
    definitions = {v: e for t in templates for v, e in t.bindings}
    fixed = _variables([e for t in templates for e in t.escaped], definitions)
    accesses = [a for t in templates for a in t.accesses]
    replace: dict[Any, Expr] = {}
    merged: list[list[Axis]] = []
    for axes in groups:
        result: list[Axis] = []
        strides: list[list[int | None]] = []
        for axis in axes:
            own = [None if axis.var in fixed else stride_of(a, axis.var) for a in accesses]
            even = result and None not in own and None not in strides[-1]
            if even and all(
                outer == inner * axis.extent
                for outer, inner in zip(strides[-1], own, strict=True)
                if outer is not None and inner is not None
            ):
                joined = Axis(variable("m"), result[-1].extent * axis.extent)
                replace = {v: substitute_expr(e, result[-1].var, 0) for v, e in replace.items()}
                replace[result[-1].var] = integer(0)
                replace[axis.var] = joined.var
                result[-1], strides[-1] = joined, own
            else:
                result.append(axis)
                strides.append(own)
        merged.append(result)
    return merged, replace


def put(replace: dict[Any, Expr], var: Any, by: Expr) -> dict[Any, Expr]:
    """`replace`, with `by` in place of the merged loop's variable `var`."""
    return {v: by if e is var else e for v, e in replace.items()} | {var: by}


def substitute_expr(value: Expr, var: Any, by: int) -> Expr:
    return integer(by) if value is var or (isinstance(value, tirx.Var) and value.same_as(var)) else value


def free_variables(value: Expr) -> set[Any]:
    """What an expression is written over."""
    return set(tirx.analysis.undefined_vars(tirx.Evaluate(value), []))


def _variables(expressions: list[Expr], definitions: Mapping[Any, Expr]) -> set[Any]:
    found: set[Any] = set()
    queue = list(expressions)
    while queue:
        for var in free_variables(queue.pop()):
            if var not in found:
                found.add(var)
                if var in definitions:
                    queue.append(definitions[var])
    return found


def assemble(nests: Sequence[Nest], threads: int, last: Sequence[Stmt] = ()) -> Stmt:
    """All nests, which may run in any order; with several threads, each takes its share of every nest. last:
    what each thread does then."""
    t = variable("t")
    nests = _beside_each_other(nests, threads)
    buffers = {id(b): b for nest in nests for b in nest.buffers}
    body: list[Stmt] = [tirx.AllocBuffer(b) for b in buffers.values()]
    for nest in nests:
        body.append(_share(nest, t, threads) if threads > 1 else nest.within(0))
    body += last
    return loop(t, threads, sequence(body), tirx.ForKind.PARALLEL) if threads > 1 else sequence(body)


def _beside_each_other(nests: Sequence[Nest], threads: int) -> list[Nest]:
    """Neighbouring nests with the same outermost loop as one nest: the parts of every image of a batch, or of
    every channel, one after the other, while the lines that they share are in the cache."""
    joined: list[Nest] = []
    for extent, group in itertools.groupby(nests, lambda n: n.loops[0].extent if n.loops else 1):
        parts = list(group)
        if len(parts) == 1 or (extent % threads and extent < 8 * threads) or extent == 1:
            joined += parts
            continue
        outermost = Axis(variable("o"), extent)
        bodies = [substitute(n.within(1), {n.loops[0].var: outermost.var}) for n in parts]
        joined.append(Nest([outermost], sequence(bodies), [b for n in parts for b in n.buffers]))
    return joined


def nested(axes: Sequence[Axis], body: Stmt) -> Stmt:
    """`body` in loops of its own; nests of one box share axes, and TVM wants every loop's variable to be its
    own."""
    own = {axis.var: variable(axis.var.name) for axis in axes}
    body = substitute(body, own)
    for axis in reversed(axes):
        body = loop(own[axis.var], axis.extent, body)
    return body


def _share(nest: Nest, t: Any, threads: int) -> Stmt:
    """The part of thread `t`: a range of the outermost loops, of which as many are taken together as it needs
    to be even."""
    count, taken = 1, 0
    for axis in nest.loops:
        if count % threads == 0 or count >= 8 * threads:
            break
        count, taken = count * axis.extent, taken + 1
    inner = nest.within(taken)
    if count == 1:
        return tirx.IfThenElse(t == 0, substitute(inner, {a.var: 0 for a in nest.loops[:taken]}), None)
    p = variable("p")
    if count % threads == 0:
        start, extent = t * (count // threads), integer(count // threads)
    else:
        each, more = divmod(count, threads)
        start = t * each + tirx.min(t, integer(more))
        extent = integer(each) + tirx.Select(t < more, integer(1), integer(0))
    position = start + p
    replace: dict[Any, Expr] = {}
    stride = count
    for k, axis in enumerate(nest.loops[:taken]):
        stride //= axis.extent
        digit = tirx.floordiv(position, integer(stride)) if stride > 1 else position
        replace[axis.var] = tirx.floormod(digit, integer(axis.extent)) if k else digit
    return loop(p, extent, substitute(inner, replace))
