"""The backend that is looked at, and the package that brings it."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator
from dataclasses import dataclass

from collage_core.backend import Backend
from collage_core.device import Target
from collage_core.errors import BackendUnavailableError
from collage_core.plugins import ENTRY_POINT_GROUP, Registry, default_registry

__all__ = ["Subject"]


@dataclass(frozen=True, slots=True)
class Subject:
    """point: the entry point that brings it; None where a module that COLLAGE_PLUGINS names does."""

    backend: Backend
    target: Target
    point: importlib.metadata.EntryPoint | None

    @classmethod
    def named(cls, name: str, threads: int) -> Subject:
        """The installed backend of that name, its environment set for this process.

        Raises UnknownBackendError, and BackendUnavailableError where it cannot run here.
        """
        backend, target = default_registry().backend(name), Target("cpu", threads)
        if reason := backend.info().reason:
            raise BackendUnavailableError(f"backend {name!r} is not available: {reason}")
        for variable, value in backend.environment(target).items():
            os.environ.setdefault(variable, value)
        return cls(backend, target, next(_points_of(backend), None))

    @property
    def distribution(self) -> importlib.metadata.Distribution | None:
        """Of the package, where it is installed as one."""
        return None if self.point is None else self.point.dist


def _points_of(backend: Backend) -> Iterator[importlib.metadata.EntryPoint]:
    for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        try:
            brought = Registry([point.load()], entry_points=False).backends
        except (Exception, SystemExit):  # as discovery: somebody else's package may raise anything
            continue
        if type(brought.get(backend.name.lower())) is type(backend):
            yield point
