"""Kernels that are machine code and the constants it reads."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from collage_run.devices import Queue
from collage_run.formats import Array, Layout
from collage_run.image import Image
from collage_run.kernel import Bound, Kernel, StoredKernel

__all__ = ["MACHINE_CODE", "MachineCodeKernel"]

MACHINE_CODE = "machine_code"
"""What its stored kernels are called."""


def _pointer(array: Array, layout: Layout) -> Any:
    """To the elements of a dense array, which it keeps alive."""
    if not array.transpose(layout).flags.c_contiguous:
        raise ValueError(
            f"an array of shape {array.shape} with strides {array.strides} is not dense in layout {layout}"
        )
    return array.ctypes.data_as(ctypes.c_void_p)


class MachineCodeKernel(Kernel):
    """The function of `image`, which takes pointers to inputs, constants and outputs, in this order.

    inputs, outputs: their layouts. constants: as the function reads them, of one dimension.
    """

    def __init__(
        self,
        image: Image,
        inputs: Sequence[Layout],
        outputs: Sequence[Layout],
        constants: Sequence[Array],
        may_alias: Mapping[int, int],
    ) -> None:
        """OSError as `Image.load`; ValueError unless the function takes as many pointers."""
        if image.parameters != len(inputs) + len(constants) + len(outputs):
            raise ValueError(f"its function takes {image.parameters} pointers")
        self._image = image
        self._function = image.load()
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
            "inputs": self._inputs,
            "outputs": self._outputs,
            "may_alias": [*self.may_alias.items()],
        }
        return StoredKernel(MACHINE_CODE, facts, self._image.to_bytes(), self._held)

    @classmethod
    def restored(cls, stored: StoredKernel) -> MachineCodeKernel:
        """The same again, of what `stored` told."""
        inputs, outputs = ([tuple(layout) for layout in stored.facts[name]] for name in ("inputs", "outputs"))
        image, may_alias = Image.from_bytes(stored.code), dict(stored.facts["may_alias"])
        return cls(image, inputs, outputs, stored.arrays, may_alias)
