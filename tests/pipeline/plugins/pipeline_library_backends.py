"""An operator library, and a graph library that is slow on single operators and on long chains, and fast on
pairs. It declines Exp, dies when it is asked about Tan and when it builds what holds Cos, and takes long to
build what holds Sin. What takes how long is said in milliseconds at $PIPELINE_PACE 1, on a single thread
$PIPELINE_ALONE times that.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import numpy as np

from collage_core import hookimpl, is_op, plain_variant, wildcard
from collage_core.backend import Backend, BackendInfo, BackendKind, Bound, Kernel, Variant
from collage_core.devices import Queue
from collage_core.errors import Refusal
from collage_core.formats import Array
from collage_core.ir import Subgraph
from collage_core.patterns import BackendPattern
from collage_core.search.op_level import OpLevelSearch
from collage_core.search.searcher import SearchResult, SearchTask
from collage_core.target import Target

OPERATOR_MS = 4.0
SINGLE_MS, PAIR_MS, LONG_MS = 6.0, 4.0, 7.0
"""Of a single operator, of a pair, and of each operator of anything longer."""

_FUNCTIONS: dict[str, Callable[..., object]] = {
    "Relu": lambda x, out: np.maximum(x, 0, out=out),
    "Neg": np.negative,
    "Abs": np.abs,
    "Exp": np.exp,
    "Tan": np.tan,
    "Sin": np.sin,
    "Cos": np.cos,
}


class _Slow(Kernel):
    """Runs unary operators one after the other, and sleeps until its time is up."""

    def __init__(self, subgraph: Subgraph, target: Target, milliseconds: float) -> None:
        self._functions = [_FUNCTIONS[n.op_type] for n in subgraph.nodes]
        self._seconds = milliseconds / 1000 * float(os.environ.get("PIPELINE_PACE", "1"))
        if target.threads == 1:
            self._seconds *= float(os.environ.get("PIPELINE_ALONE", "1"))

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        (source,), (result,) = inputs, outputs

        def call() -> None:
            until = time.perf_counter() + self._seconds
            value = source
            for function in self._functions:
                function(value, out=result)
                value = result
            time.sleep(max(0.0, until - time.perf_counter()))

        return call


class Operators(Backend):
    name = "operators"

    def info(self) -> BackendInfo:
        return BackendInfo(self.name, BackendKind.OPERATOR, "1", "1")

    def patterns(self) -> Sequence[BackendPattern]:
        return [BackendPattern(self.name, is_op(op)(wildcard())) for op in _FUNCTIONS]

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        return [plain_variant(subgraph)]

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        return _Slow(subgraph, target, OPERATOR_MS)


class Pairs(Backend):
    name = "pairs"

    def info(self) -> BackendInfo:
        return BackendInfo(self.name, BackendKind.GRAPH, "1", "1")

    def supported(self, subgraphs: Sequence[Subgraph], target: Target) -> Sequence[Refusal | None]:
        answers: list[Refusal | None] = []
        for subgraph in subgraphs:
            ops = {n.op_type for n in subgraph.nodes}
            if "Tan" in ops:
                os.abort()
            answers.append(Refusal("it has no Exp", subgraph.nodes[0].name) if "Exp" in ops else None)
        return answers

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        return [plain_variant(subgraph)]

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        ops = {n.op_type for n in subgraph.nodes}
        if "Sin" in ops:
            time.sleep(3600)
        if "Cos" in ops:
            os.abort()
        size = len(subgraph.nodes)
        return _Slow(subgraph, target, {1: SINGLE_MS, 2: PAIR_MS}.get(size, LONG_MS * size))


class Backwards:
    """A search that a plugin brings: the op level's answer, and a note of what it was given."""

    name = "backwards"

    def search(self, task: SearchTask) -> SearchResult:
        found = OpLevelSearch().search(task)
        assert task.measure is not None
        (record,) = task.measure([found.placement])
        return SearchResult(found.placement, None, {"stopped_by": "itself", "first_ms": record.median_ms})


@hookimpl
def collage_backends() -> Sequence[Backend]:
    return [Operators(), Pairs()]


@hookimpl
def collage_searchers() -> Sequence[Backwards]:
    return [Backwards()]
