"""What an optimization has found, so far or in the end."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from collage_core.candidates import CandidateSet, Constraints
from collage_core.costs.roofline import Peaks
from collage_core.ir import Graph
from collage_core.measuring.comparison import Comparison
from collage_core.measuring.costing import Costs
from collage_core.pipeline.error_limit import Spent
from collage_core.pipeline.original import OriginalCheck
from collage_core.pipeline.proof import Single
from collage_core.pipeline.second_opinion import SecondOpinion
from collage_core.placement import Placement
from collage_core.search.searcher import SearchResult
from collage_core.serving import Serving

__all__ = ["Optimization", "Price", "Stage"]


class Stage(enum.StrEnum):
    """How far a placement has come; the value is for people."""

    SEARCHED = "searched for, not run"
    RUN = "the fastest of those that were run so far"
    CHOSEN = "chosen by a comparison; none has confirmed it"
    CONFIRMED = "confirmed by a comparison that did not choose it"
    GIVEN = "given by hand, and compared with nothing else"


@dataclass(frozen=True, slots=True)
class Price:
    """How much slower, in ms, something that was asked for makes the best placement; None where nobody knows.

    is_least: whether it may be more, for not all that is ruled out was ever measured.
    """

    ms: float | None
    is_least: bool = False


@dataclass(frozen=True, slots=True)
class Optimization:
    """What `optimize` found.

    placement: the fastest in the choosing runs: what a search found, or a single backend's, which also wins
    where no difference can be told. chosen: "mix" (the op level's), the name of the further search, or, where
    one backend runs it all, that single's label. op_level: what the search of measured costs found, with what
    was run to learn costs in place in its history. second_level: what the further search found that was asked
    for, None where none was.
    comparisons: the end-to-end runs, in order: those that teach costs in place, those that choose, and last
    the one that confirms. rejected: what failed or was wrong as a whole, with the reason. beaten_by: what was
    faster when the placement was confirmed, and may be (`Proof`). search_s: the op level's searches alone;
    total_s: everything. original: how the graph compares with the model as it was given, None where a graph
    was. opinion: of the peer that was asked for one. seconds: by phase. counts: of
    kernels and conversions, what became of them. effort: its name. is_cut_short:
    whether the budget has ended it. is_recalled: whether an earlier one of the same had found it all.
    constraints: what the search was asked to keep to, and prices: what that costs (`prices_of`). spent: of
    the error that was allowed, None where nobody has limited it. peaks: of this machine, None where nobody
    had to measure them. serving: how requests that are asked at a time are served; times of comparisons are
    what one of them takes of all then, predictions what it takes of its session. None for one at a time.
    """

    graph: Graph
    placement: Placement
    chosen: str
    singles: tuple[Single, ...]
    candidates: CandidateSet
    costs: Costs
    op_level: SearchResult
    second_level: SearchResult | None
    comparisons: tuple[Comparison, ...]
    rejected: tuple[str, ...]
    beaten_by: tuple[str, ...]
    search_s: float
    total_s: float
    seconds: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    effort: str = ""
    stage: Stage = Stage.CONFIRMED
    is_cut_short: bool = False
    is_recalled: bool = False
    constraints: Constraints = field(default_factory=Constraints)
    prices: Mapping[str, Price] = field(default_factory=dict)
    original: OriginalCheck | None = None
    opinion: SecondOpinion | None = None
    spent: Spent | None = None
    peaks: Peaks | None = None
    serving: Serving | None = None

    @property
    def mix(self) -> Placement:
        """What the search of measured costs found."""
        return self.op_level.placement

    @property
    def comparison(self) -> Comparison | None:
        """The confirmation run, in which `placement` goes by the name "collage"; None when not asked for."""
        return self.comparisons[-1] if self.comparisons else None

    @property
    def rivals(self) -> dict[str, Placement]:
        """What other backends made of the graph on their own, on as many threads, and ran in some comparison,
        by label.
        """
        ran = {name for c in self.comparisons for name, record in c.records.items() if record.ok}
        return {
            s.label: s.placement
            for s in self.singles
            if s.placement is not None and s.label in ran and s.placement.target == self.placement.target
        }
