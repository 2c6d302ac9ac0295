"""The simulated device with kernels in float16 alone: values become that before they come, or on the host."""

from __future__ import annotations

from collections.abc import Sequence

from collage_simulator.backend import SimBackend
from collage_simulator.plugin import collage_devices

from collage_core.backend import Backend, Variant
from collage_core.errors import Refusal
from collage_core.formats import Format
from collage_core.ir import Subgraph, TensorType
from collage_core.plugins import hookimpl
from collage_core.target import Target

__all__ = ["collage_backends", "collage_devices"]


class HalvesBackend(SimBackend):
    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        offered = super().variants(subgraph, target)
        return offered if isinstance(offered, Refusal) else [v for v in offered if "float16" in str(v)]

    def converts(self, type: TensorType, source: Format, destination: Format, target: Target) -> bool:
        return False


@hookimpl
def collage_backends() -> Sequence[Backend]:
    return [HalvesBackend()]
