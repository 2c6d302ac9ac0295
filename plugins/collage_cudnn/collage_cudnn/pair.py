"""Two kernels, one after the other, as one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from collage_core.backend import Bound, Kernel
from collage_core.devices import DeviceArray, Queue
from collage_core.formats import Format

__all__ = ["PairKernel"]

_ALIGNMENT_BYTES = 256


class PairKernel(Kernel):
    """What the first one yields lies in the workspace, in the format `between`, before what they want
    themselves.
    """

    def __init__(self, first: Kernel, second: Kernel, shape: Sequence[int], between: Format) -> None:
        self._first, self._second = first, second
        self._shape, self._between = tuple(shape), between
        blocks = math.ceil(between.size_bytes(shape) / _ALIGNMENT_BYTES)
        self._offset = blocks * _ALIGNMENT_BYTES
        self.workspace_bytes = self._offset + max(first.workspace_bytes, second.workspace_bytes)

    def bind(
        self, inputs: Sequence[DeviceArray], outputs: Sequence[DeviceArray], workspace: Any, queue: Queue
    ) -> Bound:
        passed = DeviceArray.of(workspace.address, self._shape, self._between, owner=workspace)
        rest = replace(workspace, address=workspace.address + self._offset, shape=(self._rest_bytes,))
        first = self._first.bind(inputs, [passed], rest, queue)
        second = self._second.bind([passed], outputs, rest, queue)

        def call() -> object:
            return first() or second()

        return call

    @property
    def _rest_bytes(self) -> int:
        return self.workspace_bytes - self._offset
