"""Where a placement comes from: the processor and the versions that it was measured with."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from collage_core.errors import BundleError, CollageError
from collage_core.placement import Placement
from collage_core.plugins import Registry
from collage_core.target import processor

__all__ = ["VersionChange", "differences", "origin_here", "other_processor", "told_apart", "version_changes"]


@dataclass(frozen=True, slots=True)
class VersionChange:
    """A version that is another one here. what: "plugin" or "library", of that backend."""

    backend: str
    what: str
    then: str
    now: str

    def __str__(self) -> str:
        return f"measured with {self.backend} ({self.what}) {self.then}; here it is {self.now}"


def origin_here(placements: Iterable[Placement], registry: Registry) -> dict[str, Any]:
    """What is here, as JSON: `made_at` (seconds since 1970), `processor` (model, vector instructions) and,
    for each backend that one of the placements names and that is installed, `backends` (versions of plugin
    and library); for each device beside the CPU `devices` (version of the plugin, fingerprint).
    """
    here, placements = processor(), list(placements)
    names = dict.fromkeys(name for p in placements for name in p.backends())
    infos = {
        name: registry.backends[name.lower()].info() for name in names if name.lower() in registry.backends
    }
    return {
        "made_at": time.time(),
        "collage": importlib.metadata.version("collage-core"),
        "processor": {"model": here.model, "instructions": list(here.instructions)},
        "devices": {
            name: registry.devices[name].facts()
            for name in dict.fromkeys(name for p in placements for name in p.devices())
            if name in registry.devices
        },
        "backends": {
            name: {"plugin": info.version, "library": info.library_version or ""}
            for name, info in infos.items()
        },
    }


def told_apart(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Facts of the one that are others of the other."""
    return ", ".join(f"{k} {v}" for k, v in sorted(one.items()) if other.get(k) != v)


def version_changes(origin: Mapping[str, Any], registry: Registry) -> list[VersionChange]:
    """Of all backends in an origin that are installed here."""
    found: list[VersionChange] = []
    for name, versions in origin.get("backends", {}).items():
        if name.lower() not in registry.backends:
            continue
        info = registry.backends[name.lower()].info()
        for what, now in (("plugin", info.version), ("library", info.library_version)):
            then = versions.get(what)
            if then and now and then != now:
                found.append(VersionChange(name, what, str(then), now))
    return found


def other_processor(origin: Mapping[str, Any]) -> str | None:
    """Model of the processor of then, where it is another one than here; None where that is not known."""
    made_on = origin.get("processor", {})
    if not made_on or made_on.get("model") == processor().model:
        return None
    return str(made_on.get("model") or "another processor")


def differences(origin: Mapping[str, Any], placement: Placement, registry: Registry) -> list[str]:
    """Sentences for a person: what is not as it was where the placement was measured, so that it may not be
    the fastest here. BundleError if it cannot run here: a backend is not installed or not available, or the
    processor lacks instructions that the kernels were chosen for.
    """
    for name in placement.devices():
        try:
            registry.device(name)
        except CollageError as error:
            raise BundleError(f"one of its devices: {error}") from None
    for name in placement.backends():
        if name.lower() not in registry.backends:
            known = ", ".join(sorted(registry.backends))
            raise BundleError(f"its backend {name!r} is not installed here; installed: {known}")
        if reason := registry.backends[name.lower()].info().reason:
            raise BundleError(f"its backend {name!r} is not available here: {reason}")
    here, made_on = processor(), origin.get("processor", {})
    missing = sorted(set(made_on.get("instructions", ())) - set(here.instructions))
    if missing:
        raise BundleError(
            f"made for {made_on.get('model') or 'another processor'}; this processor ({here.model}) has no "
            f"{', '.join(missing)}: optimize the model here"
        )
    found = [str(c) for c in version_changes(origin, registry) if c.backend in placement.backends()]
    made_with = origin.get("devices", {})
    for name in placement.devices():
        then, now = made_with.get(name), registry.devices[name].facts()
        if then and then != now:
            found.append(
                f"measured with device {name} ({told_apart(then, now)}); here it is {told_apart(now, then)}"
            )
    if (model := other_processor(origin)) is not None:
        found.append(f"measured on {model}; here it is {here.model}")
    return found
