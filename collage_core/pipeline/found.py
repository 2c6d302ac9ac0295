"""How far the steps of one optimization have come."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from collage_core.candidates import Taken
from collage_core.costs.limits import candidate_limit_s
from collage_core.costs.ratio import FEWEST_SITTINGS
from collage_core.costs.record import UNAVAILABLE, CostRecord
from collage_core.costs.rounds import OPEN_LIMIT_S
from collage_core.measuring.bounding import Known
from collage_core.measuring.comparison import Comparison
from collage_core.pipeline.best import BestSoFar
from collage_core.pipeline.budget import Budget
from collage_core.pipeline.effort import Effort
from collage_core.pipeline.memory import Memory
from collage_core.pipeline.proof import COLLAGE, LONGEST_MS, MIX, Single, label_of
from collage_core.pipeline.singles import far_of
from collage_core.placement import Placement
from collage_core.runtime.plan import rounded_on_the_way
from collage_core.search.searcher import SearchResult

__all__ = ["Found"]

_OPENING_SHARE = 0.5
_LEAST_OPENING_S, _LEAST_FIRST_S = 5.0, 30.0
_SLOWEST = 3.0
"""Opening what has not run yet may take a share of the time that is left, so many seconds (more where nothing
has run: there would be no answer), or so many times what the slowest of the others took.
"""

_STARTING_S = 2.0
"""What a process takes to start, in each sitting."""
_CALIBRATED_FROM_S = 90.0
"""Calibrating takes 30 s on two cores: what is left of a budget must be worth it."""
_GROUP_MS, _MATTERS = 0.02, 0.05
"""What a group and its crossings take beside a kernel, about: calibrations have found 0.003 to 0.06. From so
large a share of the whole on, that decides who runs what.
"""
_RUNS_A_SITTING = 4
"""Two rounds, and as many to warm up."""


@dataclass(slots=True)
class Found:
    """How far the steps have come. op_level: None before the search. ran: comparisons, with the placements by
    contender's name. failed: why, by digest, of what failed as a whole. memory: what the next optimization of
    the same will recall; recalled: what an earlier one has left, None for nothing.
    """

    known: Known
    taken: Mapping[str, Taken]
    best: BestSoFar
    op_level: SearchResult | None = None
    singles: tuple[Single, ...] = ()
    failed: dict[str, str] = field(default_factory=dict)
    second_level: SearchResult | None = None
    second_name: str = ""
    ran: list[tuple[Comparison, Mapping[str, Placement]]] = field(default_factory=list)
    search_s: float = 0.0
    calibrated_s: float = 0.0
    memory: Memory = field(default_factory=Memory)
    recalled: Memory | None = None

    def forget(self) -> None:
        """What an earlier optimization has left."""
        self.recalled, self.singles, self.failed = None, (), {}

    @property
    def singles_that_run(self) -> tuple[Single, ...]:
        """All but those that failed as a whole."""
        return tuple(s for s in self.singles if s.placement is None or s.placement.digest not in self.failed)

    def sooner_ran(self, singles: Iterable[Single]) -> tuple[Single, ...]:
        """Of each backend what it does best, as far as is known now; where that is a guess, and something of
        its own has run in an earlier comparison, that.
        """
        opened_s = self.opened_s()
        ran = {s.backend: s for s in self.singles if s.placement and s.placement.digest in opened_s}

        def kept(new: Single) -> Single:
            before, placement = ran.get(new.backend, new), new.placement
            if placement is None or before.placement is None or placement.digest == before.placement.digest:
                return new
            return before if self.known.is_guess(placement) else new

        return tuple(map(kept, singles))

    def failures_of(self, comparison: Comparison, placements: Mapping[str, Placement]) -> Iterator[str]:
        """Why, of what failed as a whole and is not known to. It is kept, and not run again: another try may
        take as long as this one.
        """
        for name, placement in placements.items():
            record = comparison.records[name]
            if not record.ok and record.status != UNAVAILABLE and placement.digest not in self.failed:
                further = self.second_level
                is_further = further is not None and placement.digest == further.placement.digest
                label = label_of(placement, self.singles, self.second_name if is_further else MIX)
                self.failed[placement.digest] = f"{label}: {record.reason}"
                yield self.failed[placement.digest]

    def is_sound(self, placement: Placement) -> bool:
        """Whether nothing is known against it but a lack of time, or of what the machine has."""
        return {"ok", "timeout", UNAVAILABLE}.issuperset(
            comparison.records[name].status
            for comparison, placements in self.ran
            for name, p in placements.items()
            if p.digest == placement.digest
        )

    def every_single(self, ran: Iterable[Single] = ()) -> tuple[Single, ...]:
        """Of each backend that takes part: as it ran, or as far as it has been looked at."""
        known = {s.backend: s for s in self.singles} | {s.backend: s for s in ran if s.placement is not None}
        if self.op_level is None:  # nobody has been asked to do it alone but for a first answer
            for name in self.known.candidates.kinds:
                known.setdefault(name, Single(name, None, alone=True, reason="not tried by itself so far"))
        return tuple(known.values())

    @property
    def has_answer(self) -> bool:
        """Whether anything has run but core's reference alone, be it slower."""
        return any(not {*placement.backends()} <= {self.known.fallback} for placement, _ in self._ok())

    @property
    def is_wrongly_rounded(self) -> bool:
        """Whether the op level's placement rounds, and has failed as a whole."""
        return self.has_failed_rounded(self.mix)

    def has_failed_rounded(self, placement: Placement) -> bool:
        """Whether it has failed as a whole, which rounding may be to blame for."""
        rounds = rounded_on_the_way(self.known.candidates.graph, placement)
        return placement.digest in self.failed and bool(rounds)

    @property
    def mix(self) -> Placement:
        """The op level's own. Only after the search."""
        assert self.op_level is not None
        return self.op_level.placement

    def is_worth_calibrating(self, left_s: float) -> bool:
        """Whether there is so much time, and groups and crossings could take a real share of what the best so
        far takes; always where there is no limit.
        """
        if left_s < _CALIBRATED_FROM_S:
            return False
        took_ms = self.best.took_ms if self.recalled is None else self.recalled.first_ms
        if left_s == math.inf or took_ms is None:
            return True
        return _GROUP_MS * len(self.known.candidates.graph.nodes) >= _MATTERS * took_ms

    def opened_s(self) -> dict[str, float]:
        """What has run as a whole, by digest, and how long it took to open."""
        return {placement.digest: record.seconds or 0.0 for placement, record in self._ok()}

    def to_open_s(self, out: Collection[str]) -> float:
        """What the slowest took to open of what is to be compared, as far as that has run. out: of those who
        are not.
        """
        opened_s = self.opened_s()
        alone = {s.placement.digest for s in self.singles_that_run if s.placement is not None}
        compared = {self.mix.digest, *(alone - {*out})}
        return max((opened_s[d] for d in compared & opened_s.keys()), default=0.0)

    def open_limit_s(self, placements: Iterable[Placement], left_s: float) -> float:
        """What any of these may take to open. What has run is waited for; what has not, no longer than its
        kernels as candidates, a share of the time that is left, and some times what others took.
        """
        opened_s = self.opened_s()
        new = [p for p in placements if p.digest not in opened_s]
        limits_s = [
            len(p.groups) * candidate_limit_s()
            if p.groups and self.known.unknown_kernels(p) == len(p.groups)
            else OPEN_LIMIT_S
            for p in new
        ]
        took_s = max(opened_s.values(), default=0.0)
        least_s = _LEAST_OPENING_S if self.has_answer else min(_LEAST_FIRST_S, candidate_limit_s())
        share_s = max(_OPENING_SHARE * left_s, _SLOWEST * took_s, least_s)
        return round(min(max(limits_s), share_s, OPEN_LIMIT_S), 1) if new else OPEN_LIMIT_S

    def left_out(self, effort: Effort) -> tuple[str, ...]:
        """Digests of backends alone that are not compared: seen to take much longer than something else, or
        never seen, and predicted to take very much longer than the mix. Never what the mix is, too.
        """
        behind = {
            placements[name].digest
            for comparison, placements in self.ran
            for name, loss in comparison.losses().items()
            if math.inf > loss >= effort.behind
        }
        far = far_of(self.singles, self.mix, effort.far) - self.opened_s().keys()
        return tuple(sorted((behind | far) - {self.mix.digest}))

    def out_of_time(self, effort: Effort, budget: Budget) -> tuple[str, ...]:
        """Digests of others that are not, since there is no time for a sitting of all until the choice is to
        be made: the slowest, as they were seen or are predicted. Those of an earlier comparison, if there was
        one.
        """
        if self.recalled is not None and self.recalled.out_of_time is not None:
            return self.recalled.out_of_time
        kept = [self.mix, *([self.best.known.placement] if self.best.known is not None else [])]
        left_s = budget.left_s(effort.choosing_share)
        left_s -= sum(self._to_seat_s(p) for p in {p.digest: p for p in kept}.values())
        seen_ms = {placement.digest: record.median_ms or math.inf for placement, record in self._ok()}
        alone = {s.placement.digest: s.placement for s in self.singles_that_run if s.placement is not None}
        others = [p for d, p in alone.items() if d not in {*self.memory.left_out, *(p.digest for p in kept)}]
        out = []
        for p in sorted(others, key=lambda p: seen_ms.get(p.digest, p.predicted_ms or math.inf)):
            left_s -= self._to_seat_s(p)
            if left_s < 0.0:
                out.append(p.digest)
        return tuple(out)

    def untold_beside(self, chosen: Placement, left_s: float) -> dict[str, Placement]:
        """Backends alone, by label, that had too few sittings beside the chosen placement to tell which is
        faster: as many as may have enough in the time that is left, those who came nearest first. Not what
        failed, nor what takes too long to be run.
        """
        ratios = {
            name: ratio
            for comparison in self.compared(chosen)
            for name in comparison.records
            if (ratio := comparison.ratio(name, COLLAGE)) is not None
        }
        told = {name for name, ratio in ratios.items() if ratio.is_told}
        untold = {
            s.label: s.placement
            for s in self.singles_that_run
            if s.placement is not None
            and s.label not in told
            and s.placement.digest != chosen.digest
            and (s.placement.predicted_ms or 0.0) <= LONGEST_MS
        }
        found: dict[str, Placement] = {}
        left_s -= self.to_sit_s([chosen])
        for label in sorted(untold, key=lambda n: ratios[n].value if n in ratios else math.inf):
            left_s -= self.to_sit_s([untold[label]])
            if left_s < 0.0:
                break
            found[label] = untold[label]
        return found

    def to_sit_s(self, placements: Iterable[Placement]) -> float:
        """What so many sittings of these take that they tell anything."""
        return FEWEST_SITTINGS * math.fsum(map(self._to_seat_s, placements))

    def _ok(self) -> Iterator[tuple[Placement, CostRecord]]:
        """What has run as a whole and was right, comparison by comparison."""
        for comparison, placements in self.ran:
            yield from ((placements[name], r) for name, r in comparison.records.items() if r.ok)

    def _to_seat_s(self, placement: Placement) -> float:
        """What a sitting takes longer for this one. Processes start beside each other, and run in turn."""
        opened_s = self.opened_s()
        one_s = _STARTING_S + opened_s.get(placement.digest, max(opened_s.values(), default=0.0))
        one_s /= max(1, len(os.sched_getaffinity(0)))
        return one_s + _RUNS_A_SITTING * (placement.predicted_ms or 0.0) / 1000

    def compared(self, chosen: Placement) -> tuple[Comparison, ...]:
        """All comparisons, by the names that what is `chosen` and the backends alone have now."""
        singles = {s.label: s.placement.digest for s in self.singles if s.placement is not None}
        kept = {chosen.digest, *singles.values()}

        def named(comparison: Comparison, placements: Mapping[str, Placement]) -> Comparison:
            # What a library was guessed to do best at first, and has another way now, speaks for nothing.
            stale = {n for n, p in placements.items() if n in singles and p.digest not in kept}
            current = replace(
                comparison, records={n: r for n, r in comparison.records.items() if n not in stale}
            )
            return current.renamed(
                {
                    name: COLLAGE if p.digest == chosen.digest else label_of(p, self.singles, MIX)
                    for name, p in placements.items()
                }
            )

        return tuple(named(*ran) for ran in self.ran)
