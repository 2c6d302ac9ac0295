"""Where a placement comes from: the processor and the versions that it was measured with."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from typing import Any

from collage_core.device import processor
from collage_core.errors import BundleError
from collage_core.placement import Placement
from collage_core.plugins import Registry

__all__ = ["differences", "origin_here"]


def origin_here(placement: Placement, registry: Registry) -> dict[str, Any]:
    """What is here, as JSON: `processor` (model, vector instructions) and, for each backend that the
    placement names and that is installed, `backends` (versions of plugin and library).
    """
    here = processor()
    infos = {
        name: registry.backends[name.lower()].info()
        for name in placement.backends()
        if name.lower() in registry.backends
    }
    return {
        "collage": importlib.metadata.version("collage-core"),
        "processor": {"model": here.model, "instructions": list(here.instructions)},
        "backends": {
            name: {"plugin": info.version, "library": info.library_version or ""}
            for name, info in infos.items()
        },
    }


def differences(origin: Mapping[str, Any], placement: Placement, registry: Registry) -> list[str]:
    """Sentences for a person: what is not as it was where the placement was measured, so that it may not be
    the fastest here. BundleError if it cannot run here: a backend is not installed or not available, or the
    processor lacks instructions that the kernels were chosen for.
    """
    for name in placement.backends():
        if name.lower() not in registry.backends:
            known = ", ".join(sorted(registry.backends))
            raise BundleError(f"its backend {name!r} is not installed here; installed: {known}")
        if reason := registry.backends[name.lower()].info().reason:
            raise BundleError(f"its backend {name!r} is not available here: {reason}")
    here = origin_here(placement, registry)
    found: list[str] = []
    for key, version in origin.get("backends", {}).items():
        for what in ("plugin", "library"):
            then, now = version.get(what), here["backends"].get(key, {}).get(what)
            if then and now and then != now:
                found.append(f"measured with {key} ({what}) {then}; here it is {now}")
    made_on = origin.get("processor", {})
    model = made_on.get("model") or "another processor"
    missing = sorted(set(made_on.get("instructions", ())) - set(here["processor"]["instructions"]))
    if missing:
        raise BundleError(
            f"made for {model}; this processor ({here['processor']['model']}) has no {', '.join(missing)}: "
            "optimize the model here"
        )
    if made_on and made_on.get("model") != here["processor"]["model"]:
        found.append(f"measured on {model}; here it is {here['processor']['model']}")
    return found
