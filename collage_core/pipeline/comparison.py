"""End-to-end comparisons of placements and peers, kept in the database like any other cost."""

from __future__ import annotations

import hashlib
import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from types import MappingProxyType
from typing import Any

from collage_core.costs.check import Difference, Standard, compare_all
from collage_core.costs.database import CostDatabase
from collage_core.costs.fingerprint import MEASURER_VERSION, device_fingerprint, source_hash
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
from collage_core.costs.rounds import MOST_ROUNDS, OPEN_LIMIT_S, TURN_S, GoOn, measure_rounds
from collage_core.costs.seats import Outcome
from collage_core.costs.sittings import SITTINGS, Sitting, sittings_to_json
from collage_core.device import Target
from collage_core.formats import Array
from collage_core.ir import Graph
from collage_core.ir.digests import graph_digest
from collage_core.pipeline.entrants import Entrant
from collage_core.pipeline.progress import Progress
from collage_core.pipeline.workspace import Workspace

__all__ = [
    "PARTS",
    "RUN",
    "Comparison",
    "Plan",
    "Unsettled",
    "compare",
    "end_to_end_machine",
    "record_of_outcome",
]

_ROUNDS_PER_SITTING = 2
"""At least: processes differ more than the rounds of one do (docs/adr/0020)."""
RUN = "run"
"""Among the details: what all records of one comparison share."""

CUT_SHORT = "cut_short_by_s"
"""Among the details of a comparison that a limit of time has ended early: this limit in seconds."""

PARTS = "parts_ms"
"""Among a record's details: what the parts of a placement took in place (`ExecutableSession.parts_ms`)."""


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

    `record.error` and `record.details["max_abs_error"]` are against the expected outputs, where those were
    given. outputs: of each entrant's last run; none when the records come from the database. is_kept: there,
    for the next run.
    """

    records: Mapping[str, CostRecord]
    measured: bool
    outputs: Mapping[str, Mapping[str, Array]] = field(default_factory=dict)
    is_kept: bool = True

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
        )


def compare(
    graph: Graph,
    entrants: Sequence[Entrant],
    target: Target,
    database: CostDatabase,
    workspace: Workspace,
    progress: Progress,
    *,
    title: str,
    plan: Plan,
    runs_per_round: int = 3,
    fresh: bool = False,
    go_on: GoOn | None = None,
    expected: Callable[[], Mapping[str, Array]] | None = None,
    open_limit_s: float = OPEN_LIMIT_S,
    has_time: Callable[[float], bool] = lambda seconds: True,
    limit_s: float | None = None,
) -> Comparison:
    """Run the entrants in alternating rounds, or recall the stored comparison of just these (unless `fresh`).

    Rounds are run as the plan says. `title` is part of the key: the run that chooses and the run that
    confirms are two comparisons. go_on: who has further sittings, where the plan does not say. `expected`
    gives the outputs to compare with, and is called only if something is run.
    open_limit_s, has_time: see `measure_rounds`. limit_s: of the budget that has_time tells of, None for
    none. What is cut short is recalled where the budget is no larger.
    """
    rounds = plan.rounds
    policy = Policy(warmup_runs=1, min_runs=rounds * runs_per_round, max_runs=rounds * runs_per_round)
    together = sorted(f"{e.name} {e.identity} {sorted(e.environment.items())}" for e in entrants)
    structure = hashlib.sha256(
        "\n".join(
            [
                title,
                f"{plan}; one sitting in three as it comes; started in changing order",
                f"turns of {TURN_S} s, each counts alike",
                graph_digest(graph),
                workspace.inputs_digest,
                str(target),
                *together,
            ]
        ).encode()
    ).hexdigest()[:32]
    machine = end_to_end_machine(target)
    keys = {e.name: CostKey("end_to_end", structure, title, e.name, machine, policy) for e in entrants}
    if not fresh:
        known = {name: database.get(key) for name, key in keys.items()}
        found = {name: record for name, record in known.items() if record is not None}
        # Of different runs, as where some have been pruned, they do not compare.
        is_one_run = len(found) == len(entrants) and len({r.details.get(RUN) for r in found.values()}) == 1
        if is_one_run and all(_holds(r, limit_s) for r in found.values()):
            return Comparison(found, measured=False)
    progress.phase(title, rounds)
    right = expected() if expected else {}
    held_to = {e.name: e.held_to(graph) for e in entrants}
    is_cut_short = False

    def has_still(seconds: float) -> bool:
        nonlocal is_cut_short
        is_cut_short = is_cut_short or not has_time(seconds)
        return not is_cut_short

    going_on = Unsettled(plan, title, progress) if plan.goes_on else None
    outcomes = measure_rounds(
        [e.contender(workspace) for e in entrants],
        rounds,
        runs_per_round,
        sittings=plan.sittings,
        most_rounds=plan.most_rounds,
        hopeless=plan.hopeless,
        patience=plan.patience,
        open_limit_s=open_limit_s,
        go_on=going_on or go_on,
        has_time=has_still,
        on_round=lambda done: progress.step(),
        on_wait=progress.note,
    )
    is_short = open_limit_s < OPEN_LIMIT_S and any(o.timed_out for o in outcomes.values())
    is_cut_short |= is_short and limit_s is not None
    run: dict[str, object] = {RUN: uuid.uuid4().hex, **({CUT_SHORT: limit_s} if is_cut_short else {})}
    told = {name: record_of_outcome(outcome, right, held_to[name]) for name, outcome in outcomes.items()}
    records = {name: replace(r, details={**r.details, **run}) for name, r in told.items()}
    # Failures, too, so that they are recalled with the rest; but not where the machine is why.
    statuses = {r.status for r in records.values()}
    is_kept = (is_cut_short or not is_short) and UNAVAILABLE not in statuses and statuses != {"failed"}
    if is_kept:
        for name, record in records.items():
            database.put(keys[name], record)
    return Comparison(records, True, {name: outcome.outputs for name, outcome in outcomes.items()}, is_kept)


class Unsettled:
    """Who a comparison goes on with; it says so once they have sat together often enough, and are close.

    clock: seconds, from anywhere.
    """

    def __init__(
        self,
        plan: Plan,
        title: str,
        progress: Progress,
        clock: Callable[[], float] = time.monotonic,
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
            if plan.unsettled_s:
                self._progress.note(
                    f"{self._title}: {', '.join(sorted(names))} are too close to call, "
                    f"going on for some {plan.unsettled_s:g} s, while there is time"
                )
        return names if self._clock() < self._end_s else set()


def _holds(record: CostRecord, limit_s: float | None) -> bool:
    """Whether it was not cut short, or by a limit that is no smaller than this one."""
    ended_s: Any = record.details.get(CUT_SHORT, math.inf)
    return ended_s is not None and (math.inf if limit_s is None else limit_s) <= float(ended_s)


def end_to_end_machine(target: Target) -> dict[str, str]:
    """The environment of an end-to-end record's key: machine, threads, and the executables' own code."""
    return {
        **device_fingerprint(target.device),
        "measurer": MEASURER_VERSION,
        "runtime": source_hash("collage_core.runtime"),
        "threads": str(target.threads),
    }


def record_of_outcome(
    outcome: Outcome,
    expected: Mapping[str, Array],
    held_to: Mapping[str, Standard] = MappingProxyType({}),
) -> CostRecord:
    """The outcome as a record; wrong numbers are infeasible, not fast. held_to: see `compare_all`."""
    if outcome.samples is None:
        status = UNAVAILABLE if outcome.unavailable else "failed"
        return CostRecord(status, seconds=outcome.open_s, reason=outcome.reason)
    samples = outcome.samples
    details: dict[str, object] = {
        "times_ms": [round(t, 4) for t in samples.times_ms],
        SITTINGS: sittings_to_json(outcome.sittings),
    }
    difference = compare_all(outcome.outputs, expected, held_to) if expected else Difference(None, None, None)
    if outcome.parts_ms:
        details[PARTS] = [round(t, 6) for t in outcome.parts_ms]
    if difference.absolute is not None:
        details["max_abs_error"] = difference.absolute
    if difference.reason is not None:
        return CostRecord("wrong", error=difference.relative, reason=difference.reason, details=details)
    return CostRecord(
        "ok",
        samples.median_ms,
        samples.spread_ms,
        samples.runs,
        difference.relative,
        outcome.open_s,
        details=details,
    )
