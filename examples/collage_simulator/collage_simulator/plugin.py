"""The entry point: what this package brings to Collage."""

from __future__ import annotations

from collections.abc import Sequence

from collage_core.backend import Backend
from collage_core.devices import Device
from collage_core.plugins import hookimpl

__all__ = ["collage_backends", "collage_devices"]


@hookimpl
def collage_devices() -> Sequence[Device]:
    from collage_simulator.device import SimDevice

    return [SimDevice()]


@hookimpl
def collage_backends() -> Sequence[Backend]:
    from collage_simulator.backend import SimBackend

    return [SimBackend()]
