"""What a job brings that ran wherever an executor had it run, with what tells that machine from others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from collage_core.costs.fingerprint import environment_of
from collage_core.costs.record import UNAVAILABLE, CostRecord
from collage_core.plugins import registry_of
from collage_core.target import Target

__all__ = ["Reported", "lost", "reported"]

_Result = TypeVar("_Result")


class _Job(Protocol):
    """Of one backend (`MeasureJob`, `SupportJob`)."""

    @property
    def backend(self) -> str: ...
    @property
    def target(self) -> Target: ...
    @property
    def device(self) -> str | None: ...
    @property
    def plugins(self) -> tuple[str, ...]: ...


_AnyJob = TypeVar("_AnyJob", bound=_Job)


@dataclass(frozen=True, slots=True)
class Reported(Generic[_Result]):
    """environment: of the job's backend on the machine that ran it (`environment_of`)."""

    environment: Mapping[str, str]
    result: _Result


def reported(run: Callable[[_AnyJob], _Result], job: _AnyJob) -> Reported[_Result]:
    """For an executor to carry: a cost belongs to the machine that took it, not to the one that asked."""
    registry = registry_of(job.backend, job.plugins)
    backend = registry.backend(job.backend)
    return Reported(environment_of(backend, job.target, job.device, registry), run(job))


def lost(error: Exception) -> CostRecord:
    """Of each part of a job for which an executor raised this: it says nothing about them."""
    return CostRecord(UNAVAILABLE, reason=f"its job was lost: {type(error).__name__}: {error}")
