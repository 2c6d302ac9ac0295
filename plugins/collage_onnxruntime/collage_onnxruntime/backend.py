"""ONNX Runtime as a backend: whatever connected group it is handed becomes one session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from onnx import TensorProto

from collage_core.backend import Backend, BackendInfo, BackendKind, Kernel, StoredKernel, Variant
from collage_core.errors import BackendError, Refusal
from collage_core.graph_library import border_variants, known_fault
from collage_core.ir import Subgraph, subgraph_model
from collage_core.target import Target
from collage_onnxruntime import __version__
from collage_onnxruntime.faults import fault_of, is_cubic_resize
from collage_onnxruntime.kernel import Model
from collage_onnxruntime.session import DISTRIBUTION, Waiting, check, library_version

__all__ = ["OnnxRuntimeBackend"]

_INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
_FLOATS = ["float16", "float32", "float64", "bfloat16"]
_EIGHT_BITS = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"]
_BORDER_DTYPES = frozenset(["bool", *_INTEGERS, *_FLOATS, *_EIGHT_BITS])

_WAITING = "waiting"
"""Option of a variant: the name of a `Waiting`."""


class OnnxRuntimeBackend(Backend):
    """Groups of any size, optimised by the library as graphs of their own, on its CPU provider."""

    name = "onnxruntime"

    def info(self) -> BackendInfo:
        library = library_version()
        reason = f"the package {DISTRIBUTION} is not installed" if library is None else None
        return BackendInfo(self.name, BackendKind.GRAPH, __version__, library, reason=reason)

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        """Plain borders and, where images are computed, inside or right beside, channels-last ones: the
        library goes from either to layouts of its own at the same price, and computes elementwise groups in
        the layout that they come in.

        The threads of a group sleep between calls, for another kernel may run meanwhile. The whole graph has
        none beside it: in its plain variant they spin for a moment longer, and the next call finds them
        awake.
        """
        graph = subgraph.graph
        for v in (*subgraph.inputs, *subgraph.outputs):
            if (dtype := graph.type_of(v).dtype) not in _BORDER_DTYPES:
                return Refusal(f"{v!r} is {dtype}, which is not handed over", subgraph.nodes[0].name)
        if (fault := known_fault(subgraph, "ONNX Runtime", fault_of)) is not None:
            return fault
        plain, *others = border_variants(subgraph)
        if any(is_cubic_resize(n) for n in subgraph.nodes):
            others = []  # it moves the transposes at the border past the Resize, and then refuses that
        if subgraph.node_set == graph.all_nodes:
            plain = replace(plain, options=((_WAITING, Waiting.SPIN_BRIEFLY.name),))
        return [plain, *others]

    def refusal(self, subgraph: Subgraph, variant: Variant, target: Target) -> Refusal | None:
        """How its threads wait is up to whoever places it: a group may become a whole graph, or a part."""
        ways = {(), ((_WAITING, Waiting.SPIN_BRIEFLY.name),)}
        offered = self.variants(subgraph, target)
        if isinstance(offered, Refusal) or variant.options not in ways:
            return super().refusal(subgraph, variant, target)
        of_formats = (v for v in offered if (v.inputs, v.outputs) == (variant.inputs, variant.outputs))
        return super().refusal(subgraph, next(of_formats, variant), target)

    def supported(self, subgraphs: Sequence[Subgraph], target: Target) -> Sequence[Refusal | None]:
        return [self._refusal(s, target) for s in subgraphs]

    def _refusal(self, subgraph: Subgraph, target: Target) -> Refusal | None:
        offered = self.variants(subgraph, target)
        if isinstance(offered, Refusal):
            return offered
        try:
            model = _model(subgraph, offered[0], target)
            check(model.serialised, model.constants)
        except BackendError as error:
            return Refusal(str(error), subgraph.nodes[0].name)
        return None

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        return _model(subgraph, variant, target).opened()

    def stored(
        self, kernel: Kernel, subgraph: Subgraph, variant: Variant, target: Target
    ) -> StoredKernel | None:
        return _model(subgraph, variant, target).stored()

    def environment_beside(self, target: Target) -> Mapping[str, str]:
        # Threads of GNU OpenMP spin for some 5 ms after a kernel of theirs, on a core that this library's
        # threads then want (docs/adr/0016): in executables with both they give it up after some 20 us.
        return {"GOMP_SPINCOUNT": "1000"}


def _model(subgraph: Subgraph, variant: Variant, target: Target) -> Model:
    proto = subgraph_model(subgraph, variant.inputs, variant.outputs, constants_outside=True)
    outside = [t.name for t in proto.graph.initializer if t.data_location == TensorProto.EXTERNAL]
    return Model(
        proto.SerializeToString(),
        {v: subgraph.graph.constants[v] for v in outside},
        tuple((v, f.layout) for v, f in zip(subgraph.inputs, variant.inputs, strict=True)),
        tuple((v, f.layout) for v, f in zip(subgraph.outputs, variant.outputs, strict=True)),
        target.threads,
        Waiting[dict(variant.options).get(_WAITING, Waiting.SPIN_WITHIN.name)],
    )
