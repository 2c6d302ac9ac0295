"""A product as a kernel: constants packed, operands bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from collage_run.devices import Queue
from collage_run.formats import Array, own
from collage_run.kernel import Bound, Kernel, StoredKernel

from collage_mkl.library import Library, load
from collage_mkl.product import Matrix, Product

__all__ = ["Operand", "Operation", "ProductKernel", "restore"]

Operand = int | Array
"""The kernel's input of that index, or a constant, row-major."""

_KIND = "mkl"


@dataclass(frozen=True, slots=True)
class Operation:
    """A product of what; addend: None where nothing is added. may_alias: as `Kernel.may_alias`."""

    product: Product
    left: Operand
    right: Operand
    addend: Operand | None
    threads: int
    may_alias: Mapping[int, int]

    def stored(self) -> StoredKernel:
        """What `restore` makes the kernel of. Not packed constants: what lies where in them depends on their
        address.
        """
        arrays: list[Array] = []

        def described(operand: Operand | None) -> Any:
            if operand is None or isinstance(operand, int):
                return operand
            arrays.append(operand)
            return [len(arrays) - 1]

        facts = {
            "product": asdict(self.product),
            "operands": [*map(described, (self.left, self.right, self.addend))],
            "threads": self.threads,
            "may_alias": [*self.may_alias.items()],
        }
        return StoredKernel(_KIND, facts, arrays=tuple(arrays))


def restore(stored: StoredKernel) -> ProductKernel:
    """The same again, constants packed anew. BackendUnavailableError where MKL is not here."""
    facts = stored.facts
    told = dict(facts["product"])
    for name in ("left", "right", "out"):
        matrix = told[name]
        told[name] = Matrix(matrix["transposed"], matrix["leading"], tuple(matrix["offsets"]))
    left, right, addend = (stored.arrays[o[0]] if isinstance(o, list) else o for o in facts["operands"])
    may_alias = dict(facts["may_alias"])
    operation = Operation(Product(**told), left, right, addend, facts["threads"], may_alias)
    return ProductKernel(load(), operation)


class ProductKernel(Kernel):
    """One product. What Gemm adds is copied to the output first, for GEMM to add to, unless it lies there
    already.
    """

    def __init__(self, library: Library, operation: Operation) -> None:
        self._library, self._product, self._threads = library, operation.product, operation.threads
        library.set_threads(operation.threads)  # packed for as many as will run it
        left, right = operation.left, operation.right
        packs = self._product.packs
        self._is_packed = (packs and not isinstance(left, int), packs and not isinstance(right, int))
        self._left, self._right = self._held(left, right=False), self._held(right, right=True)
        self._addend = operation.addend if isinstance(operation.addend, int | None) else own(operation.addend)
        self.may_alias = dict(operation.may_alias)

    def _held(self, operand: Operand, right: bool) -> Operand:
        if isinstance(operand, int):
            return operand
        if self._is_packed[right]:
            return self._library.packed(self._product, np.ascontiguousarray(operand), right)
        return own(operand)

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        def array(operand: Operand) -> Array:
            return inputs[operand] if isinstance(operand, int) else operand

        first, second, out = array(self._left), array(self._right), outputs[0]
        addresses = (first.ctypes.data, second.ctypes.data, out.ctypes.data)
        keep = (self, first, second, out)
        product = self._library.bind(self._product, addresses, self._is_packed, self._threads, keep)
        added = out if self._addend is None else array(self._addend)
        if added.ctypes.data == out.ctypes.data:
            return product
        fill = partial(np.copyto, out, added)

        def fill_and_add() -> None:
            fill()
            product()

        return fill_and_add
