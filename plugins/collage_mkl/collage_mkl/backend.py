"""Intel MKL as a backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from collage_core.backend import Backend, BackendInfo, BackendKind, Kernel, StoredKernel, Variant
from collage_core.errors import Refusal
from collage_core.ir import Subgraph
from collage_core.patterns import BackendPattern
from collage_core.target import Target
from collage_mkl import __version__
from collage_mkl.library import LIBRARY_FILE, load
from collage_mkl.patterns import patterns
from collage_mkl.variants import variants

__all__ = ["MklBackend"]


class MklBackend(Backend):
    """Intel MKL's GEMM, fp32 and fp64, on GNU OpenMP's threads."""

    name = "mkl"

    def info(self) -> BackendInfo:
        version, reason = LIBRARY_FILE.version(), LIBRARY_FILE.missing()
        return BackendInfo(self.name, BackendKind.OPERATOR, __version__, version, reason=reason)

    def patterns(self) -> Sequence[BackendPattern]:
        return patterns()

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        return variants(subgraph)

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        from collage_mkl.build import operation_of
        from collage_mkl.kernel import ProductKernel

        return ProductKernel(load(), operation_of(subgraph, variant, target.threads))

    def stored(
        self, kernel: Kernel, subgraph: Subgraph, variant: Variant, target: Target
    ) -> StoredKernel | None:
        from collage_mkl.build import operation_of

        return operation_of(subgraph, variant, target.threads).stored()

    def environment(self, target: Target) -> Mapping[str, str]:
        # GNU OpenMP: the runtime whose threads other libraries compute on, too, rather than one of MKL's own
        # beside it. How many, every call says itself, so that a process may mix numbers. Waiting threads spin
        # for a moment (the default): asleep, they would take 40 us to wake.
        return {
            "MKL_THREADING_LAYER": "GNU",
            "MKL_INTERFACE_LAYER": "LP64",
            "MKL_DYNAMIC": "FALSE",
            "OMP_DYNAMIC": "false",
        }
