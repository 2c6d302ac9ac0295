"""The kernel that runs a planned primitive."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from collage_run.devices import Queue
from collage_run.errors import BackendError, BackendUnavailableError
from collage_run.formats import Array, own
from collage_run.kernel import Bound, Kernel, StoredKernel

from collage_dnnl.enums import Arg, Query
from collage_dnnl.kernels.plan import AnyFormat, BinaryPostOp, Constant, Input, Int64, Packed, Plan, Source
from collage_dnnl.kernels.plan_json import stored_plan
from collage_dnnl.library import Descriptor, Library, PostOp, Primitive, PrimitiveDescriptor
from collage_dnnl.tensor import Tensor

__all__ = ["PrimitiveKernel", "describe"]

_SUMMING = frozenset(["binary", "convolution_forward", "deconvolution_forward", "matmul"])
"""Primitives with a sum post-operation; pooling takes it without complaint and ignores it."""


@dataclass(frozen=True, slots=True)
class _Operand:
    arg: int
    descriptor: Descriptor
    source: Source | None
    packed: bool
    buffer: Array | None = None


@dataclass(frozen=True, slots=True)
class _Described:
    """A primitive that the library has agreed to, not compiled."""

    descriptor: PrimitiveDescriptor
    operands: tuple[_Operand, ...]
    scratchpad: Descriptor
    workspace_bytes: int


@dataclass(frozen=True, slots=True)
class _Compiled:
    primitive: Primitive
    operands: tuple[_Operand, ...]


def describe(library: Library, plan: Plan, in_place: int | None = None) -> _Described:
    """Ask the library for an implementation; the post-op of index `in_place` becomes a sum with the
    destination.
    """
    descriptors: dict[Tensor | AnyFormat, Descriptor] = {}

    def of(item: Tensor | AnyFormat) -> Descriptor:
        if item not in descriptors:
            strides = item.strides if isinstance(item, Tensor) else None
            descriptors[item] = library.descriptor(item.dims, strides, item.dtype)
        return descriptors[item]

    def parameter(item: object) -> object:
        if isinstance(item, Tensor | AnyFormat):
            return of(item)
        if isinstance(item, list):
            return [of(t) for t in item]
        return ctypes.c_int64(item.value) if isinstance(item, Int64) else item

    operands = [_Operand(a.arg, of(a.tensor), a.source, a.packed) for a in plan.arguments]
    ops: list[PostOp] = []
    for i, op in enumerate(plan.post_ops):
        if i == in_place:
            ops.append(None)
        elif isinstance(op, BinaryPostOp):
            ops.append((op.alg, of(op.tensor)))
            arg = Arg.MULTIPLE_POST_OP * (i + 1) | Arg.SRC_1
            operands.append(_Operand(arg, of(op.tensor), op.source, packed=False))
        else:
            ops.append((op.alg, op.alpha, op.beta))
    attributes = library.attributes(ops, plan.masks)
    found = library.primitive_descriptor(plan.function, [parameter(p) for p in plan.parameters], attributes)
    scratchpad = library.queried(found, Query.SCRATCHPAD_MD)
    return _Described(found, tuple(operands), scratchpad, library.size_bytes(scratchpad))


class PrimitiveKernel(Kernel):
    """One oneDNN primitive with its packed constants.

    Where a residual is added, two primitives stand by: one that sums with the destination, for a residual
    that shares the output's buffer, and one that reads the residual as an operand. Each is compiled when
    `bind` first needs it.
    """

    def __init__(self, library: Library, plan: Plan, threads: int) -> None:
        self._library, self._plan, self._threads = library, plan, threads
        self._lock = threading.Lock()
        self._compiled: dict[bool, _Compiled] = {}
        self.may_alias = dict(plan.may_alias)
        self._residual = _residual(plan)
        with library.threads(threads):
            self._described = {False: describe(library, plan)}
            if self._residual is not None:
                position, index = self._residual
                try:
                    self._described[True] = describe(library, plan, in_place=position)
                except BackendError:
                    self._residual = None  # no implementation sums in place; the operand form serves
                else:
                    self.may_alias[0] = index
            if self._residual is None:
                self._compile(False)
        self.workspace_bytes = max(d.workspace_bytes for d in self._described.values())

    @property
    def implementations(self) -> list[str]:
        """Which of the library's stand by, and of which version."""
        return [self._library.version, *map(self._name, self._described)]

    @property
    def implementation(self) -> str:
        """The library's name for the implementation that runs when nothing is aliased."""
        return self._library.implementation(self._described[False].descriptor)

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        in_place = (
            self._residual is not None and inputs[self._residual[1]].ctypes.data == outputs[0].ctypes.data
        )
        with self._lock, self._library.threads(self._threads):
            compiled = self._compiled.get(in_place) or self._compile(in_place)
        memories = []
        for o in compiled.operands:
            if o.buffer is not None:
                address = o.buffer.ctypes.data
            elif isinstance(o.source, Input):
                address = inputs[o.source.index].ctypes.data
            else:
                address = outputs[0].ctypes.data
            memories.append((o.arg, o.descriptor, address))
        scratchpad = self._described[in_place].scratchpad
        memories.append((int(Arg.SCRATCHPAD), scratchpad, workspace.ctypes.data))
        keep = (compiled.operands, tuple(inputs), tuple(outputs), workspace)
        return self._library.bind(compiled.primitive, memories, self._threads, keep)

    def stored(self) -> StoredKernel:
        plain: dict[Source, Array] = {}
        packed: dict[Source, dict[str, Array]] = {}
        with self._lock, self._library.threads(self._threads):
            for in_place in self._described:
                compiled = self._compiled.get(in_place) or self._compile(in_place)
                for o in compiled.operands:
                    if o.source is not None and o.buffer is not None and o.packed:
                        packed.setdefault(o.source, {})[self._name(in_place)] = o.buffer
                    elif o.source is not None and o.buffer is not None:
                        plain[o.source] = o.buffer
        return stored_plan(self._plan, plain, packed, self._threads, self.implementations)

    def _compile(self, in_place: bool) -> _Compiled:
        described = self._described[in_place]
        operands = tuple(self._stored(o, in_place) for o in described.operands)
        compiled = _Compiled(self._library.primitive(described.descriptor), operands)
        self._compiled[in_place] = compiled
        return compiled

    def _name(self, in_place: bool) -> str:
        """Tells the implementation from others of this kernel, and of others of the same version."""
        how = "sum in place" if in_place else "plain"
        return f"{how}: {self._library.implementation(self._described[in_place].descriptor)}"

    def _stored(self, operand: _Operand, in_place: bool) -> _Operand:
        descriptor = self._described[in_place].descriptor
        if not isinstance(operand.source, Constant | Packed):
            return operand
        for other in self._compiled.values():
            for o in other.operands:
                if o.source is operand.source and not operand.packed:
                    return (
                        o
                        if o.arg == operand.arg
                        else _Operand(operand.arg, o.descriptor, o.source, False, o.buffer)
                    )
        if isinstance(operand.source, Packed):
            wanted = self._library.queried(descriptor, Query.WEIGHTS_MD)
            buffer = operand.source.forms.get(self._name(in_place))
            if buffer is None or buffer.nbytes != self._library.size_bytes(wanted):
                raise BackendUnavailableError("constants were packed for another implementation")
            return _Operand(operand.arg, wanted, operand.source, True, buffer)
        data = operand.source.stored()
        if not operand.packed:
            held = data if operand.source.is_own else own(data)
            return _Operand(operand.arg, operand.descriptor, operand.source, False, held)
        wanted = self._library.queried(descriptor, Query.WEIGHTS_MD)
        for other in self._compiled.values():
            for o in other.operands:
                if o.source is operand.source and self._library.equal(o.descriptor, wanted):
                    return o
        buffer = self._library.reorder(data, operand.descriptor, wanted)
        return _Operand(operand.arg, wanted, operand.source, True, buffer)


def _residual(plan: Plan) -> tuple[int, int] | None:
    """(index of the post-op, index of the input) of the first residual that nothing else in the primitive
    reads, where the primitive can sum.
    """
    if plan.function not in _SUMMING:
        return None
    sources = [a.source for a in plan.arguments]
    sources += [op.source for op in plan.post_ops if isinstance(op, BinaryPostOp)]
    for i, op in enumerate(plan.post_ops):
        if (
            isinstance(op, BinaryPostOp)
            and op.residual
            and isinstance(op.source, Input)
            and sources.count(op.source) == 1
        ):
            return i, op.source.index
    return None
