"""Backends on NumPy for the tests of the pipeline.

`left` and `right` are good at different operators, but their kernels bear a grudge: one that runs after
another backend's sleeps, or fails if COLLAGE_TEST_GRUDGE says "fail". `handy` runs any chain of
arithmetic and offers nothing by itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from collage_core.backend import Backend, BackendInfo, BackendKind, Bound, Kernel, Variant, plain_variant
from collage_core.devices import Queue
from collage_core.errors import Refusal
from collage_core.formats import Array
from collage_core.ir import Subgraph
from collage_core.patterns import BackendPattern, is_op, wildcard
from collage_core.plugins import hookimpl
from collage_core.target import Target

_COMPUTE: Mapping[str, Callable[..., Array]] = {
    "Relu": lambda x: np.maximum(x, 0),
    "Neg": np.negative,
    "Abs": np.abs,
    "Exp": np.exp,
    "Add": np.add,
    "Mul": np.multiply,
}
_GOOD_MS, _BAD_MS, _GRUDGE_MS = 1.0, 3.0, 30.0

_last = ""
"""The backend whose kernel has run last in this process."""


class NumpyKernel(Kernel):
    def __init__(self, subgraph: Subgraph, owner: str, pause_ms: float) -> None:
        self._subgraph = subgraph
        self._constants = {v: subgraph.graph.constants[v] for v in subgraph.constants}
        self._owner = owner
        self._pause_ms = pause_ms

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        def call() -> int:
            values = {**self._constants, **dict(zip(self._subgraph.inputs, inputs, strict=True))}
            for node in self._subgraph.nodes:
                values[node.outputs[0]] = _COMPUTE[node.op_type](*(values[v] for v in node.inputs))
            for name, output in zip(self._subgraph.outputs, outputs, strict=True):
                output[...] = values[name]
            return self._linger()

        return call

    def _linger(self) -> int:
        global _last
        disturbed, _last = _last not in ("", self._owner), self._owner
        if disturbed and os.environ.get("COLLAGE_TEST_GRUDGE") == "fail":
            return 13
        time.sleep((self._pause_ms + disturbed * _GRUDGE_MS) / 1e3)
        return 0


class GrudgeBackend(Backend):
    def __init__(self, name: str, good: Sequence[str], bad: Sequence[str]) -> None:
        self.name = name
        self._good, self._bad = good, bad

    def info(self) -> BackendInfo:
        return BackendInfo(self.name, BackendKind.OPERATOR, version="1.0", library_version="2.0")

    def patterns(self) -> Sequence[BackendPattern]:
        return [BackendPattern(self.name, is_op(op)(wildcard()), op) for op in (*self._good, *self._bad)]

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        return [plain_variant(subgraph)]

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        (node,) = subgraph.nodes
        return NumpyKernel(subgraph, self.name, _GOOD_MS if node.op_type in self._good else _BAD_MS)


class HandyBackend(Backend):
    name = "handy"

    def info(self) -> BackendInfo:
        return BackendInfo(self.name, BackendKind.OPERATOR, version="1.0", library_version=None)

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        unknown = [n for n in subgraph.nodes if n.op_type not in _COMPUTE]
        if unknown:
            return Refusal(f"no arithmetic: {unknown[0].op_type}", unknown[0].name)
        return [plain_variant(subgraph)]

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        return NumpyKernel(subgraph, self.name, _GOOD_MS)


@hookimpl
def collage_backends() -> Sequence[Backend]:
    left = GrudgeBackend("left", ["Relu", "Abs"], ["Neg"])
    right = GrudgeBackend("right", ["Neg", "Exp"], ["Relu"])
    return [left, right, HandyBackend()]
