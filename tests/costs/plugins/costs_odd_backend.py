"""A backend on NumPy whose kernels do what the variant's option "do" says: the right thing, or one of many
wrong ones.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from hanging import hang

from collage_core.backend import Backend, BackendInfo, BackendKind, Bound, Kernel, Variant, plain_variant
from collage_core.costs import trial
from collage_core.devices import Queue
from collage_core.errors import BackendError, DeclinedError, Refusal
from collage_core.formats import Array, Format
from collage_core.ir import Subgraph, TensorType
from collage_core.plugins import hookimpl
from collage_core.target import Target

FORBIDDEN = "COLLAGE_TEST_DECLINED"
"""Operator types that `supported` declines, comma-separated; "!" makes it crash in a batch of more than
one.
"""


CRASHING = "COLLAGE_TEST_CRASHING_CONVERSION"
"""Set: building a conversion is a segmentation fault."""

SCALING = "COLLAGE_TEST_SCALING_CONVERSION"
"""Set: what is converted is multiplied on the way."""

HANGING = "COLLAGE_TEST_HANGING"
"""Set: all of its kernels hang."""

LEAKED: list[bytes] = []


class OddBackend(Backend):
    """Runs single Relu, Add, MatMul and Identity nodes."""

    name = "odd"

    def info(self) -> BackendInfo:
        return BackendInfo(self.name, BackendKind.OPERATOR, version="1.0", library_version="2.0")

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        return [plain_variant(subgraph)]

    def supported(self, subgraphs: Sequence[Subgraph], target: Target) -> Sequence[Refusal | None]:
        forbidden = os.environ.get(FORBIDDEN, "")
        if forbidden == "!" and len(subgraphs) > 1:
            os.abort()
        return [
            Refusal("not today", s.nodes[0].name) if s.nodes[0].op_type in forbidden.split(",") else None
            for s in subgraphs
        ]

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        do = "hang" if HANGING in os.environ else dict(variant.options).get("do", "right")
        if do == "raise":
            raise BackendError("no kernel for this shape")
        if do == "decline":
            raise DeclinedError("only a slow kernel for this shape")
        if do == "crash at build":
            ctypes.string_at(1)
        if do == "poison":
            os.environ["COLLAGE_TEST_POISONED"] = "1"
        elif "COLLAGE_TEST_POISONED" in os.environ:
            os.abort()
        constants = {v: subgraph.graph.constants[v] for v in subgraph.constants}
        return OddKernel(subgraph, constants, do)

    def converts(self, type: TensorType, source: Format, destination: Format, target: Target) -> bool:
        return source.dtype == destination.dtype

    def build_conversion(
        self, type: TensorType, source: Format, destination: Format, target: Target
    ) -> Kernel:
        if CRASHING in os.environ:
            ctypes.string_at(1)
        return CopyKernel(1.005 if SCALING in os.environ else 1.0)

    def environment(self, target: Target) -> Mapping[str, str]:
        if os.environ.get("COLLAGE_TEST_ENVIRONMENT") == "raise":
            raise RuntimeError("no licence")
        return {"OPENBLAS_NUM_THREADS": "1", "COLLAGE_TEST_BACKEND": "set"}


class CopyKernel(Kernel):
    def __init__(self, factor: float) -> None:
        self._factor = factor

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        def call() -> None:
            outputs[0][...] = inputs[0] if self._factor == 1.0 else inputs[0].astype(float) * self._factor

        return call


class OddKernel(Kernel):
    def __init__(self, subgraph: Subgraph, constants: Mapping[str, Array], do: str) -> None:
        (self._node,) = subgraph.nodes
        self._names = subgraph.inputs
        self._constants = constants
        self._do = do
        self._calls = 0
        if do == "leak":
            LEAKED.append(b"x" * (300 << 20))
        self.workspace_bytes = 256
        if do == "crash when freed":
            weakref.finalize(self, ctypes.string_at, 1)
        if do in ("alias", "bad alias"):
            self.may_alias = {0: 0}

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        values = {**self._constants, **dict(zip(self._names, inputs, strict=True))}
        operands = [values[v] for v in self._node.inputs]
        output = outputs[0]

        def call() -> object:
            self._calls += 1
            workspace.fill(0xFF)
            if self._do == "bad alias":
                output.fill(0)
            if self._do == "late" or (self._do == "late later" and self._calls > 1):
                if self._do == "late later":
                    # After the timed runs the outputs are watched for 5 ms: who writes later may not be seen.
                    trial._LOOK_EVERY_S = trial._LATE_S
                # Longer than a busy machine keeps the call from returning.
                threading.Timer(0.1, compute, (self._node.op_type, operands, output)).start()
                return 0
            if self._do != "right and then nothing" or self._calls == 1:
                compute(self._node.op_type, operands, output)
            return self._misbehave(inputs, output)

        return call

    def _misbehave(self, inputs: Sequence[Array], output: Array) -> object:
        match self._do:
            case "crash":
                ctypes.string_at(1)
            case "exit":
                os._exit(7)
            case "hang":
                hang()
            case "allocate":
                while True:
                    LEAKED.append(b"x" * (50 << 20))
            case "wrong":
                output *= 1.01
            case "nearly right":
                output *= 1 + 1e-6
            case "nan":
                output.flat[0] = np.nan
            case "write nothing":
                output.fill(np.nan)
            case "change input":
                inputs[0].flat[-1] = 3
            case "overrun":
                ctypes.memset(output.ctypes.data + output.nbytes, 0, 4)
            case "underrun":
                ctypes.memset(inputs[0].ctypes.data - 4, 0, 4)
            case "far overrun":
                ctypes.memset(output.ctypes.data + output.nbytes + 5000, 0, 4)
            case "far underrun later" if self._calls > 3:
                ctypes.memset(inputs[0].ctypes.data - 5000, 0, 4)
            case "far overread":
                ctypes.string_at(output.ctypes.data + output.nbytes + 5000, 4)
            case "change input later" if self._calls > 3:
                inputs[0].flat[-1] = 3
            case "crash later" if self._calls > 3:
                ctypes.string_at(1)
            case "right once" if self._calls > 1:
                output += 1
            case "error code":
                return 42
            case "late error code" if self._calls > 2:
                return 43
            case "print":
                print("a library that talks")
            case "environment" if os.environ.get("COLLAGE_TEST_BACKEND") != "set":
                return 44
            case _:
                pass
        return 0


def compute(op_type: str, operands: Sequence[Array], output: Array) -> None:
    match op_type:
        case "Relu":
            np.maximum(operands[0], 0, out=output)
        case "Add":
            np.add(operands[0], operands[1], out=output)
        case "MatMul":
            np.matmul(operands[0], operands[1], out=output)
        case _:
            output[...] = operands[0]


class Runner:
    """A contender of `measure_rounds`; a line with its name and process id is appended to `log` at every
    run.
    """

    def __init__(self, log: Path | None, name: str, do: str = "", seconds: float = 0.0) -> None:
        if do == "raise at open":
            raise BackendError("cannot load")
        self._log, self._name, self._do, self._seconds = log, name, do, seconds
        self._runs = self._timed = 0

    def run(self) -> None:
        self._runs += 1
        if self._log is not None:
            with self._log.open("a") as file:
                file.write(f"{self._name} {os.getpid()}\n")
        time.sleep(self._seconds)
        if self._do and self._runs > 4:
            match self._do:
                case "crash":
                    ctypes.string_at(1)
                case "raise":
                    raise BackendError("lost the device")
                case "hang":
                    time.sleep(60)

    def parts_ms(self) -> list[float]:
        """The second part takes between 1 and 3, and 1000 once in ten times."""
        self._timed += 1
        return [2.0, 1000.0 if self._timed % 10 == 5 else 1.0 + self._timed % 2 * 2.0]

    def outputs(self) -> dict[str, Array]:
        return {"y": np.array([self._runs])}


def open_runner(log: Path | None, name: str, do: str = "", seconds: float = 0.0) -> Runner:
    return Runner(log, name, do, seconds)


@hookimpl
def collage_backends() -> Sequence[Backend]:
    return [OddBackend()]
