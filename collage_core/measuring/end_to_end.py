"""What running a whole placement or peer has shown, as a record like any other cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from collage_core.costs.check import Difference, Standard, compare_all
from collage_core.costs.fingerprint import (
    MEASURER_VERSION,
    device_fingerprint,
    devices_environment,
)
from collage_core.costs.record import UNAVAILABLE, CostRecord
from collage_core.costs.seats import Outcome
from collage_core.costs.sittings import SITTINGS, sittings_to_json
from collage_core.formats import Array
from collage_core.plugins import Registry
from collage_core.sources import source_hash
from collage_core.target import Target

__all__ = ["AMPLIFIES", "PARTS", "Ran", "end_to_end_environment", "record_of_outcome"]

PARTS = "parts_ms"
"""Among a record's details: what the parts of a placement took in place (`ExecutableSession.parts_ms`)."""

AMPLIFIES = "amplifies"
"""Among a record's details, where answers are right for what the graph makes of rounding (`Difference`)."""


@dataclass(frozen=True, slots=True)
class Ran:
    """An entrant that was run, or was to be. record: of the outcome."""

    outcome: Outcome
    record: CostRecord


def end_to_end_environment(target: Target, registry: Registry | None = None) -> dict[str, str]:
    """The environment of an end-to-end record's key: machine, threads, and the executables' own code.
    registry: see `environment_of`.
    """
    return {
        **device_fingerprint(target.device),
        **devices_environment(target.accelerators, registry),
        "measurer": MEASURER_VERSION,
        "run": source_hash("collage_run"),
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
        status = UNAVAILABLE if outcome.unavailable else "timeout" if outcome.timed_out else "failed"
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
    if difference.amplifies:
        details[AMPLIFIES] = True
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
