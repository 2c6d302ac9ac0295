"""A primitive described in plain values: what a planner returns and the kernel builds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from collage_core.backend import Variant
from collage_core.formats import Array, Format, Layout
from collage_core.ir import Subgraph
from collage_dnnl.enums import Alg
from collage_dnnl.steps import Eltwise, Step
from collage_dnnl.tensor import Groups, Tensor, broadcast_tensor, dense, regroup

__all__ = ["AnyFormat", "Argument", "BinaryPostOp", "Constant", "Input", "Output", "Plan", "Site", "Source"]


@dataclass(frozen=True, slots=True)
class Input:
    """The kernel's input of that index."""

    index: int


@dataclass(frozen=True, slots=True)
class Output:
    """The kernel's output."""


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """Data known at build time: `data` stored in the order of `layout`, multiplied by `factor`."""

    data: Array
    layout: Layout
    factor: float = 1.0

    def stored(self) -> Array:
        """The elements as they lie in memory, 1-D float32."""
        flat = np.ascontiguousarray(np.asarray(self.data, np.float32).transpose(self.layout)).reshape(-1)
        return flat if self.factor == 1.0 else flat * np.float32(self.factor)


Source = Input | Output | Constant


@dataclass(frozen=True, slots=True)
class AnyFormat:
    """A parameter whose format the implementation chooses (packed weights)."""

    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Argument:
    """An operand of the primitive. packed: the implementation's own format is asked for and the data
    reordered into it.
    """

    arg: int
    tensor: Tensor
    source: Source
    packed: bool = False


@dataclass(frozen=True, slots=True)
class BinaryPostOp:
    """residual: whether it adds a value of the destination's shape and format, so that a sum with the
    destination can take its place.
    """

    alg: Alg
    tensor: Tensor
    source: Source
    residual: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """One primitive.

    function: of dnnl_<function>_primitive_desc_create; parameters: its arguments after the engine, before the
    attributes (Tensor and AnyFormat stand for descriptors, see also `Library.primitive_descriptor`).
    may_alias: as `Kernel.may_alias`, for calls in place.
    """

    function: str
    parameters: tuple[object, ...]
    arguments: tuple[Argument, ...]
    post_ops: tuple[Eltwise | BinaryPostOp, ...] = ()
    may_alias: Mapping[int, int] = field(default_factory=dict)


class Site:
    """A subgraph with one of its variants: where planners look up formats and sources."""

    def __init__(self, subgraph: Subgraph, variant: Variant) -> None:
        self.graph = subgraph.graph
        self._inputs = {v: i for i, v in enumerate(subgraph.inputs)}
        self._formats: dict[str, Format] = dict(
            zip((*subgraph.inputs, *subgraph.outputs), (*variant.inputs, *variant.outputs), strict=True)
        )

    def shape(self, name: str) -> tuple[int, ...]:
        return self.graph.shape_of(name)

    def layout(self, name: str) -> Layout:
        """The layout of an input or output of the group; plain for a constant."""
        format = self._formats.get(name)
        return tuple(range(len(self.shape(name)))) if format is None else format.layout

    def index(self, name: str) -> int | None:
        """Index among the group's inputs; None for a constant."""
        return self._inputs.get(name)

    def tensor(self, name: str) -> Tensor:
        return dense(self.shape(name), self.layout(name))

    def source(self, name: str, layout: Layout | None = None) -> Source:
        """Where the value comes from; a constant is stored in the order of `layout`, or plain."""
        index = self._inputs.get(name)
        if index is not None:
            return Input(index)
        data = self.graph.constants[name]
        return Constant(data, layout or tuple(range(data.ndim)))

    def operand(self, name: str, layout: Layout) -> tuple[Tensor, Source]:
        """A value that broadcasts to one of `layout`, with that one's rank and order."""
        shape = self.shape(name)
        missing = len(layout) - len(shape)
        own = tuple(d - missing for d in layout if d >= missing)
        return broadcast_tensor(shape, layout), self.source(name, own)

    def post_ops(
        self, steps: Sequence[Step], output: str, layout: Layout, groups: Groups | None = None
    ) -> tuple[Eltwise | BinaryPostOp, ...] | None:
        """Steps as post-operations on a destination that is `output`, stored in `layout`, seen through
        `groups`; None where an operand cannot be seen so."""
        shape = self.shape(output)
        sizes = shape if groups is None else [math.prod(shape[d] for d in group) for group in groups]
        result: list[Eltwise | BinaryPostOp] = []
        for step in steps:
            if isinstance(step, Eltwise):
                result.append(step)
                continue
            tensor, source = self.operand(step.operand, layout)
            residual = (
                step.alg == Alg.BINARY_ADD
                and isinstance(source, Input)
                and self.shape(step.operand) == self.shape(output)
            )
            seen = tensor if groups is None else regroup(tensor, groups)
            if seen is None or any(d not in (1, full) for d, full in zip(seen.dims, sizes, strict=True)):
                return None
            result.append(BinaryPostOp(step.alg, seen, source, residual))
        return tuple(result)
