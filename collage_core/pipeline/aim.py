"""What one optimization is to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from collage_core.candidates import Constraints
from collage_core.measuring.beside import Load
from collage_core.measuring.machine import Machine
from collage_core.measuring.progress import Timed
from collage_core.measuring.workspace import Workspace
from collage_core.pipeline.budget import Budget
from collage_core.pipeline.effort import Effort
from collage_core.pipeline.error_limit import ErrorLimit
from collage_core.pipeline.optimization import Optimization
from collage_core.search.op_level import OpLevelSearch

__all__ = ["Aim"]


@dataclass(frozen=True, slots=True)
class Aim:
    """The graph of `workspace` is to be placed on `machine`, for so much effort."""

    machine: Machine
    workspace: Workspace
    effort: Effort
    budget: Budget
    constraints: Constraints
    op_search: OpLevelSearch
    timed: Timed
    """The machine's progress, which knows how long each phase took."""
    on_best: Callable[[Optimization], object]
    """Told whenever something was run that is faster than what was the best before, with what is known of
    it.
    """
    limit: ErrorLimit | None = None
    """Of the outputs' error; None where what rounds is held to what rounding alone does."""
    load: Load | None = None
    """With which whatever is run as a whole is measured; a request at a time where None."""

    @property
    def bounds(self) -> bool:
        """Whether bounds say what is measured; an executor measures everything: it can do so at once."""
        return not self.effort.measures_all and self.machine.executor is None
