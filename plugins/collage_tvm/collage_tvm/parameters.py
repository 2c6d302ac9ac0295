"""What a kernel is handed, and the values of its group as expressions over that."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import tirx

from collage_core.backend import Variant
from collage_core.errors import BackendError
from collage_core.formats import BFLOAT16, Array, Format, Layout
from collage_core.ir import Subgraph
from collage_tvm.bits import narrowed, widened
from collage_tvm.lower import LOWERINGS, LoweringContext
from collage_tvm.output import Output, beyond_caches, strides_of
from collage_tvm.reductions import contraction_of
from collage_tvm.tensor import ARITHMETIC, Index, Memory, Scope, Tensor, buffer_dtype, linear, make

__all__ = ["Parameters", "argument_of", "buffer_of", "lowered", "rounded"]


class Parameters:
    """The flat buffers that a kernel is handed."""

    def __init__(self) -> None:
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.held: list[Any] = []
        self.constants: list[Callable[[], Array]] = []
        self.constant_bytes = 0

    def input(self, name: str, shape: tuple[int, ...], format: Format) -> Tensor:
        buffer = buffer_of(f"in{len(self.inputs)}", shape, format.dtype)
        self.inputs.append(buffer)
        if format.dtype != BFLOAT16:
            return argument_of(buffer, shape, format.dtype, format.layout)
        bits = argument_of(buffer, shape, buffer_dtype(BFLOAT16), format.layout)
        return make(shape, "float32", [bits], lambda s, i: widened(s.value(bits, i)), weight=ARITHMETIC)

    def hold(self, data: Array) -> Tensor:
        """A constant as a parameter that the kernel itself hands over."""
        return self.hold_made(data.shape, str(data.dtype), lambda: data)

    def hold_made(self, shape: tuple[int, ...], dtype: str, make: Callable[[], Array]) -> Tensor:
        """As `hold`, of what is made when a kernel is: what is only compiled needs no weights."""
        buffer = buffer_of(f"held{len(self.held)}", shape, dtype)
        self.held.append(buffer)
        self.constants.append(make)
        self.constant_bytes += math.prod(shape) * np.dtype(dtype).itemsize
        return argument_of(buffer, shape, dtype, tuple(range(len(shape))))

    def output(self, tensor: Tensor, format: Format) -> Output:
        buffer = buffer_of(f"out{len(self.outputs)}", tensor.shape, format.dtype)
        self.outputs.append(buffer)
        if format.dtype == BFLOAT16:
            return Output(rounded(tensor), buffer, format.layout, streams=False)
        streams = contraction_of(tensor) is None and tensor.scan is None  # their schedules store plainly
        streams = streams and beyond_caches(math.prod(tensor.shape), tensor.dtype)
        return Output(tensor, buffer, format.layout, streams)

    def all(self) -> list[Any]:
        return [*self.inputs, *self.held, *self.outputs]


def buffer_of(name: str, shape: tuple[int, ...], dtype: str) -> Any:
    return tirx.decl_buffer((max(1, math.prod(shape)),), buffer_dtype(dtype), name=name)


def rounded(tensor: Tensor) -> Tensor:
    """The bits of a float32 value in bfloat16."""

    def element(s: Scope, i: Index) -> Any:
        return narrowed(s.value(tensor, i))

    digits = {"factors": tensor.factors, "cuts": tensor.cuts}
    return make(tensor.shape, buffer_dtype(BFLOAT16), [tensor], element, weight=ARITHMETIC, **digits)


def argument_of(buffer: Any, shape: tuple[int, ...], dtype: str, layout: Layout) -> Tensor:
    strides = strides_of(shape, layout)

    def element(s: Scope, i: Index) -> Any:
        return s.load(buffer, linear(i, strides), dtype)

    return make(shape, dtype, [], element, memory=Memory(buffer, strides))


def lowered(subgraph: Subgraph, variant: Variant, parameters: Parameters) -> dict[str, Tensor]:
    """Every value of the subgraph as an index expression."""
    graph = subgraph.graph
    values = {
        v: parameters.input(v, graph.shape_of(v), f)
        for v, f in zip(subgraph.inputs, variant.inputs, strict=True)
    }
    for node in subgraph.nodes:
        results = LOWERINGS[node.op_type](LoweringContext(graph, node, values, parameters.hold))
        for name, tensor in zip(node.outputs, results, strict=False):
            if name and tensor.shape != graph.shape_of(name):
                raise BackendError(
                    f"{node.name}: lowered to {tensor.shape}, the graph says {graph.shape_of(name)}"
                )
            values[name] = tensor
    return values
