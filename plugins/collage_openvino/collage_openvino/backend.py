"""OpenVINO as a backend. Importing this module loads nothing of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from collage_core.backend import (
    Backend,
    BackendInfo,
    BackendKind,
    Kernel,
    StoredKernel,
    Variant,
    plain_variant,
)
from collage_core.errors import BackendError, Refusal
from collage_core.formats import BFLOAT16, CPU, Format
from collage_core.ir import Subgraph, TensorType, bodies_of
from collage_core.target import Target, processor
from collage_openvino import __version__
from collage_openvino.library import DISTRIBUTION, find_library, library_version
from collage_openvino.variants import variants

__all__ = ["OpenvinoBackend"]

_TOGETHER = 32
"""Groups that are asked for in one model."""


class OpenvinoBackend(Backend):
    """Any part of a graph as one model of OpenVINO's CPU plugin, in exact fp32, or in bfloat16 if asked."""

    name = "openvino"

    def info(self) -> BackendInfo:
        reason = None if find_library() else f"{DISTRIBUTION} is not installed"
        return BackendInfo(self.name, BackendKind.GRAPH, __version__, library_version(), reason=reason)

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        return variants(subgraph, target)

    def supported(self, subgraphs: Sequence[Subgraph], target: Target) -> Sequence[Refusal | None]:
        """The library has no cheaper question than to compile: what reads well may still have no
        implementation. It takes as long for one node as for a dozen, so groups are asked for together.
        """
        answers: dict[int, Refusal | None] = {}
        alike: dict[object, list[int]] = {}
        for k, subgraph in enumerate(subgraphs):
            offered = variants(subgraph, target)
            if isinstance(offered, Refusal):
                answers[k] = offered
            else:
                alone = k if any(map(bodies_of, subgraph.nodes)) else None
                alike.setdefault((alone, *sorted(subgraph.graph.opsets.items())), []).append(k)
        for found in alike.values():
            for first in range(0, len(found), _TOGETHER):
                asked = found[first : first + _TOGETHER]
                answers.update(zip(asked, _refusals([subgraphs[k] for k in asked], target), strict=True))
        return [answers[k] for k in range(len(subgraphs))]

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        from collage_openvino.build import build_kernel

        return build_kernel(subgraph, variant, target)

    def stored(
        self, kernel: Kernel, subgraph: Subgraph, variant: Variant, target: Target
    ) -> StoredKernel | None:
        from collage_openvino.build import stored_kernel

        return stored_kernel(subgraph, variant, target)

    def converts(self, type: TensorType, source: Format, destination: Format, target: Target) -> bool:
        """Only to and from bfloat16: how values lie inside a group is the library's own affair. Where the
        processor does not round to it, it cuts off.
        """
        return (
            type.dtype == "float32"
            and processor().multiplies_bfloat16
            and {source.dtype, destination.dtype} == {"float32", BFLOAT16}
            and source.layout == destination.layout
            and source.device == destination.device == CPU
            and not type.symbolic_dims
            and type.size > 0
        )

    def build_conversion(
        self, type: TensorType, source: Format, destination: Format, target: Target
    ) -> Kernel:
        from collage_openvino.build import build_conversion

        return build_conversion(type, source, destination, target)

    def environment_beside(self, target: Target) -> Mapping[str, str]:
        # Threads of GNU OpenMP spin for some 5 ms after a kernel of theirs, on a core that this library's
        # threads then want (docs/adr/0016): in executables with both they give it up after some 20 us.
        return {"GOMP_SPINCOUNT": "1000"}


def _refusals(subgraphs: Sequence[Subgraph], target: Target) -> list[Refusal | None]:
    """What the library says to each; where it refuses them together, the halves are asked for."""
    from collage_openvino.build import check_together

    try:
        check_together([(s, plain_variant(s)) for s in subgraphs], target)
    except BackendError as error:
        if len(subgraphs) == 1:
            return [Refusal(str(error), subgraphs[0].nodes[0].name)]
        half = len(subgraphs) // 2
        return _refusals(subgraphs[:half], target) + _refusals(subgraphs[half:], target)
    return [None] * len(subgraphs)
