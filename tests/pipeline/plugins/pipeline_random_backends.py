"""Backends for the tests of random operators. `dice` draws numbers of its own, `loaded` draws none that are
legal, and `sloppy` draws well but computes Relu wrongly.
"""

from __future__ import annotations

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

_random = np.random.default_rng()


def _draw(x: Array) -> Array:
    return _random.uniform(2, 3, x.shape)


class _Kernel(Kernel):
    def __init__(self, compute: Callable[[Array], Array]) -> None:
        self._compute = compute

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        def call() -> None:
            outputs[0][...] = self._compute(inputs[0])

        return call


class RandomBackend(Backend):
    def __init__(self, name: str, compute: Mapping[str, Callable[[Array], Array]]) -> None:
        self.name = name
        self._computed = compute

    def info(self) -> BackendInfo:
        return BackendInfo(self.name, BackendKind.OPERATOR, version="1.0", library_version=None)

    def patterns(self) -> Sequence[BackendPattern]:
        return [BackendPattern(self.name, is_op(op)(wildcard()), op) for op in self._computed]

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        return [plain_variant(subgraph)]

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        (node,) = subgraph.nodes
        return _Kernel(self._computed[node.op_type])


@hookimpl
def collage_backends() -> Sequence[Backend]:
    return [
        RandomBackend("dice", {"RandomUniformLike": _draw, "Relu": lambda x: np.maximum(x, 0)}),
        RandomBackend("loaded", {"RandomUniformLike": lambda x: _draw(x) + 1.5}),
        RandomBackend("sloppy", {"RandomUniformLike": _draw, "Relu": lambda x: np.maximum(x, 0) + 0.1}),
    ]
