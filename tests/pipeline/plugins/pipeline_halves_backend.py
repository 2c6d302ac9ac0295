"""A backend on NumPy that stores its results as float16, or bfloat16 where that is allowed, and is fast then.

Its Exp is off by 5 % in float16 and by 20 % in bfloat16, which is more than even those allow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from collage_core.backend import Backend, BackendInfo, BackendKind, Bound, Kernel, Variant, plain_variant
from collage_core.devices import Queue
from collage_core.errors import Refusal
from collage_core.formats import Array, Format, plain
from collage_core.ir import Subgraph
from collage_core.patterns import BackendPattern, is_op, wildcard
from collage_core.plugins import hookimpl
from collage_core.target import Target

_OFF_BY: Mapping[str, float] = {"float16": 1.05, "bfloat16": 1.2}
_COMPUTE: Mapping[str, Callable[[Array], Array]] = {
    "Relu": lambda x: np.maximum(x, 0),
    "Neg": np.negative,
    "Abs": np.abs,
    "Exp": lambda x: np.exp(x) * _OFF_BY.get(x.dtype.name, 1.0),
}
_PAUSE_S = {"float32": 3e-3, "float16": 1e-3, "bfloat16": 1e-3}


class HalvesKernel(Kernel):
    def __init__(self, op_type: str, dtype: str) -> None:
        self._compute, self._pause_s = _COMPUTE[op_type], _PAUSE_S[dtype]

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        def call() -> None:
            outputs[0][...] = self._compute(inputs[0])
            time.sleep(self._pause_s)

        return call


class HalvesBackend(Backend):
    name = "halves"

    def info(self) -> BackendInfo:
        return BackendInfo(self.name, BackendKind.OPERATOR, version="1.0", library_version=None)

    def patterns(self) -> Sequence[BackendPattern]:
        return [BackendPattern(self.name, is_op(op)(wildcard())) for op in _COMPUTE]

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        shape = subgraph.graph.shape_of(subgraph.outputs[0])
        # The first is offered in any case: core leaves out what the target does not allow.
        halves = [plain(d, shape) for d in _OFF_BY if d == "float16" or d in target.precisions]
        return [plain_variant(subgraph), *(Variant((half,), (half,)) for half in halves)]

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        formats: Sequence[Format] = variant.outputs
        return HalvesKernel(subgraph.nodes[0].op_type, formats[0].dtype)


@hookimpl
def collage_backends() -> Sequence[Backend]:
    return [HalvesBackend()]
