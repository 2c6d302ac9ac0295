"""The entry point: what this package brings to Collage."""

from __future__ import annotations

from collections.abc import Sequence

from collage_core.devices import Device
from collage_core.plugins import hookimpl

__all__ = ["collage_devices"]


@hookimpl
def collage_devices() -> Sequence[Device]:
    from collage_cuda.device import DEVICE

    return [DEVICE]
