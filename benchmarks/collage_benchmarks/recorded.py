"""Measuring replayed: costs that were recorded before, in place of a machine, for simulations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from collage_core.backend import Backend
from collage_core.candidates import CandidateSet
from collage_core.costs.database import CostDatabase
from collage_core.costs.job import KernelItem, MeasureItem, MeasureJob
from collage_core.costs.record import CostRecord, Policy
from collage_core.costs.reported import Reported
from collage_core.ir import Graph, Subgraph
from collage_core.measuring.costing import Converter, Costs
from collage_core.measuring.in_place import KernelKey
from collage_core.measuring.ledger import Ledger
from collage_core.measuring.machine import Machine
from collage_core.measuring.progress import Silent
from collage_core.plugins import Registry

__all__ = ["RecordedCosts", "measuring_s", "recorded_ledger"]

_ANYWHERE: Mapping[str, str] = {}
"""Nobody asks where recorded costs were taken."""


class RecordedCosts(Executor):
    """Carries measuring jobs (`reported(run_job, job)`) by looking into `truth`, at once.

    truth: of all candidates of `graph`; KeyError for what it does not hold. kernels, converters: what was
    asked for, in order; where time is over, the ledger keeps less.
    """

    def __init__(self, graph: Graph, truth: Costs) -> None:
        self._graph = graph
        self._truth = truth
        self.kernels: list[KernelKey] = []
        self.converters: list[Converter] = []

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **_: Any) -> Future[Any]:
        job: MeasureJob = arguments[1]
        future: Future[Any] = Future()
        found = [(item.index, self._looked_up(item, job.backend)) for item in job.items]
        future.set_result(Reported(_ANYWHERE, found))
        return future

    def _looked_up(self, item: MeasureItem, backend: str) -> CostRecord:
        if isinstance(item, KernelItem):
            kernel = Subgraph(self._graph, item.nodes).key, str(item.variant), backend
            self.kernels.append(kernel)
            return self._truth.kernels[kernel]
        conversion = self._graph.type_of(item.value), item.source, item.destination
        self.converters.append((conversion, backend))
        return self._truth.conversion_records[conversion][backend]


def measuring_s(costs: Costs) -> float:
    """That all of these took to measure."""
    conversions = (r for records in costs.conversion_records.values() for r in records.values())
    return math.fsum(r.seconds for r in (*costs.kernels.values(), *conversions))


@contextmanager
def recorded_ledger(
    candidates: CandidateSet,
    backends: Mapping[str, Backend],
    recorded: RecordedCosts,
    time_is_over: Callable[[], bool] = lambda: False,
) -> Iterator[Ledger]:
    """A ledger that knows nothing yet, and measures by looking up what was recorded."""
    nowhere: Any = SimpleNamespace(graph_folder=Path(), recording=SimpleNamespace(directory=Path()))
    registry = Registry(entry_points=False)
    with CostDatabase(":memory:") as nothing:
        machine = Machine(backends, candidates.target, nothing, registry, Silent(), recorded)
        with closing(Ledger(machine, nowhere, candidates, Policy(), time_is_over)) as ledger:
            yield ledger
