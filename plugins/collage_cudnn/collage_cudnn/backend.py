"""cuDNN as a backend."""

from __future__ import annotations

from collections.abc import Sequence

from collage_cuda import NAME as DEVICE_NAME

from collage_core.backend import Backend, BackendInfo, BackendKind, Kernel, Variant
from collage_core.errors import BackendError, DeclinedError, Refusal
from collage_core.formats import Format
from collage_core.ir import Subgraph, TensorType
from collage_core.patterns import BackendPattern
from collage_core.rules import PatternRule
from collage_core.target import Target
from collage_cudnn import NAME, __version__
from collage_cudnn.patterns import patterns
from collage_cudnn.presence import described_device, library_version, missing_reason
from collage_cudnn.rules import FUSION_RULE
from collage_cudnn.variants import variants

__all__ = ["CudnnBackend", "between_of"]

_CONVERTED = frozenset(["bfloat16", "float16", "float32"])
_CONVERSION_RANKS = range(1, 6)
_MOST_ELEMENTS = 2**31 - 1


class CudnnBackend(Backend):
    """Kernels of cuDNN 9 on the first NVIDIA GPU: fp32 as it is, and, stored so, bfloat16 and float16."""

    name = NAME

    def info(self) -> BackendInfo:
        version, reason = library_version(), missing_reason()
        return BackendInfo(self.name, BackendKind.OPERATOR, __version__, version, (DEVICE_NAME,), reason)

    def patterns(self) -> Sequence[BackendPattern]:
        return patterns()

    def rules(self) -> Sequence[PatternRule]:
        return [FUSION_RULE]

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        return variants(subgraph, target)

    def supported(self, subgraphs: Sequence[Subgraph], target: Target) -> Sequence[Refusal | None]:
        """Asks the library about every variant of each: one that it takes is enough."""
        from collage_cudnn.asking import refusal_of
        from collage_cudnn.library import load

        if described_device() is None:
            from collage_cuda.device import DEVICE

            DEVICE.current()
        library = load()
        return [refusal_of(library, subgraph, variants(subgraph, target)) for subgraph in subgraphs]

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        from collage_cudnn.building import kernel_of
        from collage_cudnn.planning.planner import plan

        try:
            planned = plan(subgraph, variant)
        except BackendError as error:
            raise DeclinedError(str(error)) from error
        return kernel_of(planned)

    def converts(self, type: TensorType, source: Format, destination: Format, target: Target) -> bool:
        """Between types and between layouts."""
        dtypes = {source.dtype, destination.dtype}
        return (
            source != destination
            and source.device == destination.device == DEVICE_NAME
            and type.dtype in _CONVERTED
            and dtypes <= _CONVERTED
            and len(type.shape) in _CONVERSION_RANKS
            and not type.symbolic_dims
            and 0 < type.size <= _MOST_ELEMENTS
        )

    def build_conversion(
        self, type: TensorType, source: Format, destination: Format, target: Target
    ) -> Kernel:
        from collage_cudnn.building import kernel_of
        from collage_cudnn.pair import PairKernel
        from collage_cudnn.planning.others import plan_conversion

        if source.layout == destination.layout or source.dtype == destination.dtype:
            return kernel_of([plan_conversion(type, source, destination)])
        between = between_of(source, destination)
        hops = ((source, between), (between, destination))
        first, second = (kernel_of([plan_conversion(type, *hop)]) for hop in hops)
        return PairKernel(first, second, type.static_shape, between)


def between_of(source: Format, destination: Format) -> Format:
    """By way of which both the type and the layout are changed: elements are moved as float32, which the
    library surely does, where one of the types is that.
    """
    if source.dtype == "float32":
        return Format(source.dtype, destination.layout, source.device)
    return Format(destination.dtype, source.layout, source.device)
