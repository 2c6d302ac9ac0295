"""Placements of one graph, each measured end to end once, in batches that compare with each other."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from collage_core import clock
from collage_core.costs.limits import candidate_limit_s
from collage_core.costs.lock import measuring_lock
from collage_core.costs.ratio import sittings_of, steady_quotients
from collage_core.costs.record import UNAVAILABLE, UNCERTAINTY, CostKey, CostRecord, Policy
from collage_core.costs.rounds import TURN_S, Limits, Rounds
from collage_core.costs.samples import interquartile_range, median_uncertainty
from collage_core.measuring.beside import Load
from collage_core.measuring.end_to_end import end_to_end_environment
from collage_core.measuring.entrants import Entrant, placement_entrant
from collage_core.measuring.machine import RUNS_PER_TURN, Machine
from collage_core.measuring.workspace import Workspace
from collage_core.placement import Placement

__all__ = ["Trials"]

_ROUNDS = 10
_LAYOUT = f"one sitting, started in changing order, turns of {TURN_S} s that count alike, intervals of ratios"
_BETWEEN_PROCESSES = 0.02
"""By how much two processes of one placement are taken to differ, relative to either (docs/adr/0020). An
assumption, for a try has one process only; no figure that is told rests on it: the proof measures anew.
"""
_ANCHOR = "anchor"
_TITLE = "trial"
_MOST_AT_ONCE = 4
_MOST_BYTES = 3 << 30
"""Memory that the processes of one batch may take, as far as can be told: four times the constants each."""
_COPIES_OF_CONSTANTS = 4


class Trials:
    """Measures placements beside the placement `anchor`, which takes part in every batch: a record's
    median is the ratio to the anchor's turns, round by round, times what the anchor took in the first batch,
    and so is its uncertainty (`UNCERTAINTY`): records compare though the machine's speed drifts. The anchor's
    own uncertainty is 0, for there is none about its ratio to itself.

    Each placement is measured once, and the record kept, failures too (`collage costs prune --failed` has
    them tried again); nothing is kept of a batch in which the anchor itself failed.
    """

    def __init__(
        self, machine: Machine, workspace: Workspace, anchor: Placement, load: Load | None = None
    ) -> None:
        """load: with which all are measured; a request at a time where None."""
        self.measured = 0
        self.cached = 0
        self._machine = machine
        self._workspace = workspace
        self._anchor, self._load = anchor, load
        beside = self._entrant(_ANCHOR, anchor)
        self._identity = "\n".join([_TITLE, _LAYOUT, str(anchor.target), beside.key])

    def measure(self, placements: Sequence[Placement]) -> list[CostRecord]:
        """Records in the order of the placements. `seconds` is each one's share of its batch's time, opening
        and first runs included. KeyboardInterrupt loses the batch that is running.
        """
        known: dict[str, CostRecord] = {}
        for p in placements:
            if p.digest not in known and (record := self._machine.database.get(self._key(p))) is not None:
                known[p.digest] = record
                self.cached += 1
        unknown = list({p.digest: p for p in placements if p.digest not in known}.values())
        size = self._at_once()
        for first in range(0, len(unknown), size):
            known |= self._measure_batch(unknown[first : first + size])
        return [known[p.digest] for p in placements]

    def _at_once(self) -> int:
        constants_bytes = sum(a.nbytes for a in self._workspace.graph.constants.values())
        # The anchor is there, too.
        fitting = _MOST_BYTES // max(_COPIES_OF_CONSTANTS * constants_bytes, 1) - 1
        return max(1, min(_MOST_AT_ONCE, fitting))

    def _measure_batch(self, placements: Sequence[Placement]) -> dict[str, CostRecord]:
        anchor_key = self._key(self._anchor)
        reference = self._machine.database.get(anchor_key)
        others = [p for p in placements if p.digest != self._anchor.digest]
        # Never the anchor alone: what takes no turns with others finds its threads awake and its caches full.
        beside = others or [self._anchor]
        entrants = [
            self._entrant(name, p) for name, p in [(_ANCHOR, self._anchor), *((p.digest, p) for p in beside)]
        ]
        self._workspace.record()
        with measuring_lock(self._machine.progress.note):
            start = clock.monotonic()  # waiting for other measurements is nobody's share
            ran = self._machine.run_in_turns(entrants, Rounds(_ROUNDS), Limits(open_s=candidate_limit_s()))
            seconds = (clock.monotonic() - start) / max(len(placements), 1)
        records = {name: replace(r.record, seconds=seconds) for name, r in ran.items()}
        anchor = records.pop(_ANCHOR)
        if not anchor.ok:  # nothing to compare with: not to be recalled
            return {**records, self._anchor.digest: anchor}
        if reference is None:
            reference = replace(anchor, details={**anchor.details, UNCERTAINTY: 0.0})
            self._keep(anchor_key, reference)
        found = {name: _in_units_of(r, anchor, reference) for name, r in records.items()}
        for p in others:
            self._keep(self._key(p), found[p.digest])
        return {**found, self._anchor.digest: reference}

    def _keep(self, key: CostKey, record: CostRecord) -> None:
        if record.status != UNAVAILABLE:  # which says nothing about the placement
            self._machine.database.put(key, record)
        self.measured += 1

    def _entrant(self, name: str, placement: Placement) -> Entrant:
        return placement_entrant(self._workspace, name, placement, self._machine.registry, load=self._load)

    def _key(self, placement: Placement) -> CostKey:
        environment = self._entrant(placement.digest, placement).environment
        text = f"{self._identity}\n{sorted(environment.items())}"
        structure = hashlib.sha256(text.encode()).hexdigest()[:32]
        runs = _ROUNDS * RUNS_PER_TURN
        policy = Policy(warmup_runs=1, min_runs=runs, max_runs=runs)
        here = end_to_end_environment(placement.target, self._machine.registry)
        return CostKey("end_to_end", structure, _TITLE, placement.digest, here, policy)


def _in_units_of(record: CostRecord, anchor: CostRecord, reference: CostRecord) -> CostRecord:
    """As if taken in the batch in which `reference`, the anchor's first record, was."""
    if not record.ok or reference.median_ms is None:
        return record
    both = zip(sittings_of(record), sittings_of(anchor), strict=True)
    quotients = [q for one, other in both for q in steady_quotients(one, other)]
    rounds = median_uncertainty(interquartile_range(quotients), len(quotients))
    told = {
        "taken_ms": record.median_ms,
        "anchor_ms": anchor.median_ms,
        UNCERTAINTY: math.hypot(rounds, _BETWEEN_PROCESSES) * reference.median_ms,
    }
    median_ms = median(quotients) * reference.median_ms
    return replace(record, median_ms=median_ms, details={**record.details, **told})
