"""ncnn as a backend. Importing this module loads nothing of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from collage_core.backend import Backend, BackendInfo, BackendKind, Kernel, StoredKernel, Variant
from collage_core.errors import Refusal
from collage_core.ir import Subgraph
from collage_core.patterns import BackendPattern
from collage_core.shared_library import installed_version
from collage_core.target import Target
from collage_ncnn import __version__
from collage_ncnn.library import DISTRIBUTION
from collage_ncnn.patterns import patterns
from collage_ncnn.variants import variants

__all__ = ["NcnnBackend"]


class NcnnBackend(Backend):
    """ncnn's two-dimensional convolutions, fp32: Winograd's algorithm where it applies."""

    name = "ncnn"

    def info(self) -> BackendInfo:
        library = installed_version(DISTRIBUTION)
        reason = None if library else f"{DISTRIBUTION} is not installed"
        return BackendInfo(self.name, BackendKind.OPERATOR, __version__, library, reason=reason)

    def patterns(self) -> Sequence[BackendPattern]:
        return patterns()

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        return variants(subgraph)

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        from collage_ncnn.build import build_kernel

        return build_kernel(subgraph, variant, target.threads)

    def stored(
        self, kernel: Kernel, subgraph: Subgraph, variant: Variant, target: Target
    ) -> StoredKernel | None:
        from collage_ncnn.build import constants_of
        from collage_ncnn.kernel import ConvolutionKernel

        assert isinstance(kernel, ConvolutionKernel)
        return kernel.stored_with(constants_of(subgraph))

    def environment(self, target: Target) -> Mapping[str, str]:
        return {"OMP_DYNAMIC": "false"}
