"""TensorRT as a backend. Importing this module loads nothing of it."""

from __future__ import annotations

from collections.abc import Sequence

from collage_cuda import NAME as DEVICE_NAME

from collage_core.backend import Backend, BackendInfo, BackendKind, Kernel, Variant
from collage_core.errors import BackendError, Refusal
from collage_core.ir import Subgraph
from collage_core.target import Target
from collage_tensorrt import NAME, __version__
from collage_tensorrt.editions import chosen_here, missing_reason
from collage_tensorrt.variants import variants

__all__ = ["TensorrtBackend"]


class TensorrtBackend(Backend):
    """Any part of a graph as one engine on the first NVIDIA GPU, every value in the model's own type."""

    name = NAME

    def info(self) -> BackendInfo:
        edition, reason = chosen_here(), missing_reason()
        version = edition.version if edition is not None else None
        return BackendInfo(self.name, BackendKind.GRAPH, __version__, version, (DEVICE_NAME,), reason)

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        return variants(subgraph, target)

    def supported(self, subgraphs: Sequence[Subgraph], target: Target) -> Sequence[Refusal | None]:
        """What the library's own parser says; whether it has kernels shows when an engine is built."""
        from collage_tensorrt.building import parsed
        from collage_tensorrt.library import load

        def refusal(subgraph: Subgraph) -> Refusal | None:
            offered = variants(subgraph, target)
            if isinstance(offered, Refusal):
                return offered
            try:
                parsed(load(), subgraph, offered[0])
            except BackendError as error:
                return Refusal(str(error), subgraph.nodes[0].name)
            return None

        return [refusal(subgraph) for subgraph in subgraphs]

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        from collage_tensorrt.building import kernel_of

        return kernel_of(subgraph, variant)
