"""Two simulated devices, each with its backend, that know nothing of each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from collage_simulator.backend import SimBackend
from collage_simulator.device import SimDevice

from collage_core.backend import Backend, BackendInfo, Variant
from collage_core.devices import Device
from collage_core.errors import Refusal
from collage_core.formats import Format
from collage_core.ir import Subgraph, TensorType
from collage_core.plugins import hookimpl
from collage_core.target import Target


class OtherDevice(SimDevice):
    name = "sim2"


class OtherBackend(SimBackend):
    name = "sim2"

    def info(self) -> BackendInfo:
        return replace(super().info(), name=self.name, devices=("sim2",))

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        offered = super().variants(subgraph, target)
        if isinstance(offered, Refusal):
            return offered
        return [replace(v, inputs=_there(v.inputs), outputs=_there(v.outputs)) for v in offered]

    def converts(self, type: TensorType, source: Format, destination: Format, target: Target) -> bool:
        return False


def _there(formats: Sequence[Format]) -> tuple[Format, ...]:
    return tuple(f.on("sim2") for f in formats)


_DEVICES = SimDevice(), OtherDevice()


@hookimpl
def collage_devices() -> Sequence[Device]:
    return _DEVICES


@hookimpl
def collage_backends() -> Sequence[Backend]:
    return [SimBackend(), OtherBackend()]
