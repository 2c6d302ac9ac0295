"""Transfers between the host's memory and a device's: core's own converters, one for each device.

They are always allowed, also where one backend runs alone, and measured like any other conversion.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collage_core.backend import Backend, BackendInfo, BackendKind, Bound, Kernel, Variant
from collage_core.devices import Device, Queue
from collage_core.errors import Refusal
from collage_core.formats import CPU, Format
from collage_core.ir.subgraph import Subgraph
from collage_core.ir.types import TensorType
from collage_core.placement import transfers_name
from collage_core.target import Target

__all__ = ["Transfers"]


class Transfers(Backend):
    """There and back, of dense values in any layout, as they are: of one dtype, in one layout."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.name = transfers_name(device.name)

    def info(self) -> BackendInfo:
        info = self.device.info()
        devices = (self.device.name,)
        return BackendInfo(self.name, BackendKind.TRANSFER, info.version, None, devices, info.reason)

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        return Refusal("transfers run no operator")

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        raise NotImplementedError

    def converts(self, type: TensorType, source: Format, destination: Format, target: Target) -> bool:
        ends = {source.device, destination.device}
        return ends == {CPU, self.device.name} and source.on(CPU) == destination.on(CPU)

    def offers_conversion(
        self, type: TensorType, source: Format, destination: Format, target: Target
    ) -> bool:
        """As it converts: it begins or ends where it does not run."""
        return self.converts(type, source, destination, target)

    def build_conversion(
        self, type: TensorType, source: Format, destination: Format, target: Target
    ) -> Kernel:
        return _Transfer(self.device, destination.device != CPU)


class _Transfer(Kernel):
    def __init__(self, device: Device, is_upload: bool) -> None:
        self._device, self._is_upload = device, is_upload

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any, queue: Queue) -> Bound:
        copy = self._device.upload if self._is_upload else self._device.download
        source, destination = inputs[0], outputs[0]

        def call() -> None:
            copy(source, destination, queue)

        return call
