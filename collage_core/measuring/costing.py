"""Costs of candidates and of the conversions between them, as far as they are known."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from collage_core.candidates import Candidate
from collage_core.costs.record import UNAVAILABLE, CostRecord
from collage_core.ir import Graph
from collage_core.measuring.in_place import InPlace, KernelKey, conversion_key, kernel_key
from collage_core.placement import VIEW, Conversion, Group, Placement, is_transfer
from collage_core.search.formulate import ConversionKey, terms_ms
from collage_core.search.transitions import Transitions

__all__ = ["Converter", "Costs"]

Converter = tuple[ConversionKey, str]
"""A conversion, and the backend that offers it."""

_UNKNOWN = CostRecord(UNAVAILABLE)


@dataclass(slots=True)
class Costs:
    """What is known about every candidate, and the cheapest way to convert each type between each pair of
    formats.
    """

    kernels: dict[KernelKey, CostRecord]
    """As measured alone."""
    conversion_records: dict[ConversionKey, dict[str, CostRecord]]
    """The same, of every backend that offers the conversion."""
    measured: int = 0
    """How many were taken now."""
    cached: int = 0
    """How many were found in the database."""
    measure_s: float = 0.0
    """Seconds spent measuring."""
    in_place: InPlace = field(default_factory=InPlace)
    """How executables correct them."""
    transitions: Transitions = field(default_factory=Transitions)
    """What groups and crossings add."""
    kernel_bounds_ms: dict[KernelKey, float] = field(default_factory=dict)
    converter_bounds_ms: dict[Converter, float] = field(default_factory=dict)
    """Of those without a record, what they will not cost less than, as far as is known (`Estimates`)."""

    def record_of(self, candidate: Candidate) -> CostRecord | None:
        """As far as is known, what it costs in an executable; of what has no record, its bound."""
        return self._record_of(candidate.kernel_key)

    def _record_of(self, key: KernelKey) -> CostRecord | None:
        record = self.kernels.get(key) or _bound(self.kernel_bounds_ms.get(key))
        return None if record is None else self.in_place.kernel(key, record)

    def forget_bounds(self) -> None:
        """What has been measured stays, and nothing else."""
        self.kernel_bounds_ms, self.converter_bounds_ms = {}, {}

    def priced(self, graph: Graph, placement: Placement) -> Placement:
        """A placement at these costs, whatever costs it was found with. Where one of its parts has none (a
        group may run in the whole but not by itself) nothing is predicted of the whole.
        """
        groups = tuple(self._priced_group(graph, g) for g in placement.groups)
        conversions = tuple(self._priced_conversion(graph, c) for c in placement.conversions)
        priced = replace(placement, groups=groups, conversions=conversions, predicted_ms=None, terms_ms={})
        if any(g.cost_ms is None for g in groups) or any(c.cost_ms is None for c in conversions):
            return priced
        found_ms = terms_ms(graph, priced, self.transitions)
        return replace(priced, predicted_ms=math.fsum(found_ms.values()), terms_ms=found_ms)

    def _priced_group(self, graph: Graph, group: Group) -> Group:
        if group.backend == VIEW:
            return replace(group, cost_ms=0.0, spread_ms=0.0)
        record = self._record_of(kernel_key(graph, group)) or _UNKNOWN
        return replace(group, cost_ms=record.median_ms, spread_ms=record.spread_ms)

    def _priced_conversion(self, graph: Graph, conversion: Conversion) -> Conversion:
        key, backend = conversion_key(graph, conversion), conversion.backend
        alone = self.conversion_records.get(key, {}).get(backend, _UNKNOWN)
        return replace(conversion, cost_ms=self.in_place.conversion(key, backend, alone).median_ms)

    def add(self, more: Costs) -> None:
        """What has been measured or looked up since."""
        self.kernels |= more.kernels
        self.conversion_records |= more.conversion_records
        self.measured += more.measured
        self.cached += more.cached
        self.measure_s += more.measure_s

    def converters(self, backends: Iterable[str] | None = None) -> dict[ConversionKey, tuple[str, float]]:
        """For each possible conversion the backend (of those named, or of all) that is cheapest in an
        executable, and its own cost in ms.
        """
        allowed = None if backends is None else set(backends)
        result = {}
        offered: dict[ConversionKey, dict[str, CostRecord]] = {
            key: dict(records) for key, records in self.conversion_records.items()
        }
        for (key, b), bound_ms in self.converter_bounds_ms.items():
            offered.setdefault(key, {}).setdefault(b, CostRecord("ok", bound_ms))
        for key, records in offered.items():
            offers = [
                (self.transitions.in_executable_ms(b, r.median_ms), b, r.median_ms)
                for b, alone in records.items()
                if (r := self.in_place.conversion(key, b, alone)).ok
                and r.median_ms is not None
                and (allowed is None or b in allowed or is_transfer(b))
            ]
            if offers:
                _, backend, cost_ms = min(offers)
                result[key] = (backend, cost_ms)
        return result


def _bound(bound_ms: float | None) -> CostRecord | None:
    return None if bound_ms is None else CostRecord("ok", bound_ms)
