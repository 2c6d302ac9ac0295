"""What kernels and conversions take in an executable, and what that says of those that were only measured
alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median

from collage_core.costs.record import CostRecord
from collage_core.ir import Graph, Subgraph
from collage_core.placement import VIEW, Conversion, Group, Placement
from collage_core.runtime.plan import schedule
from collage_core.search.formulate import ConversionKey
from collage_core.search.transitions import Transitions

__all__ = ["InPlace", "KernelKey", "Sightings", "conversion_key", "crossings", "kernel_key"]

KernelKey = tuple[str, str, str]
"""Structural key, variant and backend of a kernel: wherever in a graph it stands."""


@dataclass(frozen=True, slots=True)
class InPlace:
    """Corrections of costs that were measured alone.

    kernels_ms and conversions_ms (those by conversion and backend): of what has been seen in executables,
    what it took there beyond groups' and crossings' constants. pace: by backend, what its kernels take in
    place over what they take alone, told by where it runs all that it can; usual_pace: of backends of which
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
        if seen_ms is not None:
            return replace(record, median_ms=seen_ms, spread_ms=None)
        factor = self.pace.get(backend, self.usual_pace)
        return record if factor == 1.0 else replace(record, median_ms=record.median_ms * factor)


def kernel_key(graph: Graph, group: Group) -> KernelKey:
    return Subgraph(graph, group.nodes).key, str(group.variant), group.backend


def conversion_key(graph: Graph, conversion: Conversion) -> ConversionKey:
    return graph.type_of(conversion.value), conversion.source, conversion.destination


def crossings(graph: Graph, placement: Placement) -> Iterator[tuple[Group | Conversion, tuple[str, ...]]]:
    """Of each group and conversion that computes something, in the order of execution, the backends of the
    values that cross with it as first reader. They are what `search.cost.breakdown` counts: once per value
    that some group of another backend reads, and none through views or for conversions.
    """
    home: dict[str, str] = {}
    crossed: set[str] = set()
    for step in schedule(graph, placement):
        part = step.what
        if part.backend == VIEW:
            continue
        left: tuple[str, ...] = ()
        if isinstance(part, Group):
            read = {value for value, _ in step.reads if home.get(value, part.backend) != part.backend}
            left = tuple(sorted(home[value] for value in read - crossed))
            crossed |= read
            home.update((value, part.backend) for value, _ in step.writes)
        yield part, left


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
        """parts_ms: as `ExecutableSession.parts_ms` orders them. fair: whether the placement is one backend's
        (with the reference, maybe), with its costs alone. Where all backends were to choose from, those
        kernels were chosen whose costs are flattered most, which tells nothing of the others' pace.
        """
        took_ms = dict(zip((*placement.groups, *placement.conversions), parts_ms, strict=True))
        group_ms, crossed_ms = self._transitions.group_ms, self._transitions.crossed_ms
        for part, left in crossings(self._graph, placement):
            entering_ms = math.fsum(crossed_ms(source, part.backend) for source in left)
            own_ms = max(0.0, took_ms[part] * scale - group_ms.get(part.backend, 0.0) - entering_ms)
            if isinstance(part, Group):
                self._kernels.setdefault(kernel_key(self._graph, part), []).append(own_ms)
            else:
                conversion = conversion_key(self._graph, part), part.backend
                self._conversions.setdefault(conversion, []).append(own_ms)
            if fair and part.cost_ms is not None:
                own, alone = self._sums_ms.get(part.backend, (0.0, 0.0))
                self._sums_ms[part.backend] = own + own_ms, alone + part.cost_ms

    def in_place(self) -> InPlace:
        """What has been seen so far: means over all places, which add up to what the wholes took."""
        pace = {b: own / alone for b, (own, alone) in self._sums_ms.items() if own and alone}
        return InPlace(
            {key: fmean(seen) for key, seen in self._kernels.items()},
            {key: fmean(seen) for key, seen in self._conversions.items()},
            pace,
            median(pace.values()) if pace else 1.0,
        )
