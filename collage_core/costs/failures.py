"""What a worker's failure means for what it was at."""

from __future__ import annotations

from collage_core.costs.record import UNAVAILABLE, CostRecord
from collage_core.errors import WorkerError
from collage_core.worker import WorkerCrash, WorkerTimeout

__all__ = ["infeasible"]


def infeasible(error: WorkerError) -> CostRecord:
    """The record of what a worker was at when it died or hung; `UNAVAILABLE` where neither was it."""
    status = {WorkerCrash: "crashed", WorkerTimeout: "timeout"}.get(type(error), UNAVAILABLE)
    said = getattr(error, "output", "") or getattr(error, "traceback", "")
    details = {"output": said, "cause": getattr(error, "cause", "")}
    return CostRecord(status, reason=str(error), details={k: v for k, v in details.items() if v})
