"""Which libraries are here, and which of the installed plugins lack theirs."""

from __future__ import annotations

from collage_core.backend import BackendInfo, BackendKind
from collage_core.doctor.finding import Finding, Level
from collage_core.peer import PeerInfo
from collage_core.plugins import Registry

__all__ = ["libraries"]

_REMOVE = "Remove it, or install a version that works."
_INSTALL = "Install what its plugin needs, or remove the plugin."


def libraries(registry: Registry) -> list[Finding]:
    """What is installed, with versions; what is not available, with its own reason; plugins that fail.

    A backend for devices that have no plugin here lacks nothing: no warning.

    Which plugins there are beyond those, and which versions, nobody here can know.
    """
    infos: list[BackendInfo | PeerInfo] = [b.info() for b in registry.backends.values()]
    infos = [i for i in infos if not (isinstance(i, BackendInfo) and i.kind is BackendKind.REFERENCE)]
    libraries = any(i.available for i in infos)
    infos += [p.info() for p in registry.peers.values()]
    found = [
        Finding(Level.PROBLEM, f"The plugin {name} fails: {reason.rstrip('.')}.", _REMOVE)
        for name, reason in registry.failures.items()
    ]
    if not libraries:
        what = "No backend is available: everything would run on the reference, slowly."
        found.append(Finding(Level.PROBLEM, what, "Install the plugin of a library (docs/backends.md)."))
    elsewhere = [
        i
        for i in infos
        if isinstance(i, BackendInfo) and not i.available and registry.devices.keys().isdisjoint(i.devices)
    ]
    missing = dict.fromkeys((i.name, i.reason) for i in infos if i.reason is not None and i not in elsewhere)
    for name, reason in missing:
        found.append(Finding(Level.WARNING, f"{name} is not available: {reason.rstrip('.')}.", _INSTALL))
    here = dict.fromkeys(f"{i.name} {i.library_version or ''}".strip() for i in infos if i.available)
    if here:
        found.append(Finding(Level.OK, f"{', '.join(here)}."))
    if elsewhere:
        names = ", ".join(f"{i.name} ({', '.join(i.devices)})" for i in elsewhere)
        found.append(Finding(Level.OK, f"For devices that have no plugin here: {names}."))
    return found
