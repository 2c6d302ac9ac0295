"""OpenVINO as a backend. Importing this module loads nothing of it."""

from __future__ import annotations

from collections.abc import Sequence

from collage_core.backend import Backend, BackendInfo, BackendKind, Kernel, Variant
from collage_core.device import Target
from collage_core.errors import BackendError, Refusal
from collage_core.ir import Subgraph
from collage_openvino import __version__
from collage_openvino.library import DISTRIBUTION, find_library, library_version
from collage_openvino.variants import variants

__all__ = ["OpenvinoBackend"]


class OpenvinoBackend(Backend):
    """Any part of a graph as one model of OpenVINO's CPU plugin, in exact fp32."""

    name = "openvino"

    def info(self) -> BackendInfo:
        reason = None if find_library() else f"{DISTRIBUTION} is not installed"
        return BackendInfo(self.name, BackendKind.GRAPH, __version__, library_version(), reason=reason)

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        return variants(subgraph)

    def supported(self, subgraphs: Sequence[Subgraph], target: Target) -> Sequence[Refusal | None]:
        return [self._refusal(s, target) for s in subgraphs]

    def _refusal(self, subgraph: Subgraph, target: Target) -> Refusal | None:
        """The library has no cheaper question than to compile the group: what reads well may still have no
        implementation.
        """
        offered = variants(subgraph)
        if isinstance(offered, Refusal):
            return offered
        try:
            self.build(subgraph, offered[0], target)
        except BackendError as error:
            return Refusal(str(error), subgraph.nodes[0].name)
        return None

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        from collage_openvino.kernel import build_kernel

        return build_kernel(subgraph, variant, target)
