"""End-to-end comparisons of placements and peers, kept in the database like any other cost."""

from __future__ import annotations

import hashlib
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

from collage_core import clock
from collage_core.costs.processors import PATIENCE
from collage_core.costs.ratio import (
    ENOUGH_SITTINGS,
    HOPELESS,
    Ratio,
    losses_of,
    ratio_as_it_came,
    ratio_of,
    ratios_between,
    sittings_of,
    unsettled,
)
from collage_core.costs.record import UNAVAILABLE, CostKey, CostRecord, Policy
from collage_core.costs.rounds import MOST_ROUNDS, OPEN_LIMIT_S, TURN_S, Limits, Rounds
from collage_core.costs.sittings import Sitting
from collage_core.formats import Array
from collage_core.measuring.end_to_end import end_to_end_environment
from collage_core.measuring.entrants import Entrant
from collage_core.measuring.machine import RUNS_PER_TURN, Machine
from collage_core.measuring.progress import Progress

__all__ = ["RUN", "Comparison", "Contest", "Plan", "Unsettled"]

_ROUNDS_PER_SITTING = 2
"""At least: processes differ more than the rounds of one do (docs/adr/0020)."""
RUN = "run"
"""Among the details: what all records of one comparison share."""

CUT_SHORT = "cut_short_by_s"
"""Among the details of a comparison that a limit of time has ended early: this limit in seconds."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long a comparison goes on.

    sittings: that all contenders have, of two rounds or more. rounds_asked: of all sittings together, where
    somebody says so. hopeless: what takes so many times as long as another leaves after the first. goes_on:
    whether those in front sit on until it is settled which one is the fastest. They do while they have sat
    together less than eight times, `most_sittings` at most, and then for `unsettled_s` seconds. patience: see
    `Processors`. most_rounds: of a sitting whose rounds are cheap (`measure_rounds`). most_in_front: so many
    sit on at most, None for all that are not clearly behind.
    """

    sittings: int = 3
    goes_on: bool = True
    most_sittings: int = 12
    unsettled_s: float = 60.0
    hopeless: float = HOPELESS
    patience: float = PATIENCE
    most_rounds: int = MOST_ROUNDS
    most_in_front: int | None = None
    rounds_asked: int | None = None

    @classmethod
    def of_rounds(cls, rounds: int) -> Plan:
        """Everybody has so many rounds, and no more than they allow."""
        return cls(max(1, rounds // _ROUNDS_PER_SITTING), goes_on=False, rounds_asked=rounds)

    @property
    def rounds(self) -> int:
        asked = self.rounds_asked
        return self.sittings * _ROUNDS_PER_SITTING if asked is None else asked

    @property
    def schedule(self) -> Rounds:
        """What all contenders have of it."""
        return Rounds(self.rounds, self.sittings, self.most_rounds, self.hopeless, self.patience)

    def twice(self) -> Plan:
        """Twice as many sittings of everything."""
        asked = self.rounds_asked
        return replace(
            self,
            sittings=max(1, 2 * asked // _ROUNDS_PER_SITTING) if asked else 2 * self.sittings,
            most_sittings=2 * self.most_sittings,
            unsettled_s=2 * self.unsettled_s,
            rounds_asked=None if asked is None else 2 * asked,
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """Records by entrant's name, taken in one run of alternating rounds.

    `record.error` and `record.details["max_abs_error"]` are against the reference on the entrant's own graph,
    where answers were checked. outputs: of each entrant's last run; none when the records come from the
    database. is_kept: there, for the next run. graphs: digests of what each entrant is about; two graphs of
    one model may stand beside each other.
    """

    records: Mapping[str, CostRecord]
    measured: bool
    outputs: Mapping[str, Mapping[str, Array]] = field(default_factory=dict)
    is_kept: bool = True
    graphs: Mapping[str, str] = field(default_factory=dict)

    def median_ms(self, name: str) -> float | None:
        record = self.records.get(name)
        return record.median_ms if record is not None and record.ok else None

    def ratio(self, name: str, other: str) -> Ratio | None:
        """What one takes over what another takes; None where one of them did not run."""
        return ratio_of(self._sittings_of(name), self._sittings_of(other))

    def ratio_as_it_came(self, name: str, other: str) -> Ratio | None:
        """The same from the sittings that ran as they came."""
        return ratio_as_it_came(self._sittings_of(name), self._sittings_of(other))

    def losses(self) -> dict[str, float]:
        """Of each that ran, what it takes over what beats it most takes (`losses_of`)."""
        return losses_of(ratios_between({n: sittings_of(r) for n, r in self.records.items() if r.ok}))

    @property
    def is_cut_short(self) -> bool:
        """Whether a limit of time has ended it, be it when it was recorded."""
        return any(CUT_SHORT in r.details for r in self.records.values())

    def _sittings_of(self, name: str) -> Sequence[Sitting]:
        record = self.records.get(name)
        return () if record is None else sittings_of(record)

    def renamed(self, names: Mapping[str, str]) -> Comparison:
        """The same with other names for some entrants."""
        return replace(
            self,
            records={names.get(n, n): r for n, r in self.records.items()},
            outputs={names.get(n, n): o for n, o in self.outputs.items()},
            graphs={names.get(n, n): g for n, g in self.graphs.items()},
        )


@dataclass(frozen=True, slots=True)
class Contest:
    """Entrants that are to be measured beside each other, all on the same inputs, and for how long.

    title: part of the key: the run that chooses and the run that confirms are two comparisons. is_checked:
    whether each one's answers are held to the reference's on its graph.
    """

    title: str
    entrants: Sequence[Entrant]
    plan: Plan
    is_checked: bool = True

    def recalled(self, machine: Machine, limit_s: float | None = None) -> Comparison | None:
        """The stored comparison of just these; None where there is none. limit_s: of the budget that is left
        for it, None for none; what was cut short is recalled where the budget is no larger.
        """
        known = {name: machine.database.get(key) for name, key in self._keys(machine).items()}
        found = {name: record for name, record in known.items() if record is not None}
        # Of different runs, as where some have been pruned, they do not compare.
        is_one_run = len(found) == len(known) and len({r.details.get(RUN) for r in found.values()}) == 1
        if is_one_run and all(_holds(r, limit_s) for r in found.values()):
            return Comparison(found, measured=False, graphs=self._graphs())
        return None

    def run(
        self,
        machine: Machine,
        limits: Limits | None = None,
        limit_s: float | None = None,
    ) -> Comparison:
        """Run them in alternating rounds, and keep what they show. limit_s: of the budget that
        `limits.has_time` tells of, None for none.
        """
        limits = limits or Limits()
        for workspace in [e.workspace for e in self.entrants if self.is_checked]:
            if not workspace.is_recorded:
                machine.progress.phase("running the reference")
                workspace.record()
        machine.progress.phase(self.title, self.plan.rounds)
        is_cut_short = False

        def has_still(seconds: float) -> bool:
            nonlocal is_cut_short
            is_cut_short = is_cut_short or not limits.has_time(seconds)
            return not is_cut_short

        ran = machine.run_in_turns(
            self.entrants,
            self.plan.schedule,
            replace(limits, has_time=has_still),
            is_checked=self.is_checked,
            go_on=Unsettled(self.plan, self.title, machine.progress) if self.plan.goes_on else None,
            on_round=lambda done: machine.progress.step(),
        )
        is_short = (
            limits.open_s is not None
            and limits.open_s < OPEN_LIMIT_S
            and any(r.outcome.timed_out for r in ran.values())
        )
        is_cut_short |= is_short and limit_s is not None
        run: dict[str, object] = {RUN: uuid.uuid4().hex, **({CUT_SHORT: limit_s} if is_cut_short else {})}
        records = {n: replace(r.record, details={**r.record.details, **run}) for n, r in ran.items()}
        # Failures, too, so that they are recalled with the rest; but not where the machine is why.
        statuses = {r.status for r in records.values()}
        is_kept = (is_cut_short or not is_short) and UNAVAILABLE not in statuses
        is_kept &= not statuses <= {"failed", "timeout"}
        if is_kept:
            keys = self._keys(machine)
            for name, record in records.items():
                machine.database.put(keys[name], record)
        outputs = {name: r.outcome.outputs for name, r in ran.items()}
        return Comparison(records, True, outputs, is_kept, self._graphs())

    def _graphs(self) -> dict[str, str]:
        return {e.name: e.workspace.graph_digest for e in self.entrants}

    def _keys(self, machine: Machine) -> dict[str, CostKey]:
        """By entrant's name."""
        facts = [
            self.title,
            f"{self.plan}; one sitting in three as it comes; started in changing order",
            f"turns of {TURN_S} s, each counts alike",
            str(machine.target),
            *sorted(e.key for e in self.entrants),
        ]
        structure = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]
        runs = self.plan.rounds * RUNS_PER_TURN
        policy = Policy(warmup_runs=1, min_runs=runs, max_runs=runs)
        here = end_to_end_environment(machine.target, machine.registry)
        return {
            e.name: CostKey("end_to_end", structure, self.title, e.name, here, policy) for e in self.entrants
        }


class Unsettled:
    """Who a comparison goes on with; it says so once they have sat together often enough, and are close.

    clock: seconds, from anywhere.
    """

    def __init__(
        self,
        plan: Plan,
        title: str,
        progress: Progress,
        clock: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._plan, self._title, self._progress = plan, title, progress
        self._clock = clock
        self._end_s: float | None = None

    def __call__(self, sittings: Mapping[str, Sequence[Sitting]]) -> set[str]:
        names = unsettled(sittings, self._plan.most_in_front)
        if not names:
            return set()
        plan = self._plan
        together = min(sum(bool(s.turns) for s in sittings[n]) for n in names)
        ratios = [ratio_of(sittings[n], sittings[o]) for n, o in combinations(sorted(names), 2)]
        fewest = min((r.sittings for r in ratios if r is not None), default=0)
        if fewest < ENOUGH_SITTINGS * plan.sittings // 3 and together < plan.most_sittings:
            return names
        if self._end_s is None:
            self._end_s = self._clock() + plan.unsettled_s
            if 0.0 < plan.unsettled_s < math.inf:
                self._progress.note(
                    f"{self._title}: {', '.join(sorted(names))} are too close to call, "
                    f"going on for some {plan.unsettled_s:g} s, while there is time"
                )
        return names if self._clock() < self._end_s else set()


def _holds(record: CostRecord, limit_s: float | None) -> bool:
    """Whether it was not cut short, or by a limit that is no smaller than this one."""
    ended_s: Any = record.details.get(CUT_SHORT, math.inf)
    return ended_s is not None and (math.inf if limit_s is None else limit_s) <= float(ended_s)
