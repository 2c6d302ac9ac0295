"""Discovery: which backends and peers are installed."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
from collections.abc import Iterable
from functools import cache, cached_property

import pluggy

from collage_core import hookspecs
from collage_core.backend import Backend, Peer
from collage_core.errors import BackendError, CollageError, UnknownBackendError

__all__ = ["ENTRY_POINT_GROUP", "PLUGINS_VARIABLE", "Registry", "default_registry", "hookimpl"]

ENTRY_POINT_GROUP = "collage"
PLUGINS_VARIABLE = "COLLAGE_PLUGINS"

hookimpl = pluggy.HookimplMarker("collage")
"""Marks a plugin's implementation of a hook of `collage_core.hookspecs`."""


class Registry:
    """The backends and peers of one process.

    Plugins are loaded from the entry points of installed packages, and from `extra` modules or objects
    (tests, notebooks). A plugin whose import fails leaves the others alone; `failures` keeps what it said.
    """

    def __init__(self, extra: Iterable[object] = (), *, entry_points: bool = True) -> None:
        self._manager = pluggy.PluginManager("collage")
        self._manager.add_hookspecs(hookspecs)
        self.failures: dict[str, str] = {}
        if entry_points:
            points = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
            for point in sorted(points, key=lambda p: p.name):
                try:
                    self._manager.register(point.load(), name=point.name)
                except Exception as error:  # a foreign package may raise anything; it must cost only itself
                    self.failures[point.name] = f"{type(error).__name__}: {error}"
        for plugin in extra:
            self._manager.register(plugin)

    @cached_property
    def backends(self) -> dict[str, Backend]:
        """All backends by name, core's own reference first."""
        from collage_core.reference import ReferenceBackend

        found: dict[str, Backend] = {}
        groups = self._manager.hook.collage_backends()
        for backend in [ReferenceBackend(), *(b for group in reversed(groups) for b in group or ())]:
            if backend.name in found:
                raise CollageError(
                    f"two plugins bring a backend named {backend.name!r}: "
                    f"{type(found[backend.name]).__module__} and {type(backend).__module__}"
                )
            found[backend.name] = backend
        return found

    @cached_property
    def peers(self) -> dict[str, Peer]:
        """All peers by name."""
        return {p.name: p for group in reversed(self._manager.hook.collage_peers()) for p in group or ()}

    def backend(self, name: str) -> Backend:
        """The backend of that name, whatever its case; UnknownBackendError lists the known ones."""
        try:
            return self.backends[name.lower()]
        except KeyError:
            raise UnknownBackendError(name, list(self.backends)) from None

    def available(self, names: Iterable[str] | None = None) -> list[Backend]:
        """The named backends, or all that can run here; BackendError if a named one cannot."""
        if names is None:
            return [b for b in self.backends.values() if b.info().available]
        chosen = [self.backend(n) for n in names]
        for b in chosen:
            if reason := b.info().reason:
                raise BackendError(f"backend {b.name!r} is not available: {reason}")
        return chosen

    def peer(self, name: str) -> Peer:
        try:
            return self.peers[name.lower()]
        except KeyError:
            known = ", ".join(sorted(self.peers)) or "none"
            raise CollageError(f"unknown peer {name!r}; installed: {known}") from None


@cache
def default_registry() -> Registry:
    """The registry of the installed packages and of the modules that COLLAGE_PLUGINS names (comma-separated),
    made once per process.
    """
    registry = Registry()
    for name in filter(None, map(str.strip, os.environ.get(PLUGINS_VARIABLE, "").split(","))):
        try:
            module = importlib.import_module(name)
        except Exception as error:  # as for entry points: it must cost only itself
            registry.failures[name] = f"{type(error).__name__}: {error}"
        else:
            if not registry._manager.is_registered(module):
                registry._manager.register(module)
    return registry
