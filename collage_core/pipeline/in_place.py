"""What kernels and conversions take in an executable, and what that says of those that were only measured
alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from collage_core.costs.record import CostRecord
from collage_core.ir import Graph, Subgraph
from collage_core.placement import VIEW, Conversion, Group, Placement
from collage_core.runtime.plan import Step, schedule
from collage_core.search.formulate import ConversionKey
from collage_core.search.transitions import Transitions

__all__ = ["InPlace", "KernelKey", "Sightings", "StepInPlace", "steps_in_place"]

KernelKey = tuple[str, str, str]
"""Structural key, variant and backend of a kernel: wherever in a graph it stands."""

ALONE = "alone_ms"
"""Among a record's details: its median before it was corrected."""


@dataclass(frozen=True, slots=True)
class StepInPlace:
    """A group or conversion in an executable. backend: which runs it. crossing: how many values it reads that
    another backend has computed. took_ms: what it took there.
    """

    what: Group | Conversion
    backend: str
    crossing: int
    took_ms: float


def steps_in_place(graph: Graph, placement: Placement, parts_ms: Sequence[float]) -> Iterator[StepInPlace]:
    """The steps of a placement but for views. parts_ms: as `ExecutableSession.parts_ms` orders them."""
    parts = (*placement.groups, *placement.conversions)
    took_ms = dict(zip(parts, parts_ms, strict=True))
    home: dict[object, str] = {}
    for step in schedule(graph, placement):
        backend = _home_of(step, home)
        for slot in step.writes:
            home[slot] = backend
        if step.what.backend != VIEW:
            crossing = sum(home.get(slot, backend) not in (backend, VIEW) for slot in step.reads)
            yield StepInPlace(step.what, backend, crossing, took_ms[step.what])


def _home_of(step: Step, home: Mapping[object, str]) -> str:
    """Who has computed what a step writes: of a view, whoever computed what it reads."""
    return home.get(step.reads[0], VIEW) if step.is_view else step.what.backend


@dataclass(frozen=True, slots=True)
class InPlace:
    """Corrections of costs that were measured alone.

    kernels_ms and conversions_ms (those by conversion and backend): of what has been seen in executables,
    what it took there beyond groups' and crossings' constants. pace: by backend, what its kernels take in
    place over what they take alone, told by what it runs without others; usual_pace: of backends of which
    nothing was seen.
    """

    kernels_ms: Mapping[KernelKey, float] = field(default_factory=dict)
    conversions_ms: Mapping[tuple[ConversionKey, str], float] = field(default_factory=dict)
    pace: Mapping[str, float] = field(default_factory=dict)
    usual_pace: float = 1.0

    def kernel(self, key: KernelKey, record: CostRecord) -> CostRecord:
        """The kernel's record, corrected."""
        return self._corrected(record, self.kernels_ms.get(key), key[2])

    def conversion(self, key: ConversionKey, backend: str, record: CostRecord) -> CostRecord:
        """The record of a conversion by a backend, corrected."""
        return self._corrected(record, self.conversions_ms.get((key, backend)), backend)

    def _corrected(self, record: CostRecord, seen_ms: float | None, backend: str) -> CostRecord:
        if not record.ok or record.median_ms is None:
            return record
        if seen_ms is None:
            factor = self.pace.get(backend, self.usual_pace)
            if factor == 1.0:
                return record
            seen_ms = record.median_ms * factor
        return replace(record, median_ms=seen_ms, details={**record.details, ALONE: record.median_ms})


class Sightings:
    """Gathers what parts of placements took in place. Times may come from runs of their own: `scale` brings
    them to the machine's speed in the first one.
    """

    def __init__(self, graph: Graph, transitions: Transitions) -> None:
        self._graph = graph
        self._transitions = transitions
        self._kernels: dict[KernelKey, list[float]] = {}
        self._conversions: dict[tuple[ConversionKey, str], list[float]] = {}
        self._sums_ms: dict[str, tuple[float, float]] = {}

    def add(self, placement: Placement, parts_ms: Sequence[float], scale: float, *, fair: bool) -> None:
        """fair: whether it is one backend's alone. Where all backends were to choose from, those kernels were
        chosen whose costs are flattered most, which tells nothing of the others' pace.
        """
        for step in steps_in_place(self._graph, placement, parts_ms):
            constants_ms = (
                self._transitions.group_ms.get(step.backend, 0.0)
                + step.crossing * self._transitions.crossing_ms
            )
            own_ms = max(0.0, step.took_ms * scale - constants_ms)
            if isinstance(step.what, Group):
                subgraph = Subgraph(self._graph, step.what.nodes)
                kernel = subgraph.key, str(step.what.variant), step.what.backend
                self._kernels.setdefault(kernel, []).append(own_ms)
            else:
                c = step.what
                key = self._graph.type_of(c.value), c.source, c.destination
                self._conversions.setdefault((key, c.backend), []).append(own_ms)
            if fair and step.what.cost_ms is not None:
                own, alone = self._sums_ms.get(step.backend, (0.0, 0.0))
                self._sums_ms[step.backend] = own + own_ms, alone + step.what.cost_ms

    def in_place(self) -> InPlace:
        """What has been seen so far: medians over all places and runs."""
        pace = {b: own / alone for b, (own, alone) in self._sums_ms.items() if own and alone}
        return InPlace(
            {key: median(seen) for key, seen in self._kernels.items()},
            {key: median(seen) for key, seen in self._conversions.items()},
            pace,
            median(pace.values()) if pace else 1.0,
        )
