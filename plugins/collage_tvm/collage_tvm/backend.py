"""The backend `tvm`. Importing this module loads nothing of TVM."""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Mapping, Sequence
from contextlib import suppress

from collage_run.image import OPENMP

from collage_core.backend import Backend, BackendInfo, BackendKind, Kernel, Tuned, Variant
from collage_core.errors import Refusal
from collage_core.formats import BFLOAT16, Format
from collage_core.ir import Subgraph, TensorType
from collage_core.rules import PatternRule
from collage_core.shared_library import installed_version
from collage_core.target import Target
from collage_tvm.loading import load_tvm
from collage_tvm.rules import NAME, tvm_rule
from collage_tvm.support import MOVABLE
from collage_tvm.tuning.groups import tunable_variants, tuned_variants, untunable
from collage_tvm.tuning.records import TUNED
from collage_tvm.variants import group_variants

__all__ = ["TvmBackend", "tvm_missing"]

_TVM = "0.27."
_FFI = "0.1.14"
_OPENMP_FOUND: list[bool] = []
"""Once it has been: `find_library` runs another program, which takes 2 ms, and this is often asked."""


def tvm_missing() -> str | None:
    """Why TVM cannot be loaded here."""
    tvm, ffi = installed_version("apache-tvm"), installed_version("apache-tvm-ffi")
    if tvm is None:
        return "apache-tvm is not installed: pip install apache-tvm==0.27.0 apache-tvm-ffi==0.1.14.post1"
    if ffi is None:
        return "apache-tvm-ffi is not installed: pip install apache-tvm-ffi==0.1.14.post1"
    if not tvm.startswith(_TVM):
        return (
            f"apache-tvm {tvm} is installed, whose compiler interface differs: pip install apache-tvm==0.27.0"
        )
    if not ffi.startswith(_FFI):
        return f"apache-tvm {tvm} crashes with apache-tvm-ffi {ffi}: pip install apache-tvm-ffi==0.1.14.post1"
    return None


def _unavailable() -> str | None:
    """Why there are no kernels for the CPU."""
    if (reason := tvm_missing()) is not None:
        return reason
    if installed_version("llvmlite") is None:
        return "llvmlite is not installed: pip install llvmlite"
    return _without_openmp()


def _without_openmp() -> str | None:
    """Why GNU OpenMP cannot be loaded. Where `find_library` has no answer the loader is asked."""
    if _OPENMP_FOUND:
        return None
    found = None
    with suppress(OSError):
        found = ctypes.util.find_library("gomp")
    if found is None:
        try:
            ctypes.CDLL(OPENMP)
        except OSError as error:
            if "No such file" in str(error):
                return f"GNU OpenMP ({OPENMP}) is not installed; Debian: apt install libgomp1"
            return f"GNU OpenMP cannot be loaded: {error}"
    _OPENMP_FOUND.append(True)
    return None


class TvmBackend(Backend):
    """Groups of operators through Apache TVM's code generator, scheduled here (`nest`, `pointwise`, `rows`,
    `scan`, `tiles`) or by MetaSchedule (`tuning`)."""

    name = NAME
    compiles_ahead = True
    stores_kernels = True

    def info(self) -> BackendInfo:
        version = installed_version("collage-tvm") or "0"
        return BackendInfo(
            NAME, BackendKind.OPERATOR, version, installed_version("apache-tvm"), reason=_unavailable()
        )

    def rules(self) -> Sequence[PatternRule]:
        return [tvm_rule()]

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        offered, tuned = group_variants(subgraph, target), tuned_variants(subgraph, target)
        if isinstance(offered, Refusal):
            return tuned or offered
        return [*offered, *tuned]

    def refusal(self, subgraph: Subgraph, variant: Variant, target: Target) -> Refusal | None:
        """What was tuned elsewhere is not offered here, and is built all the same."""
        if [name for name, _ in variant.options] != [TUNED]:
            return super().refusal(subgraph, variant, target)
        return untunable(subgraph, variant)

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        load_tvm()
        from collage_tvm.build import build_kernel

        return build_kernel(subgraph, variant, target)

    def compile_ahead(self, subgraph: Subgraph, variant: Variant, target: Target) -> None:
        load_tvm()
        from collage_tvm.build import compile_kernel_ahead

        compile_kernel_ahead(subgraph, variant, target)

    def converts(self, type: TensorType, source: Format, destination: Format, target: Target) -> bool:
        stored = {source.dtype, destination.dtype}
        can = stored == {type.dtype} or (type.dtype == "float32" and stored <= {"float32", BFLOAT16})
        return can and type.dtype in MOVABLE and 0 < type.size < 2**31

    def build_conversion(
        self, type: TensorType, source: Format, destination: Format, target: Target
    ) -> Kernel:
        load_tvm()
        from collage_tvm.build import build_copy

        return build_copy(type, source, destination, target)

    def tunable(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        return tunable_variants(subgraph, target)

    def tune(self, subgraph: Subgraph, variant: Variant, target: Target, trials: int) -> Tuned:
        load_tvm()
        from collage_tvm.tuning.step import tune_step

        return tune_step(subgraph, variant, target, trials)

    def environment(self, target: Target) -> Mapping[str, str]:
        # Parallel loops run on GNU OpenMP's pool, and say themselves how many threads they want. Its waiting
        # threads spin for a moment (the default): asleep, they would take 40 us to wake.
        return {"OMP_DYNAMIC": "false"}
