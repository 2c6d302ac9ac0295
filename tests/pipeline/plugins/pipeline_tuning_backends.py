"""Backends on NumPy for the tests of tuning.

`steady` runs Relu, Neg, Exp and MatMul, each in 12 ms. `trier` runs them, and Relu after MatMul, only as fast
as its tuner has found, which tries four ways a step, each faster than the one before, down to
$COLLAGE_TEST_BEST_MS. $COLLAGE_TEST_TRIER ("crash:Neg") says what else happens when it tunes an operator.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from hanging import hang

from collage_core.backend import (
    Backend,
    BackendInfo,
    BackendKind,
    Bound,
    Kernel,
    Tuned,
    Variant,
    plain_variant,
)
from collage_core.devices import Queue
from collage_core.errors import BackendError, Refusal
from collage_core.folders import user_folder
from collage_core.formats import Array
from collage_core.ir import Subgraph
from collage_core.patterns import BackendPattern, is_op, wildcard
from collage_core.plugins import hookimpl
from collage_core.target import Target

BEST_MS = "COLLAGE_TEST_BEST_MS"
FAULT = "COLLAGE_TEST_TRIER"
STEP_S = "COLLAGE_TEST_STEP_S"
"""How long a step takes."""

STEADY_MS = 12.0
TRIALS_A_STEP = 4
MOST_TRIALS = 40

_COMPUTE: Mapping[str, Callable[..., Array]] = {
    "Relu": lambda x: np.maximum(x, 0),
    "Neg": np.negative,
    "Exp": np.exp,
    "MatMul": np.matmul,
}


class PausingKernel(Kernel):
    def __init__(self, subgraph: Subgraph, pause_ms: float) -> None:
        self._subgraph = subgraph
        self._constants = {v: subgraph.graph.constants[v] for v in subgraph.constants}
        self._pause_ms = pause_ms

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        def call() -> None:
            values = {**self._constants, **dict(zip(self._subgraph.inputs, inputs, strict=True))}
            for node in self._subgraph.nodes:
                values[node.outputs[0]] = _COMPUTE[node.op_type](*(values[v] for v in node.inputs))
            outputs[0][...] = values[self._subgraph.outputs[0]]
            time.sleep(self._pause_ms / 1e3)

        return call


class Steady(Backend):
    name = "steady"

    def info(self) -> BackendInfo:
        return BackendInfo(self.name, BackendKind.OPERATOR, version="1.0", library_version="2.0")

    def patterns(self) -> Sequence[BackendPattern]:
        product = is_op("MatMul")(wildcard(), wildcard())
        single = [is_op(op)(wildcard()) for op in ("Relu", "Neg", "Exp")]
        return [BackendPattern(self.name, p) for p in (*single, product)]

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        return [plain_variant(subgraph)]

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        return PausingKernel(subgraph, STEADY_MS)


class Trier(Steady):
    name = "trier"

    def patterns(self) -> Sequence[BackendPattern]:
        both = is_op("Relu")(is_op("MatMul")(wildcard(), wildcard()))
        return [*super().patterns(), BackendPattern(self.name, both)]

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        tried = _tried_ms(_file(subgraph))
        if not tried:
            return Refusal("nothing is tuned yet", subgraph.nodes[0].name)
        plain = plain_variant(subgraph)
        return [Variant(plain.inputs, plain.outputs, (("pause_ms", str(min(tried))),))]

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        return PausingKernel(subgraph, float(dict(variant.options)["pause_ms"]))

    def tunable(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        if os.environ.get(FAULT) == "nothing is tunable":
            return Refusal("the tuner is on holiday", subgraph.nodes[0].name)
        return [plain_variant(subgraph)]

    def tune(self, subgraph: Subgraph, variant: Variant, target: Target, trials: int) -> Tuned:
        path = _file(subgraph)
        tried = _tried_ms(path)
        if trials > len(tried):
            _misbehave(subgraph.nodes[0].op_type)
            time.sleep(float(os.environ.get(STEP_S, "0")))
        best_ms = float(os.environ.get(BEST_MS, "1"))
        path.parent.mkdir(parents=True, exist_ok=True)
        end = min(trials, len(tried) + TRIALS_A_STEP, MOST_TRIALS)
        with path.open("a") as file:
            for trial in range(len(tried), end):
                file.write(f"{best_ms + 10 / (1 + trial) ** 2}\n")
        tried = _tried_ms(path)
        return Tuned(len(tried), min(tried, default=None), len(tried) >= MOST_TRIALS)


def _misbehave(op_type: str) -> None:
    fault, _, where = os.environ.get(FAULT, "").partition(":")
    if where != op_type:
        return
    match fault:
        case "crash":
            ctypes.string_at(1)
        case "hang":
            hang()
        case "raise":
            raise BackendError("no idea how")
        case "grow":
            hoard = [np.ones(16 << 20, np.uint8) for _ in range(64)]
            time.sleep(60 + len(hoard))


def _file(subgraph: Subgraph) -> Path:
    return user_folder() / "trier" / subgraph.key


def _tried_ms(path: Path) -> list[float]:
    return [float(line) for line in path.read_text().split()] if path.exists() else []


@hookimpl
def collage_backends() -> Sequence[Backend]:
    return [Steady(), Trier()]
