"""From a group and a variant to its kernel: constants are uploaded, algorithms tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from collage_core.backend import Variant
from collage_core.errors import BackendError, Refusal
from collage_core.formats import Array
from collage_core.ir import Subgraph
from collage_cublas.keeping import keep, recall
from collage_cublas.kernel import ProductKernel
from collage_cublas.library import Library
from collage_cublas.operation import Constant, Operand, Operation
from collage_cublas.planning import plan
from collage_cublas.selection import Job, choose

__all__ = ["Gpu", "build"]

_NAN_BYTE = 0xFF
"""Of such bytes alone, every float type's number is NaN."""


@dataclass(frozen=True)
class Gpu:
    """What of `collage_cuda` is needed; its context is current. choices: its `Choices` for this library."""

    device: Any
    upload: Callable[[Array], Any]
    choices: Any


def build(library: Library, subgraph: Subgraph, variant: Variant, gpu: Gpu) -> ProductKernel:
    """The fastest kernel for a variant that is offered. BackendError with the reason for another variant,
    DeclinedError where the library runs none.
    """
    found = plan(subgraph, variant)
    if isinstance(found, Refusal):
        raise BackendError(str(found))
    ways = [found]
    swapped = plan(subgraph, variant, swaps_constants=True)
    if isinstance(swapped, Operation) and swapped != found:
        ways.append(swapped)
    graph = subgraph.graph

    @cache
    def constant(operand: Operand | None) -> Any:
        if not isinstance(operand, Constant):
            return None
        return gpu.upload(operand.values(graph.constants[operand.name]))

    products = tuple(way.product for way in ways)
    chosen = library.chosen.get(products) or recall(library, gpu.choices, products)
    if chosen is None:
        is_nan = {found.a, found.b} if found.product.activation else set()
        rooms = {
            i: _room(format.size_bytes(graph.shape_of(name)), i in is_nan, gpu)
            for i, (name, format) in enumerate(zip(subgraph.inputs, variant.inputs, strict=True))
        }

        def held(operand: Operand | None) -> Any:
            return rooms[operand] if isinstance(operand, int) else constant(operand)

        jobs = [Job(way.product, tuple(map(held, way.operands))) for way in ways]
        result_bytes = variant.outputs[0].size_bytes(graph.shape_of(subgraph.outputs[0]))
        chosen = choose(library, jobs, gpu.device, result_bytes)
        keep(gpu.choices, products, chosen)
    index, algorithm = library.chosen[products] = chosen  # layers are often alike
    way = ways[index]
    return ProductKernel(library, gpu.device, way, [*map(constant, way.operands)], algorithm)


def _room(size_bytes: int, is_nan: bool, gpu: Gpu) -> Any:
    """For an input while algorithms are tried: a factor is NaN where what becomes of that matters."""
    if is_nan:
        return gpu.upload(np.full(size_bytes, _NAN_BYTE, np.uint8))
    return gpu.device.allocate(size_bytes)
