"""Two operator libraries that become faster, slower or wrong when they are upgraded: $STEADY_VERSION and
$MOVING_VERSION say which version is installed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from collage_core import hookimpl, is_op, plain_variant, wildcard
from collage_core.backend import Backend, BackendInfo, BackendKind, Bound, Kernel, Variant
from collage_core.devices import Queue
from collage_core.errors import Refusal
from collage_core.formats import Array
from collage_core.ir import Subgraph
from collage_core.patterns import BackendPattern
from collage_core.target import Target

WRONG = "wrong"
"""A version whose answers are not right."""

_FUNCTIONS: dict[str, Callable[..., object]] = {
    "Relu": lambda x, out: np.maximum(x, 0, out=out),
    "Neg": np.negative,
}


class _Slow(Kernel):
    """Sleeps until its time is up."""

    def __init__(self, subgraph: Subgraph, milliseconds: float, factor: float) -> None:
        (node,) = subgraph.nodes
        self._function, self._seconds, self._factor = _FUNCTIONS[node.op_type], milliseconds / 1e3, factor

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        (source,), (result,) = inputs, outputs

        def call() -> None:
            until = time.perf_counter() + self._seconds
            self._function(source, out=result)
            result[...] *= self._factor
            time.sleep(max(0.0, until - time.perf_counter()))

        return call


class Upgraded(Backend):
    """times_ms: of an operator, by version."""

    def __init__(self, name: str, times_ms: Mapping[str, float]) -> None:
        self.name = name
        self._times_ms = times_ms

    @property
    def _version(self) -> str:
        return os.environ.get(f"{self.name.upper()}_VERSION", "1.0")

    def info(self) -> BackendInfo:
        return BackendInfo(self.name, BackendKind.OPERATOR, "0.1", self._version)

    def patterns(self) -> Sequence[BackendPattern]:
        return [BackendPattern(self.name, is_op(op)(wildcard())) for op in _FUNCTIONS]

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        return [plain_variant(subgraph)]

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        return _Slow(subgraph, self._times_ms[self._version], 1.5 if self._version == WRONG else 1.0)


@hookimpl
def collage_backends() -> Sequence[Backend]:
    return [
        Upgraded("steady", {"1.0": 6.0, WRONG: 6.0}),
        Upgraded("moving", {"1.0": 12.0, "2.0": 0.3, WRONG: 6.0}),
    ]
