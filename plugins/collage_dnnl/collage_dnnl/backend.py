"""oneDNN as a backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from collage_core.backend import Backend, BackendInfo, BackendKind, Kernel, Variant, rounded_to
from collage_core.errors import BackendError, DeclinedError, Refusal
from collage_core.formats import BFLOAT16, Format
from collage_core.ir import Subgraph, TensorType
from collage_core.patterns import BackendPattern
from collage_core.rules import PatternRule
from collage_core.target import Target
from collage_dnnl import __version__
from collage_dnnl.library import LIBRARY_FILE
from collage_dnnl.patterns import patterns
from collage_dnnl.rules import POST_OPS_RULE
from collage_dnnl.tensor import FP32, WHOLE_NUMBERS
from collage_dnnl.variants import convolved_channels, own_variants, variants

if TYPE_CHECKING:
    from collage_dnnl.kernels.plan import Plan
    from collage_dnnl.library import Library

__all__ = ["DnnlBackend"]

_MAX_CONVERSION_RANK = 6
_UNCOMPILED = "ref"
_BY_PAIRS = ("brg_conv", "brgconv")
"""Implementations that read channels in pairs."""
_BY_ROWS, _FEW_CHANNELS = "jit:avx512_core_amx", 16
"""Those that read some pixels of few channels as if they were one of many. Seen with up to four channels."""


class DnnlBackend(Backend):
    """Operator kernels of oneDNN 3.2 (the build with GNU OpenMP), fp32 and, stored so, bfloat16."""

    name = "dnnl"

    def info(self) -> BackendInfo:
        version, reason = LIBRARY_FILE.version(), LIBRARY_FILE.missing()
        return BackendInfo(self.name, BackendKind.OPERATOR, __version__, version, reason=reason)

    def patterns(self) -> Sequence[BackendPattern]:
        return patterns()

    def rules(self) -> Sequence[PatternRule]:
        return [POST_OPS_RULE]

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        return variants(subgraph, target)

    def supported(self, subgraphs: Sequence[Subgraph], target: Target) -> Sequence[Refusal | None]:
        from collage_dnnl.kernels.asking import first_refusal
        from collage_dnnl.kernels.planner import plan
        from collage_dnnl.library import load

        library = load()
        answers: list[Refusal | None] = []
        for subgraph in subgraphs:
            offered = own_variants(subgraph)  # the answer is kept for all groups of the same structural key
            if isinstance(offered, Refusal):
                answers.append(offered)
                continue
            try:
                plans = [plan(subgraph, v) for v in offered]
            except BackendError as error:
                answers.append(Refusal(str(error)))
                continue
            with library.threads(target.threads):
                answers.append(first_refusal(library, plans))
        return answers

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        from collage_dnnl.kernels.kernel import PrimitiveKernel
        from collage_dnnl.kernels.planner import plan
        from collage_dnnl.library import load

        library, planned = load(), plan(subgraph, variant)
        with library.threads(target.threads):
            self._refuse_slow(library, subgraph, variant, planned)
            self._refuse_careless(library, subgraph, variant, planned)
        return PrimitiveKernel(library, planned, target.threads)

    @staticmethod
    def _refuse_slow(library: Library, subgraph: Subgraph, variant: Variant, planned: Plan) -> None:
        """oneDNN has uncompiled, scalar implementations of everything, up to 100 times slower: they are taken
        only in fp32, for a single operator for which neither plain formats nor channels-last give anything
        better.
        DeclinedError otherwise, so that nobody waits for their measurement; the library is asked, nothing is
        compiled or packed.

        Whether a (structural key, variant) can be built must not depend on what stands beside the group, as
        its cost is kept for all places: formats that are offered for a neighbour's sake do not count here.
        """
        from collage_dnnl.kernels.asking import implementation_of
        from collage_dnnl.kernels.planner import plan

        def slow(p: Plan) -> bool:
            return (implementation_of(library, p) or _UNCOMPILED).startswith(_UNCOMPILED)

        if not slow(planned):
            return
        offered = own_variants(subgraph)
        others = [] if isinstance(offered, Refusal) else [v for v in offered if v != variant]
        if (
            rounded_to(subgraph, variant)
            or len(subgraph.nodes) > 1
            or not all(slow(plan(subgraph, v)) for v in others)
        ):
            raise DeclinedError("oneDNN has only an uncompiled implementation for these formats")

    @staticmethod
    def _refuse_careless(library: Library, subgraph: Subgraph, variant: Variant, planned: Plan) -> None:
        """In bfloat16 some convolutions read channels in pairs: of an odd number, the next pixel's or group's
        first one as well, times zero. With AMX those of few channels read the pixels beside a window so.
        Where that is infinite or NaN, pixels are lost that have nothing to do with it. DeclinedError for
        those.
        """
        from collage_dnnl.kernels.asking import implementation_of

        channels = convolved_channels(subgraph)
        if not rounded_to(subgraph, variant) or not (channels % 2 or 0 < channels < _FEW_CHANNELS):
            return
        implementation = implementation_of(library, planned) or ""
        if channels % 2 and implementation.startswith(_BY_PAIRS):
            raise DeclinedError("oneDNN's convolution of an odd number of channels reads a neighbour's, too")
        if channels < _FEW_CHANNELS and implementation.startswith(_BY_ROWS):
            raise DeclinedError("oneDNN's convolution of few channels reads the pixels beside them, too")

    def converts(self, type: TensorType, source: Format, destination: Format, target: Target) -> bool:
        floats = type.dtype == FP32 and {source.dtype, destination.dtype} <= {FP32, BFLOAT16}
        whole = type.dtype in WHOLE_NUMBERS and {source.dtype, destination.dtype} == {type.dtype}
        return (
            (floats or whole)
            and source.device == destination.device == "cpu"
            and 1 <= len(type.shape) <= _MAX_CONVERSION_RANK
            and not type.symbolic_dims
            and type.size > 0
        )

    def build_conversion(
        self, type: TensorType, source: Format, destination: Format, target: Target
    ) -> Kernel:
        from collage_dnnl.kernels.kernel import PrimitiveKernel
        from collage_dnnl.kernels.planner import plan_conversion
        from collage_dnnl.library import load

        return PrimitiveKernel(load(), plan_conversion(type, source, destination), target.threads)

    def environment(self, target: Target) -> Mapping[str, str]:
        # Waiting threads spin for a moment (the default): with OMP_WAIT_POLICY=passive every small call costs
        # 40 us.
        return {"OMP_NUM_THREADS": str(target.threads), "OMP_DYNAMIC": "false"}
