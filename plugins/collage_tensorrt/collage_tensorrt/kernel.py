"""An engine as a kernel."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from collage_core.backend import Bound, Kernel
from collage_core.devices import DeviceArray, Queue
from collage_core.ir import Subgraph

__all__ = ["ALIGNMENT_BYTES", "EngineKernel"]

ALIGNMENT_BYTES = 256
"""Of inputs, outputs and scratch memory (`IExecutionContext::setTensorAddress`)."""


class Context(Protocol):
    def place(self, name: str, address: int) -> None: ...

    def queue(self, stream: int) -> None: ...


class Engine(Protocol):
    memory_bytes: int

    def context(self, memory_address: int) -> Context: ...


class Gpu(Protocol):
    """`collage_cuda.context.Context`."""

    def current(self) -> None: ...

    def release(self, function: Callable[[Any], object], handle: Any) -> None: ...


class EngineKernel(Kernel):
    """One engine. Each binding has a context of its own; their scratch memory is core's. Both are let go of
    when nothing is captured.
    """

    def __init__(self, engine: Engine, gpu: Gpu, subgraph: Subgraph) -> None:
        self._engine, self._gpu = engine, gpu
        self._inputs, self._outputs = subgraph.inputs, subgraph.outputs
        self.workspace_bytes = engine.memory_bytes and engine.memory_bytes + ALIGNMENT_BYTES
        weakref.finalize(self, gpu.release, _let_go, engine)

    def bind(
        self, inputs: Sequence[DeviceArray], outputs: Sequence[DeviceArray], workspace: Any, queue: Queue
    ) -> Bound:
        self._gpu.current()
        address = workspace.address if self.workspace_bytes else 0
        context = self._engine.context(-(-address // ALIGNMENT_BYTES) * ALIGNMENT_BYTES)
        for names, arrays in ((self._inputs, inputs), (self._outputs, outputs)):
            for name, array in zip(names, arrays, strict=True):
                context.place(name, array.address)
        run, stream = context.queue, queue.handle

        def call(_held: object = (self, inputs, outputs, workspace)) -> None:
            run(stream)

        weakref.finalize(call, self._gpu.release, _let_go, context)
        return call


def _let_go(handle: object) -> None:
    """Whoever calls this holds it last."""
