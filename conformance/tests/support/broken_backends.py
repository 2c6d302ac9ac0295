"""A backend that is right, and others with one fault each, named after the check that should find it."""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from collage_core.backend import Backend, BackendInfo, BackendKind, Bound, Kernel, Variant, plain_variant
from collage_core.devices import Queue
from collage_core.errors import DeclinedError, Refusal
from collage_core.formats import Array
from collage_core.ir import Subgraph
from collage_core.patterns import BackendPattern, is_op, wildcard
from collage_core.plugins import hookimpl
from collage_core.target import Target

LEFT_BEHIND: list[Any] = []
LAST_CALL_S = [0.0]
OVER = threading.Event()
_POOL = ThreadPoolExecutor(4)
_LARGE = np.ones(1 << 20, np.float32)
_FUNCTIONS: dict[str, Callable[..., object]] = {
    "Abs": np.abs,
    "Ceil": np.ceil,
    "Cos": np.cos,
    "Exp": np.exp,
    "Floor": np.floor,
    "Neg": np.negative,
    "Relu": lambda given, out: np.maximum(given, 0, out=out),
    "Sign": np.sign,
    "Sin": np.sin,
}


class Sound(Backend):
    name = "sound"
    library_version = "1.0"

    def info(self) -> BackendInfo:
        return BackendInfo(self.name, BackendKind.OPERATOR, "0.1.0", self.library_version)

    def patterns(self) -> Sequence[BackendPattern]:
        return [BackendPattern(self.name, is_op(op)(wildcard())) for op in _FUNCTIONS]

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        (*others, node) = subgraph.nodes
        if others or node.qualified_op not in _FUNCTIONS or not subgraph.inputs:
            return Refusal("it computes single elementwise operators", node.name)
        if subgraph.graph.type_of(subgraph.outputs[0]).dtype != "float32":
            return Refusal("it computes in float32", node.name)
        return [plain_variant(subgraph)]

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        return ElementwiseKernel(_FUNCTIONS[subgraph.nodes[0].op_type], self.call)

    @staticmethod
    def call(function: Callable[..., object], given: Array, result: Array) -> None:
        function(given, out=result)


class ElementwiseKernel(Kernel):
    def __init__(self, function: Callable[..., object], call: Callable[..., None]) -> None:
        self._function, self._call = function, call

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        return lambda: self._call(self._function, inputs[0], outputs[0])


class Discovery(Sound):
    """Loads a library when it is asked what it offers."""

    name = "discovery"

    def patterns(self) -> Sequence[BackendPattern]:
        ctypes.CDLL("libanl.so.1")
        return super().patterns()


class Declarations(Sound):
    """Its patterns are somebody else's."""

    name = "declarations"

    def patterns(self) -> Sequence[BackendPattern]:
        return [BackendPattern("sound", p.pattern) for p in super().patterns()]


class Declines(Sound):
    """Raises where it should say why not."""

    name = "declines"

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        if subgraph.nodes[0].op_type == "Conv":
            raise KeyError("Conv")
        return super().variants(subgraph, target)


class OnesAlone(Sound):
    """Is wrong where all of three dimensions are 1."""

    name = "onesalone"

    @staticmethod
    def call(function: Callable[..., object], given: Array, result: Array) -> None:
        function(given, out=result)
        if result.shape == (1, 1, 1):
            result += 1


class OperatorAlone(Sound):
    """Leaves a scalar as it found it."""

    name = "operator"

    @staticmethod
    def call(function: Callable[..., object], given: Array, result: Array) -> None:
        if result.ndim:
            function(given, out=result)


class Chain(Sound):
    """Is wrong within a larger graph."""

    name = "chain"

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        if len(subgraph.graph.nodes) > 3:
            return ElementwiseKernel(np.square, self.call)
        return super().build(subgraph, variant, target)


class Growth(Sound):
    """Keeps what it has built."""

    name = "growth"

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        LEFT_BEHIND.append(np.ones(1 << 14, np.float64))
        return super().build(subgraph, variant, target)


class OpensFiles(Sound):
    """And closes none, however often it builds."""

    name = "opensfiles"

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        os.open(os.devnull, os.O_RDONLY)
        return super().build(subgraph, variant, target)


class StartsThreads(Sound):
    """One for each kernel, which waits for ever."""

    name = "startsthreads"

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        threading.Thread(target=OVER.wait, daemon=True).start()
        return super().build(subgraph, variant, target)


class Meddles(Sound):
    """With whatever a process has."""

    name = "meddles"

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        signal.setitimer(signal.ITIMER_REAL, 3600.0)
        warnings.simplefilter("ignore")
        sys.path.append("/nowhere")
        logging.root.setLevel(logging.CRITICAL)
        sys.excepthook = lambda kind, error, trace: None
        sys.setrecursionlimit(5000)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.nice(1)
        tempfile.mkstemp()
        return super().build(subgraph, variant, target)


class StartsProcesses(Sound):
    """One, which outlives it."""

    name = "startsprocesses"

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        if not LEFT_BEHIND:
            LEFT_BEHIND.append(subprocess.Popen(["sleep", "300"]))
        return super().build(subgraph, variant, target)


class Threads(Sound):
    """Runs on two threads, whatever it is told."""

    name = "threads"

    @staticmethod
    def call(function: Callable[..., object], given: Array, result: Array) -> None:
        list(_POOL.map(np.square, [_LARGE] * 4))
        function(given, out=result)


class Quiet(Sound):
    """Waits for its next call in a loop."""

    name = "quiet"

    @staticmethod
    def call(function: Callable[..., object], given: Array, result: Array) -> None:
        function(given, out=result)
        LAST_CALL_S[0] = time.monotonic()
        if not LEFT_BEHIND:
            LEFT_BEHIND.append(threading.Thread(target=_spin, daemon=True))
            LEFT_BEHIND[0].start()
            atexit.register(_stop)  # a thread within NumPy while Python ends may take the process down


def _stop() -> None:
    OVER.set()
    LEFT_BEHIND[0].join()


def _spin() -> None:
    while not OVER.is_set():
        if 0.02 < time.monotonic() - LAST_CALL_S[0] < 3.0:
            np.square(_LARGE)
        else:
            time.sleep(0.005)


class Manners(Sound):
    """Has a signal handler of its own."""

    name = "manners"

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        signal.signal(signal.SIGUSR2, lambda number, frame: None)
        return super().build(subgraph, variant, target)


class Remembers(Sound):
    """The first answer, whatever is asked next."""

    name = "remembers"

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        return RememberingKernel(_FUNCTIONS[subgraph.nodes[0].op_type])


class RememberingKernel(Kernel):
    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        known: list[Array] = []

        def call() -> None:
            if not known:
                known.append(self._function(inputs[0], out=np.empty_like(inputs[0])))
            np.copyto(outputs[0], known[0])

        return call


class OneContext(Sound):
    """Every context reads the inputs of the one that was bound first."""

    name = "onecontext"

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        return OneContextKernel(_FUNCTIONS[subgraph.nodes[0].op_type], self.call)


class OneContextKernel(ElementwiseKernel):
    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        self._first = getattr(self, "_first", inputs)
        return lambda: self._call(self._function, self._first[0], outputs[0])


class SetsVariables(Sound):
    """In whatever process it builds: Python's own, and the C library's beside Python."""

    name = "setsvariables"

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        os.environ["BROKEN_BY_PYTHON"] = "1"
        ctypes.CDLL(None).setenv(b"BROKEN_BY_C", b"1", 1)
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        return super().build(subgraph, variant, target)


class Rare(Sound):
    """Takes what is in none of the common models."""

    name = "rare"

    def patterns(self) -> Sequence[BackendPattern]:
        return [BackendPattern(self.name, is_op("Ceil")(wildcard()))]

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        if subgraph.nodes[0].op_type != "Ceil":
            return Refusal("it rounds up", subgraph.nodes[0].name)
        return super().variants(subgraph, target)

    def supported(self, groups: Sequence[Subgraph], target: Target) -> Sequence[Refusal | None]:
        """Of what it offers, as core asks."""
        return [{"Ceil": None}[g.nodes[0].op_type] for g in groups]


class RareManners(Manners, Rare):
    name = "raremanners"


class Unable(Sound):
    """Offers what it cannot build."""

    name = "unable"

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        raise DeclinedError("not today")


class Crashing(Sound):
    """Takes the process down."""

    name = "crashing"

    @staticmethod
    def call(function: Callable[..., object], given: Array, result: Array) -> None:
        ctypes.string_at(1)


class Keys(Sound):
    """Calls its library otherwise in each process."""

    name = "keys"
    library_version = str(os.getpid())


class EndToEnd(Sound):
    """Refuses, from a file, what it offers."""

    name = "end_to_end"

    def refusal(self, subgraph: Subgraph, variant: Variant, target: Target) -> Refusal | None:
        return Refusal("not today", subgraph.nodes[0].name)


FAULTY = (
    *(Discovery, Declarations, Declines, OperatorAlone, Chain, Growth, Threads, Quiet, Manners, Keys),
    EndToEnd,
)


@hookimpl
def collage_backends() -> Sequence[Backend]:
    subtly = [Remembers(), OneContext(), SetsVariables(), OnesAlone(), Meddles()]
    leaving = [OpensFiles(), StartsThreads(), StartsProcesses()]
    others = [Rare(), RareManners(), Unable(), Crashing()]
    return [Sound(), *subtly, *leaving, *others, *(kind() for kind in FAULTY)]
