"""What a worker's failure means for what it was at."""

from __future__ import annotations

from collage_core.costs.limits import candidate_limit_s, worker_memory_bytes
from collage_core.costs.record import UNAVAILABLE, CostRecord
from collage_core.errors import WorkerError
from collage_core.worker import WorkerCrash, WorkerTimeout

__all__ = ["infeasible", "may_do_now"]

_LIMIT_S, _LIMIT_BYTES = "limit_s", "limit_bytes"
"""Among a record's details: what was not enough."""
_MORE = 1.1
"""So many times as much memory is more: what a machine has differs by some pages from start to start."""


def infeasible(error: WorkerError) -> CostRecord:
    """The record of what a worker was at when it died or hung; `UNAVAILABLE` where neither was it."""
    status = {WorkerCrash: "crashed", WorkerTimeout: "timeout"}.get(type(error), UNAVAILABLE)
    said = getattr(error, "output", "") or getattr(error, "traceback", "")
    details: dict[str, object] = {
        "output": said,
        "cause": getattr(error, "cause", ""),
        _LIMIT_S: getattr(error, "timeout_s", None),
        _LIMIT_BYTES: getattr(error, "memory_limit_bytes", None),
    }
    return CostRecord(status, reason=str(error), details={k: v for k, v in details.items() if v})


def may_do_now(record: CostRecord) -> bool:
    """Whether it failed for want of time or of memory, and candidates have more now: then it says nothing."""
    if record.ok:
        return False
    limit_s, limit_bytes = record.details.get(_LIMIT_S), record.details.get(_LIMIT_BYTES)
    if isinstance(limit_s, int | float):
        return limit_s < candidate_limit_s()
    return isinstance(limit_bytes, int) and _MORE * limit_bytes < worker_memory_bytes()
