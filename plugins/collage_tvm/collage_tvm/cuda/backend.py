"""The backend `tvm-cuda`. Importing this module loads nothing of TVM or CUDA."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from collage_core.backend import Backend, BackendInfo, BackendKind, Kernel, Variant
from collage_core.errors import Refusal
from collage_core.formats import Format
from collage_core.ir import Subgraph, TensorType
from collage_core.rules import PatternRule
from collage_core.shared_library import installed_version
from collage_core.target import Target
from collage_tvm.backend import tvm_missing
from collage_tvm.cuda.rules import NAME, cuda_rule
from collage_tvm.cuda.variants import DEVICE_NAME, STORED, cuda_variants
from collage_tvm.loading import load_tvm
from collage_tvm.support import MOVABLE

__all__ = ["TvmCudaBackend"]

_INSTALL = "pip install 'collage-tvm[cuda]'"


def _unavailable() -> str | None:
    """Why it cannot be used here."""
    if (reason := tvm_missing()) is not None:
        return reason
    if importlib.util.find_spec("collage_cuda") is None:
        return f"collage-cuda is not installed: {_INSTALL}"
    from collage_cuda.support import missing

    return missing([])


class TvmCudaBackend(Backend):
    """Groups of operators through Apache TVM's code generator for CUDA, scheduled in `collage_tvm.cuda`,
    compiled by NVRTC and launched by the driver."""

    name = NAME
    compiles_ahead = True

    def info(self) -> BackendInfo:
        version = installed_version("collage-tvm") or "0"
        library = installed_version("apache-tvm")
        return BackendInfo(
            NAME, BackendKind.OPERATOR, version, library, (DEVICE_NAME,), reason=_unavailable()
        )

    def rules(self) -> Sequence[PatternRule]:
        return [cuda_rule()]

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        return cuda_variants(subgraph, target)

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        load_tvm()
        from collage_tvm.cuda.build import build_kernel

        return build_kernel(subgraph, variant)

    def compile_ahead(self, subgraph: Subgraph, variant: Variant, target: Target) -> None:
        load_tvm()
        from collage_tvm.cuda.build import compile_ahead

        compile_ahead(subgraph, variant)

    def converts(self, type: TensorType, source: Format, destination: Format, target: Target) -> bool:
        if not source.device == destination.device == DEVICE_NAME:
            return False
        stored = {source.dtype, destination.dtype}
        can = stored == {type.dtype} or (type.dtype == "float32" and stored <= {"float32", *STORED})
        return can and type.dtype in MOVABLE - {"float16"} and 0 < type.size < 2**31 - 2**21

    def build_conversion(
        self, type: TensorType, source: Format, destination: Format, target: Target
    ) -> Kernel:
        load_tvm()
        from collage_tvm.cuda.build import build_conversion

        return build_conversion(type, source, destination)
