"""Where planners look up formats and sources."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from collage_core.backend import Variant
from collage_core.formats import Format, Layout
from collage_core.ir import Subgraph
from collage_dnnl.enums import Alg
from collage_dnnl.kernels.plan import BinaryPostOp, Constant, Eltwise, Input, Source
from collage_dnnl.steps import Step
from collage_dnnl.tensor import FP32, Groups, Tensor, dense, regroup

__all__ = ["Site"]


class Site:
    """A subgraph with one of its variants. whole: what floats that are dequantised come from, by name: it is
    read in their place.
    """

    def __init__(
        self, subgraph: Subgraph, variant: Variant, whole: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.graph = subgraph.graph
        self._whole = whole
        self._inputs = {v: i for i, v in enumerate(subgraph.inputs)}
        self._formats: dict[str, Format] = dict(
            zip((*subgraph.inputs, *subgraph.outputs), (*variant.inputs, *variant.outputs), strict=True)
        )
        for v, q in whole.items():
            if q in self._inputs:
                self._inputs[v], self._formats[v] = self._inputs[q], self._formats[q]

    def shape(self, name: str) -> tuple[int, ...]:
        return self.graph.shape_of(name)

    def layout(self, name: str) -> Layout:
        """The layout of an input or output of the group; plain for a constant."""
        format = self._formats.get(name)
        return tuple(range(len(self.shape(name)))) if format is None else format.layout

    def index(self, name: str) -> int | None:
        """Index among the group's inputs; None for a constant."""
        return self._inputs.get(name)

    def dtype(self, name: str) -> str:
        """In which an input or output of the group is stored, or a constant is read."""
        if (format := self._formats.get(name)) is not None:
            return format.dtype
        return self.graph.type_of(self._whole[name]).dtype if name in self._whole else FP32

    def tensor(self, name: str, layout: Layout | None = None) -> Tensor:
        """The value as it lies in memory; `layout` where that means the same bytes, or for a constant."""
        return dense(self.shape(name), layout or self.layout(name), self.dtype(name))

    def source(self, name: str, layout: Layout | None = None) -> Source:
        """Where the value comes from; a constant is stored in the order of `layout`, or plain."""
        index = self._inputs.get(name)
        if index is not None:
            return Input(index)
        data = self.graph.constants[self._whole.get(name, name)]
        return Constant(data, layout or tuple(range(data.ndim)), dtype=self.dtype(name))

    def operand(self, name: str, layout: Layout) -> tuple[Tensor, Source]:
        """A value that broadcasts to one of `layout`, with that one's rank and order."""
        shape = self.shape(name)
        missing = len(layout) - len(shape)
        own = tuple(d - missing for d in layout if d >= missing)
        full = (1,) * missing + shape
        return dense(full, layout, self.dtype(name)), self.source(name, own)

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
                and (self.shape(step.operand), self.dtype(step.operand)) == (shape, self.dtype(output))
            )
            seen = tensor if groups is None else regroup(tensor, groups)
            if seen is None or any(d not in (1, full) for d, full in zip(seen.dims, sizes, strict=True)):
                return None
            result.append(BinaryPostOp(step.alg, seen, source, residual))
        return tuple(result)
