"""A measured cost, and what it is a cost of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from collage_core.costs.samples import median_uncertainty

__all__ = [
    "DISTURBED",
    "MOVED",
    "RACED_OUT",
    "RETAKEN",
    "UNAVAILABLE",
    "UNCERTAINTY",
    "CostKey",
    "CostRecord",
    "Policy",
    "Status",
]

DISTURBED = "disturbed"
"""Among the details of a record in which disturbed runs count, for too few others were (`Samples`)."""

MOVED = "moved"
"""Among the details of a record that had to be taken though the processors were not together to the end."""

RACED_OUT = "raced_out"
"""Among the details of a record that few runs were enough for: a rival had been seen to be far faster."""

RETAKEN = "retaken"
"""Among a record's details: how often it, or a part of it, was measured again because the machine's
processors had been moved meanwhile (see `Processors`).
"""

UNCERTAINTY = "uncertainty_ms"
"""Among a record's details, where more is known of it than what its runs tell: by how much the median may be
off.
"""

Status = str
""""ok", or why the candidate is infeasible: "declined", "failed" (raised), "crashed", "timeout", "wrong"
(numbers); or `UNAVAILABLE`.
"""

UNAVAILABLE: Status = "unavailable"
"""Nothing could be measured, for a reason that is not the candidate's: no worker, no library, no disk."""

STATUSES = ("ok", "declined", "failed", "crashed", "timeout", "wrong", UNAVAILABLE)


@dataclass(frozen=True, slots=True)
class Policy:
    """How kernels are measured. Part of the key: costs taken in different ways are not comparable.

    Two processes differ by more than 1 % in what one kernel takes (docs/adr/0020): to know it much better in
    one of them is worth nothing, and in a placement kernels are timed once more.

    evict_bytes: how much other memory is read before each run, so that caches are as in the executable:
    about as much as all of the model's constants (see `time_bound`). 0: runs follow each other.
    """

    warmup_runs: int = 3
    min_runs: int = 9
    max_runs: int = 40
    target_relative_spread: float = 0.02
    max_seconds: float = 0.4
    evict_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CostKey:
    """What a cost belongs to: a kernel (subgraph key), a conversion, or a whole executable (`kind`), in given
    formats, by one backend at given versions, on a machine, measured by a policy.

    environment: plugin version and source hash, library version, device fingerprint, threads (see
    `costs.fingerprint`).
    """

    kind: str
    structure: str
    variant: str
    backend: str
    environment: Mapping[str, str]
    policy: Policy

    @property
    def digest(self) -> str:
        """Of the key as a JSON list."""
        policy = [getattr(self.policy, f) for f in sorted(self.policy.__slots__)]
        own = [self.kind, self.structure, self.variant, self.backend]
        content = json.dumps([*own, sorted(self.environment.items()), policy])
        return hashlib.sha256(content.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class CostRecord:
    """What was measured: never a bare float.

    median_ms and spread_ms (interquartile range) over `runs` timed runs; `error` is max|difference| /
    max|reference|, the worst of the outputs; seconds is what it took to build and measure. Where status is
    not "ok" the times are None and `reason` says why.
    """

    status: Status
    median_ms: float | None = None
    spread_ms: float | None = None
    runs: int = 0
    error: float | None = None
    seconds: float = 0.0
    reason: str | None = None
    details: Mapping[str, object] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    @property
    def uncertainty_ms(self) -> float:
        """By how much the median may be off: as was told with it, else by `median_uncertainty`."""
        told = self.details.get(UNCERTAINTY)
        if isinstance(told, float):
            return told
        return median_uncertainty(self.spread_ms or 0.0, self.runs)
