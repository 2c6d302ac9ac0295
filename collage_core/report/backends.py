"""What is installed, as JSON values."""

from __future__ import annotations

from typing import Any

from collage_core.formats import CPU
from collage_core.plugins import Registry

__all__ = ["backends_json"]


def backends_json(registry: Registry) -> list[dict[str, Any]]:
    """What is installed: backends, devices beside the CPU (kind "device"), peers (kind "peer"), and plugins
    that failed (kind "plugin").
    """
    registry.ask_all()
    found: list[dict[str, Any]] = []
    for b in registry.backends.values():
        info = b.info()
        found.append(
            {
                "name": info.name,
                "kind": info.kind.value,
                "version": info.version,
                "library_version": info.library_version,
                "devices": list(info.devices),
                "available": info.available,
                "reason": info.reason,
            }
        )
    for d in registry.devices.values():
        device = d.info()
        if device.name != CPU:
            found.append(
                {
                    "name": device.name,
                    "kind": "device",
                    "version": device.version,
                    "library_version": None,
                    "devices": [device.name],
                    "available": device.available,
                    "reason": device.reason,
                    "description": device.description,
                }
            )
    for p in registry.peers.values():
        peer = p.info()
        found.append(
            {
                "name": peer.name,
                "kind": "peer",
                "version": peer.version,
                "library_version": peer.library_version,
                "devices": ["cpu"],
                "available": peer.available,
                "reason": peer.reason,
                "settings": dict(peer.settings),
            }
        )
    for name, reason in registry.failures.items():
        found.append(
            {
                "name": name,
                "kind": "plugin",
                "version": None,
                "library_version": None,
                "devices": [],
                "available": False,
                "reason": reason,
            }
        )
    return found
