"""NVIDIA cuBLASLt as a backend."""

from __future__ import annotations

from collections.abc import Sequence

from collage_cuda import NAME
from collage_cuda.support import missing

from collage_core.backend import Backend, BackendInfo, BackendKind, Kernel, Variant
from collage_core.errors import Refusal
from collage_core.ir import Subgraph
from collage_core.patterns import BackendPattern
from collage_core.shared_library import installed_version
from collage_core.target import Target
from collage_cublas import __version__
from collage_cublas.patterns import patterns
from collage_cublas.variants import variants

__all__ = ["CublasBackend"]

_PACKAGES = ("nvidia-cublas", "nvidia-cublas-cu12")


class CublasBackend(Backend):
    """cublasLtMatmul: products in float32, float64, float16 and bfloat16, with what follows them."""

    name = "cublas"

    def info(self) -> BackendInfo:
        reason = missing(["nvmath"], "collage-cublas")
        version = _library_version()
        return BackendInfo(self.name, BackendKind.OPERATOR, __version__, version, (NAME,), reason)

    def patterns(self) -> Sequence[BackendPattern]:
        return patterns()

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        return variants(subgraph, target)

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        from collage_cuda.choices import Choices
        from collage_cuda.constants import upload
        from collage_cuda.device import DEVICE

        from collage_cublas.building import Gpu, build
        from collage_cublas.library import load

        DEVICE.current()
        library = load()
        choices = Choices([self.name, str(library.version)])
        return build(library, subgraph, variant, Gpu(DEVICE, upload, choices))


def _library_version() -> str | None:
    """Of the wheel that brings the library; None where it is no wheel."""
    return next(filter(None, map(installed_version, _PACKAGES)), None)
