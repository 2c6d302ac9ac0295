"""cuDNN's plans and calls as kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from collage_core.backend import Bound, Kernel
from collage_core.devices import DeviceArray, Memory, Queue
from collage_cudnn.description import Description
from collage_cudnn.stream_handles import Held

__all__ = ["CallKernel", "GraphKernel", "Handles", "OldCalls", "Plans"]


class Handles(Protocol):
    def handle(self, stream: int) -> Held: ...


class Plans(Protocol):
    """A graph with one plan selected."""

    def selected(
        self, addresses: Mapping[int, int], workspace: int | None, handle: Any
    ) -> Callable[[], object]: ...


class OldCalls(Protocol):
    workspace_bytes: int

    def runner(self, handle: Any, source: int, result: int, workspace: int | None) -> Callable[[], int]: ...


class GraphKernel(Kernel):
    """constants: what lies on the device already, by number. The handle's stream is the queue's from `bind`
    on, for calls that are captured, too.
    """

    def __init__(
        self,
        handles: Handles,
        plans: Plans,
        description: Description,
        constants: Mapping[int, Memory],
        workspace_bytes: int,
    ) -> None:
        self.workspace_bytes = workspace_bytes
        self._handles, self._plans, self._description = handles, plans, description
        self._constants = constants
        self._numbers = {n: ctypes.c_float(v) for n, v in description.numbers.items()}

    def bind(
        self, inputs: Sequence[DeviceArray], outputs: Sequence[DeviceArray], workspace: Any, queue: Queue
    ) -> Bound:
        arrays = {n: inputs[i].address for n, i in self._description.inputs.items()}
        run, held = self.queued(arrays, outputs[0].address, workspace_address(self, workspace), queue)

        def call(_held: Held = held, _kernel: GraphKernel = self) -> None:
            run()

        return call

    def queued(
        self, inputs: Mapping[int, int], output: int, workspace: int | None, queue: Queue
    ) -> tuple[Callable[[], object], Held]:
        """The selected plan on these addresses, and the handle that it needs."""
        held = self._handles.handle(queue.handle)
        addresses = {**inputs, self._description.output: output}
        addresses |= {n: m.address for n, m in self._constants.items()}  # type: ignore[attr-defined]
        addresses |= {n: ctypes.addressof(v) for n, v in self._numbers.items()}
        return self._plans.selected(addresses, workspace, held.handle), held


class CallKernel(Kernel):
    """One function of the older interface."""

    def __init__(self, handles: Handles, called: OldCalls) -> None:
        self.workspace_bytes = called.workspace_bytes
        self._handles, self._called = handles, called

    def bind(
        self, inputs: Sequence[DeviceArray], outputs: Sequence[DeviceArray], workspace: Any, queue: Queue
    ) -> Bound:
        held = self._handles.handle(queue.handle)
        address = workspace_address(self, workspace)
        run = self._called.runner(held.handle, inputs[0].address, outputs[0].address, address)

        def call(_held: Held = held, _kernel: CallKernel = self) -> int:
            return run()

        return call


def workspace_address(kernel: Kernel, workspace: Any) -> int | None:
    return workspace.address if kernel.workspace_bytes else None
