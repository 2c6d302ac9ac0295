"""Kernels of compiled objects and the constants they read. Nothing here loads TVM."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from collage_core.backend import Bound, Kernel, StoredKernel
from collage_core.devices import Queue
from collage_core.formats import Array, Layout, empty, plain
from collage_tvm.machine_code import MachineCode, load

__all__ = ["ENTRY", "Code", "TvmKernel", "own"]

ENTRY = "collage_kernel"
"""What the function of an object file is called."""


@dataclass(frozen=True)
class Code:
    """An object file, whose function takes so many pointers, and whose parallel loops run on so many
    threads.
    """

    object_file: bytes
    parameters: int
    threads: int

    def load(self) -> MachineCode:
        return load(self.object_file, ENTRY, self.parameters, self.threads)


def own(data: Array) -> Array:
    """A flat copy, 64-byte aligned, row-major."""
    copy = empty(data.shape, plain(str(data.dtype), data.shape))
    copy[...] = data
    return copy.reshape(-1)


def _pointer(array: Array, layout: Layout) -> Any:
    """To the elements of a dense array, which it keeps alive."""
    if not array.transpose(layout).flags.c_contiguous:
        raise ValueError(
            f"an array of shape {array.shape} with strides {array.strides} is not dense in layout {layout}"
        )
    return array.ctypes.data_as(ctypes.c_void_p)


class TvmKernel(Kernel):
    """A compiled group and the constants it reads."""

    def __init__(
        self,
        code: Code,
        inputs: Sequence[Layout],
        outputs: Sequence[Layout],
        constants: Sequence[Array],
        may_alias: Mapping[int, int],
    ) -> None:
        self._code = code
        self._function = code.load()
        self._inputs = tuple(inputs)
        self._outputs = tuple(outputs)
        self._held = tuple(constants)
        self._constants = [_pointer(c, (0,)) for c in constants]
        self.may_alias = dict(may_alias)

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        given = [_pointer(a, o) for a, o in zip(inputs, self._inputs, strict=True)]
        results = [_pointer(a, o) for a, o in zip(outputs, self._outputs, strict=True)]
        return partial(self._function, *given, *self._constants, *results)

    def stored(self) -> StoredKernel:
        facts = {
            "parameters": self._code.parameters,
            "threads": self._code.threads,
            "inputs": self._inputs,
            "outputs": self._outputs,
            "may_alias": [*self.may_alias.items()],
        }
        return StoredKernel(facts, self._code.object_file, self._held)

    @classmethod
    def restored(cls, stored: StoredKernel) -> TvmKernel:
        """The same again, of what `stored` told."""
        facts = stored.facts
        code = Code(stored.code, facts["parameters"], facts["threads"])
        inputs, outputs = ([tuple(layout) for layout in facts[name]] for name in ("inputs", "outputs"))
        return cls(code, inputs, outputs, stored.arrays, dict(facts["may_alias"]))
