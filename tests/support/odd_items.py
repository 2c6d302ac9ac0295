"""What a backend is asked to measure that does as it is told, right or wrong."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

from collage_core.backend import Variant, plain_variant
from collage_core.costs import CostRecord, KernelItem, MeasureJob, Policy, run_job
from collage_core.costs.job import MeasureItem
from collage_core.ir import Graph, Subgraph
from collage_core.target import Target

__all__ = ["PLUGIN", "QUICK", "item", "measured"]

QUICK = Policy(warmup_runs=1, min_runs=3, max_runs=5, max_seconds=0.1)
"""No more runs than it takes to see that something runs."""
PLUGIN = "costs_odd_backend"
"""Where that backend is: in tests/costs/plugins."""


def item(graph: Graph, index: int, name: str, do: str = "right") -> MeasureItem:
    """The kernel of the node of this name, which does as it is told."""
    ids = (graph.node_named(name).id,)
    formats = plain_variant(Subgraph(graph, ids))
    return KernelItem(index, ids, Variant(formats.inputs, formats.outputs, (("do", do),)))


def measured(
    stored: tuple[Graph, Path, Path], items: Sequence[MeasureItem], limit_s: float = 120.0
) -> dict[int, CostRecord]:
    """What one job finds of the items, by their numbers; `stored` is the fixture of that name."""
    _, graph_path, values_path = stored
    job = MeasureJob(
        graph_path, values_path, "Odd", Target(), QUICK, tuple(items), (PLUGIN,), item_limit_s=limit_s
    )
    assert len(pickle.dumps(job)) < 10_000
    seen: list[int] = []
    records = run_job(job, lambda index, _: seen.append(index))
    assert [i for i, _ in records] == [i.index for i in items]
    assert sorted(seen) == sorted(i.index for i in items)
    return dict(records)
