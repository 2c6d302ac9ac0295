"""A worker's side of `bench_compile_ahead.py`."""

from __future__ import annotations

import time

from collage_core.costs import KernelItem, MeasureJob
from collage_core.ir import Subgraph, load_stored
from collage_core.plugins import default_registry

__all__ = ["build_each"]


def build_each(job: MeasureJob) -> float:
    """ms per kernel of building a job's kernels here, one after the other."""
    graph, backend = load_stored(job.graph_path), default_registry().backend(job.backend)
    groups = [(Subgraph(graph, i.nodes), i.variant) for i in job.items if isinstance(i, KernelItem)]
    first, *others = groups
    backend.build(*first, job.target)  # imports the library
    start = time.perf_counter()
    for group, variant in others:
        backend.build(group, variant, job.target)
    return 1e3 * (time.perf_counter() - start) / len(others)
