"""The backend that is looked at, and the package that brings it."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from collage_benchmarks.evidence.machine import processor_json, title_of

from collage_core.backend import Backend
from collage_core.errors import BackendUnavailableError
from collage_core.formats import CPU
from collage_core.plugins import ENTRY_POINT_GROUP, Registry, default_registry
from collage_core.target import Target

__all__ = ["Subject", "described", "target_of"]


@dataclass(frozen=True, slots=True)
class Subject:
    """point: the entry point that brings it; None where a module that COLLAGE_PLUGINS names does."""

    backend: Backend
    target: Target
    point: importlib.metadata.EntryPoint | None

    @classmethod
    def named(cls, name: str, threads: int) -> Subject:
        """The installed backend of that name, its environment set for this process. All devices that it runs
        on take part.

        Raises UnknownBackendError, and BackendUnavailableError where it cannot run here.
        """
        backend = default_registry().backend(name)
        target = target_of(backend, threads)
        if reason := backend.info().reason:
            raise BackendUnavailableError(f"backend {name!r} is not available: {reason}")
        for variable, value in backend.environment(target).items():
            os.environ.setdefault(variable, value)
        return cls(backend, target, next(_points_of(backend), None))

    @property
    def distribution(self) -> importlib.metadata.Distribution | None:
        """Of the package, where it is installed as one."""
        return None if self.point is None else self.point.dist


def target_of(backend: Backend, threads: int) -> Target:
    """With all devices that it runs on, and that are here."""
    here = {name for name, device in default_registry().devices.items() if device.info().available}
    named = backend.info().devices
    return Target("cpu", threads, accelerators=tuple(d for d in named if d != CPU and d.lower() in here))


def described(name: str) -> Mapping[str, str]:
    """What results about the installed backend of that name hold for: versions, and the processor."""
    backend = default_registry().backend(name)
    info = backend.info()
    return {
        "Backend": f"{info.version}, its library {info.library_version}",
        **{p: importlib.metadata.version(p) for p in ("collage-core", "collage-conformance")},
        "processor": title_of(processor_json()),
        **{
            f"device {name}": default_registry().device(name).info().description
            for name in target_of(backend, 1).accelerators
        },
    }


def _points_of(backend: Backend) -> Iterator[importlib.metadata.EntryPoint]:
    for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        try:
            brought = Registry([point.load()], entry_points=False).backends
        except (Exception, SystemExit):  # as discovery: somebody else's package may raise anything
            continue
        if type(brought.get(backend.name.lower())) is type(backend):
            yield point
