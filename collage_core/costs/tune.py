"""Tuning kernels in a supervised worker: a tuner that crashes, hangs or grows costs the kernel it was at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from collage_core.backend import Backend, Tuned, Variant
from collage_core.costs.limits import candidate_limit_s, worker_memory_bytes
from collage_core.costs.lock import measuring_lock
from collage_core.device import Target
from collage_core.ir import Graph, Subgraph, load_stored
from collage_core.plugins import default_registry
from collage_core.worker import Worker, child_state

__all__ = ["Tuner"]

_STEP_LIMIT = 5
"""How many candidates' time one call of `Backend.tune` may take."""


@dataclass(frozen=True, slots=True)
class _Step:
    graph_path: Path
    backend: str
    target: Target
    nodes: tuple[int, ...]
    outputs: tuple[str, ...]
    variant: Variant
    trials: int


class Tuner:
    """One backend's tuner for kernels of a stored graph (`ir.save_stored`), in a worker that lives from one
    kernel to the next as long as it does well. plugins: modules that bring backends besides the installed
    packages.
    """

    def __init__(self, graph_path: Path, backend: Backend, target: Target, plugins: Sequence[str]) -> None:
        self._graph_path = graph_path
        self._backend = backend
        self._target = target
        self._plugins = tuple(plugins)
        self._worker: Worker | None = None

    def step(
        self, subgraph: Subgraph, variant: Variant, trials: int, on_wait: Callable[[str], object]
    ) -> Tuned:
        """One call of `Backend.tune`, with the machine's measuring lock held (`on_wait`: see there).

        WorkerError says why it failed, after which the next call gets a new worker.
        """
        nodes = tuple(n.id for n in subgraph.nodes)
        outputs = subgraph.outputs
        step = _Step(self._graph_path, self._backend.name, self._target, nodes, outputs, variant, trials)
        with measuring_lock(on_wait):
            try:
                return self._ready().call(_tune, step, timeout_s=_STEP_LIMIT * candidate_limit_s())
            except BaseException:
                self.close()
                raise

    def _ready(self) -> Worker:
        if self._worker is None or not self._worker.alive:
            self._worker = Worker(
                self._backend.environment(self._target),
                plugins=self._plugins,
                memory_limit_bytes=worker_memory_bytes(),
            )
        return self._worker

    def close(self) -> None:
        """End the worker, and what it has started."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _tune(step: _Step) -> Tuned:
    key = f"graph to tune {step.graph_path}"
    graph: Graph = child_state.get(key) or load_stored(step.graph_path)
    child_state[key] = graph
    backend = default_registry().backend(step.backend)
    tuned = backend.tune(Subgraph(graph, step.nodes, step.outputs), step.variant, step.target, step.trials)
    if not isinstance(tuned, Tuned):
        raise TypeError(f"tune returned {tuned!r}, which is no Tuned")
    return tuned
