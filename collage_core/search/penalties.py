"""What rounding is worth avoiding: a price on the outputs' error, for a search that knows only time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from collage_core.candidates import Candidate
from collage_core.formats import Format
from collage_core.ir import Graph
from collage_core.rounding import Site, converted_site

__all__ = ["Penalties"]


@dataclass(frozen=True, slots=True)
class Penalties:
    """squared_errors: by place the square of the outputs' error if nothing else is rounded. price_ms: of a
    squared error of 1.

    What is rounded in several places is off by the root of the sum of their squares, about: these errors
    have nothing to do with each other. So their squares add up as times do, and the search that minimises
    time + price x squared error is the same exact one (Lagrange's relaxation of a limit to the error).
    """

    squared_errors: Mapping[Site, float]
    price_ms: float

    def squared_error(self, sites: Iterable[Site]) -> float:
        return math.fsum(self.squared_errors.get(site, 0.0) for site in sites)

    def of(self, candidate: Candidate) -> float:
        """In ms."""
        return self.price_ms * self.squared_error(candidate.rounded_sites)

    def of_conversion(self, graph: Graph, value: str, source: Format, destination: Format) -> float:
        """In ms."""
        site = converted_site(graph, value, source, destination)
        return 0.0 if site is None else self.price_ms * self.squared_errors.get(site, 0.0)
