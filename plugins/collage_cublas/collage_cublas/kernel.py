"""A product as a kernel: constants on the device, operands bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from collage_core.backend import Kernel
from collage_core.devices import DeviceArray, Queue
from collage_cublas.library import WORKSPACE_ALIGNMENT_BYTES, Addresses, Algorithm, Library
from collage_cublas.operation import Operand, Operation

__all__ = ["ProductKernel", "aligned_workspace", "scratch_bytes"]


def scratch_bytes(algorithm: Algorithm) -> int:
    """Of a buffer in which an aligned workspace finds its place; 0 where it needs none."""
    return algorithm.workspace_bytes and algorithm.workspace_bytes + WORKSPACE_ALIGNMENT_BYTES


def aligned_workspace(algorithm: Algorithm, address: int) -> tuple[int, int]:
    """Address and bytes of the workspace in a buffer of `scratch_bytes` at `address`."""
    if not algorithm.workspace_bytes:
        return 0, 0
    return -(-address // WORKSPACE_ALIGNMENT_BYTES) * WORKSPACE_ALIGNMENT_BYTES, algorithm.workspace_bytes


class ProductKernel(Kernel):
    """One product, by one algorithm. memory: of the constants among a, b, c and bias, None for all others."""

    def __init__(
        self,
        library: Library,
        device: Any,
        operation: Operation,
        memory: Sequence[Any],
        algorithm: Algorithm,
    ) -> None:
        self._library, self._device = library, device
        self.operation, self._algorithm = operation, algorithm
        self._memory = tuple(memory)
        self.workspace_bytes = scratch_bytes(algorithm)
        self.may_alias = dict(operation.may_alias)

    def bind(
        self, inputs: Sequence[DeviceArray], outputs: Sequence[DeviceArray], workspace: Any, queue: Queue
    ) -> Callable[[], object]:
        def address(operand: Operand | None, memory: Any) -> int:
            if operand is None:
                return 0
            return inputs[operand].address if isinstance(operand, int) else int(memory.address)

        self._device.current()
        a, b, c, bias = map(address, self.operation.operands, self._memory)
        call = self._library.bind(
            self.operation.product,
            self._algorithm,
            Addresses(a, b, c, outputs[0].address, bias),
            aligned_workspace(self._algorithm, workspace.address) if self.workspace_bytes else (0, 0),
            queue.handle,
        )
        vars(call)["holds"] = (self, inputs, outputs, workspace)
        return call
