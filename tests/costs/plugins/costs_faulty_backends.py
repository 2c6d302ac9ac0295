"""Two backends on NumPy that offer the same: `good` is slow and right, `bad` is fast and does what
$COLLAGE_TEST_FAULT says.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from costs_odd_backend import OddKernel
from hanging import HANGS, HangingClock, hang

from collage_core.backend import Backend, BackendInfo, BackendKind, Bound, Kernel, Variant, plain_variant
from collage_core.devices import Queue
from collage_core.errors import BackendError, Refusal
from collage_core.formats import Array, Format, channels_last
from collage_core.ir import Subgraph, TensorType
from collage_core.patterns import BackendPattern, is_op, wildcard
from collage_core.plugins import hookimpl
from collage_core.target import Target
from collage_core.worker import worker

FAULT = "COLLAGE_TEST_FAULT"
DAEMONS = "COLLAGE_TEST_DAEMONS"
"""File to which process ids of what `bad` has left running are appended."""

_GOOD_S = 0.0005
_TURNS = 100
"""More often than that kernels take turns only in an executable."""

if HANGS in os.environ:
    worker.clock = HangingClock()  # type: ignore[assignment, attr-defined]  # in the command's own process

_turns = 0
_last: object = None


class Good(Backend):
    name = "good"

    def info(self) -> BackendInfo:
        return BackendInfo(self.name, BackendKind.OPERATOR, version="1.0", library_version="2.0")

    def patterns(self) -> Sequence[BackendPattern]:
        operands = {"Relu": 1, "MatMul": 2, "Add": 2}
        return [
            BackendPattern(self.name, is_op(op)(*(wildcard() for _ in range(n))), op)
            for op, n in operands.items()
        ]

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        return [plain_variant(subgraph)]

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        return SlowKernel(subgraph, _constants(subgraph), "right")


class Bad(Good):
    name = "bad"

    def __init__(self) -> None:
        self._fault = os.environ.get(FAULT, "")

    def patterns(self) -> Sequence[BackendPattern]:
        if self._fault == "raise in patterns":
            raise RuntimeError("no patterns today")
        return super().patterns()

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        match self._fault:
            case "raise in variants":
                raise RuntimeError("no variants today")
            case "no variants at all":
                return None  # type: ignore[return-value]  # as a careless plugin does
            case "raise in converts" | "crash in conversion":
                plain = plain_variant(subgraph)
                last = tuple(_channels_last(subgraph, v) for v in subgraph.inputs)
                return [Variant(last, plain.outputs)]
        return super().variants(subgraph, target)

    def converts(self, type: TensorType, source: Format, destination: Format, target: Target) -> bool:
        if self._fault == "raise in converts":
            raise RuntimeError("no conversions today")
        return self._fault == "crash in conversion"

    def build_conversion(
        self, type: TensorType, source: Format, destination: Format, target: Target
    ) -> Kernel:
        ctypes.string_at(1)
        raise AssertionError

    def environment(self, target: Target) -> Mapping[str, str]:
        if self._fault == "raise in environment":
            raise RuntimeError("no environment today")
        return {}

    def supported(self, subgraphs: Sequence[Subgraph], target: Target) -> Sequence[Refusal | None]:
        if self._fault == "crash in supported":
            ctypes.string_at(1)
        return super().supported(subgraphs, target)

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        match self._fault:
            case "raise":
                raise BackendError("no kernel for this shape")
            case "crash at build":
                ctypes.string_at(1)
            case "hang at build":
                hang()
            case "no kernel at all":
                return None  # type: ignore[return-value]  # as a careless plugin does
            case "leave daemons":
                _leave_daemon()
                os.abort()
        return FaultyKernel(subgraph, _constants(subgraph), self._fault)


class SlowKernel(OddKernel):
    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        bound = super().bind(inputs, outputs, workspace, queue)

        def call() -> object:
            time.sleep(_GOOD_S)
            return bound()

        return call


class FaultyKernel(OddKernel):
    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        match self._do:
            case "raise in bind":
                raise RuntimeError("no binding today")
            case "crash in bind":
                ctypes.string_at(1)
        bound = super().bind(inputs, outputs, workspace, queue)
        if not self._do.startswith("in the whole: "):
            return bound

        def call() -> object:
            global _turns, _last
            _turns += _last is not self
            _last = self
            code = bound()
            if _turns > _TURNS:
                match self._do.removeprefix("in the whole: "):
                    case "crash":
                        ctypes.string_at(1)
                    case "wrong":
                        outputs[0][...] += 1
                    case "raise":
                        raise RuntimeError("no more runs today")
            return code

        return call


def _leave_daemon() -> None:
    for own_session in (False, True):
        daemon = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=own_session
        )
        with open(os.environ[DAEMONS], "a") as file:
            file.write(f"{daemon.pid}\n")


def _constants(subgraph: Subgraph) -> Mapping[str, Array]:
    return {v: subgraph.graph.constants[v] for v in subgraph.constants}


def _channels_last(subgraph: Subgraph, value: str) -> Format:
    type = subgraph.graph.type_of(value)
    return channels_last(type.dtype, type.static_shape)


@hookimpl
def collage_backends() -> Sequence[Backend]:
    return [Good(), Bad()]
