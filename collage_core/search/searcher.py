"""What every search is given, what it returns, and the interface that they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from collage_core.candidates import Candidate, CandidateSet
from collage_core.costs.record import CostRecord
from collage_core.ir import NodeSet
from collage_core.placement import Placement
from collage_core.search.formulate import ConversionKey, Formulation, formulate
from collage_core.search.penalties import Penalties
from collage_core.search.problem import Solution
from collage_core.search.transitions import Transitions

__all__ = ["SearchResult", "SearchTask", "Searcher"]


def _nothing(backend: str, nodes: NodeSet) -> Sequence[Candidate]:
    return ()


@dataclass(frozen=True, slots=True)
class SearchTask:
    """A graph to place, and what may be asked of the machine meanwhile.

    candidates: all that backends offer; cost_of: what one costs, None where it has no record. converters: for
    each possible conversion the cheapest backend and its cost in ms. transitions: see there. penalties: what
    rounding costs beside; nothing where None.

    op_level: what the op level found of it, None where it was not asked.

    offer: further candidates of a backend for any connected nodes, none where it declines; of graph libraries
    above all. measure: runs placements end to end and returns a record for each, in order, recalled where
    it was measured before; None where nothing may be run. Records of one task compare with each other, taken
    in whatever batches; a placement that cannot be built or answers wrongly has one that says so.

    budget_s: seconds that measuring may take, None for no limit: the sum of the records' own `seconds`, so
    that a search from recorded costs ends where the first one did. seed: of whatever the search leaves to
    chance. on_best: told the best latency so far, in ms, after each step.
    """

    candidates: CandidateSet
    cost_of: Callable[[Candidate], CostRecord | None]
    converters: Mapping[ConversionKey, tuple[str, float]]
    transitions: Transitions = field(default_factory=Transitions)
    op_level: SearchResult | None = None
    offer: Callable[[str, NodeSet], Sequence[Candidate]] = _nothing
    measure: Callable[[Sequence[Placement]], Sequence[CostRecord]] | None = None
    budget_s: float | None = None
    seed: int = 0
    on_best: Callable[[float], object] = lambda ms: None
    penalties: Penalties | None = None

    def formulate(self) -> Formulation:
        """The task as plain numbers; PlacementError names a node that no feasible candidate covers."""
        return formulate(self.candidates, self.cost_of, self.converters, self.transitions, self.penalties)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """placement: the best found. solution: what the numbers say of it, None where the search has no such
    numbers. history: JSON values that say how it was found, kept in the report.
    """

    placement: Placement
    solution: Solution | None = None
    history: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Searcher(Protocol):
    """Anything that finds a placement. A researcher's own search is this one method, and a name by which
    `collage optimize --level NAME` finds it (`hookspecs.collage_searchers`).
    """

    name: str

    def search(self, task: SearchTask) -> SearchResult:
        """A legal placement of the task's graph. Raises PlacementError where there is none."""
        ...
