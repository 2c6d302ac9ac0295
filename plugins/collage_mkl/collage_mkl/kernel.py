"""A product as a kernel: constants packed, operands bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from collage_core.backend import Bound, Kernel, Variant
from collage_core.devices import Queue
from collage_core.errors import BackendError, Refusal
from collage_core.formats import Array, empty, plain
from collage_core.ir import Subgraph
from collage_mkl.library import Library
from collage_mkl.product import plan

__all__ = ["ProductKernel"]


class ProductKernel(Kernel):
    """One product. What Gemm adds is copied to the output first, for GEMM to add to, unless it lies there
    already.
    """

    def __init__(self, library: Library, subgraph: Subgraph, variant: Variant, threads: int) -> None:
        product = plan(subgraph, variant)
        if isinstance(product, Refusal):
            raise BackendError(str(product))
        self._library, self._product, self._threads = library, product, threads
        library.set_threads(threads)  # packed for as many as will run it
        graph, node = subgraph.graph, subgraph.nodes[0]
        self._index = {v: i for i, v in enumerate(subgraph.inputs)}
        self._operands = node.inputs[:2]
        left, right = (product.packs and graph.is_constant(v) for v in self._operands)
        self._is_packed = (left, right)
        self._packed: dict[str, Array] = {}
        self._constants: dict[str, Array] = {}
        for i, v in enumerate(self._operands):
            if self._is_packed[i]:
                self._packed[v] = library.packed(product, np.ascontiguousarray(graph.constants[v]), bool(i))
            elif graph.is_constant(v):
                self._constants[v] = _aligned(graph.constants[v])
        if graph.is_constant(product.addend):
            self._constants[product.addend] = graph.constants[product.addend]
        self.may_alias: Mapping[int, int] = {}
        index = self._index.get(product.addend)
        if (
            index is not None
            and product.addend not in self._operands
            and graph.type_of(product.addend) == graph.type_of(node.outputs[0])
            and variant.inputs[index] == variant.outputs[0]
        ):
            self.may_alias = {0: index}

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        out = outputs[0]

        def array(name: str) -> Array:
            return inputs[self._index[name]] if name in self._index else self._constants[name]

        left, right = (self._packed[v] if v in self._packed else array(v) for v in self._operands)
        addresses = (left.ctypes.data, right.ctypes.data, out.ctypes.data)
        keep = (self, left, right, out)
        product = self._library.bind(self._product, addresses, self._is_packed, self._threads, keep)
        addend = array(self._product.addend) if self._product.addend else out
        if addend.ctypes.data == out.ctypes.data:
            return product
        fill = partial(np.copyto, out, addend)

        def fill_and_add() -> None:
            fill()
            product()

        return fill_and_add


def _aligned(data: Array) -> Array:
    copy = empty(data.shape, plain(data.dtype.name, data.shape))
    copy[...] = data
    return copy
