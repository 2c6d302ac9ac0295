"""The reference as a backend, so that no model ever fails to place."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence

import numpy as np

from collage_core.backend import Backend, BackendInfo, BackendKind, Bound, Kernel, Variant, plain_variant
from collage_core.devices import Queue
from collage_core.errors import ModelError, Refusal
from collage_core.formats import Array, Format
from collage_core.ir import Subgraph, TensorType
from collage_core.reference.evaluator import NodeEvaluator, run_nodes
from collage_core.target import Target

__all__ = ["ReferenceBackend"]


class ReferenceBackend(Backend):
    """Runs any subgraph in plain formats. It has no patterns: core asks it for single nodes by itself."""

    name = "reference"

    def info(self) -> BackendInfo:
        return BackendInfo(
            self.name,
            BackendKind.REFERENCE,
            version=importlib.metadata.version("collage-core"),
            library_version=importlib.metadata.version("onnx"),
        )

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        for node in subgraph.nodes:
            try:
                NodeEvaluator(subgraph.graph, node)
            except ModelError as error:
                return Refusal(str(error), node.name)
        return [plain_variant(subgraph)]

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        return ReferenceKernel(subgraph)

    def converts(self, type: TensorType, source: Format, destination: Format, target: Target) -> bool:
        """From one float into another, which hardly any library does; layouts are what they do."""
        can_store = all(f.can_store(type.dtype, len(type.shape)) for f in (source, destination))
        return can_store and source.dtype != destination.dtype

    def build_conversion(
        self, type: TensorType, source: Format, destination: Format, target: Target
    ) -> Kernel:
        return CopyKernel()

    def environment(self, target: Target) -> Mapping[str, str]:
        """For NumPy's OpenBLAS: one thread, whatever the target has. So sums are those of the answers that
        all are compared with; several lose more by waiting than they gain where cores are few or shared.
        """
        return {"OPENBLAS_NUM_THREADS": "1"}


class CopyKernel(Kernel):
    """From any layout and dtype into any other; to less precise ones NumPy rounds to nearest even."""

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        source, destination = inputs[0], outputs[0]

        def call() -> None:
            np.copyto(destination, source, casting="unsafe")

        return call


class ReferenceKernel(Kernel):
    """Evaluates its nodes one by one and copies what leaves them into the outputs. Allocates as it goes."""

    def __init__(self, subgraph: Subgraph) -> None:
        self._inputs = subgraph.inputs
        self._outputs = subgraph.outputs
        self._nodes = [NodeEvaluator(subgraph.graph, n) for n in subgraph.nodes]
        reads = {v for n in self._nodes for v in n.reads}
        self._constants = {v: a for v, a in subgraph.graph.constants.items() if v in reads}

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        def call() -> None:
            values = {**self._constants, **dict(zip(self._inputs, inputs, strict=True))}
            run_nodes(self._nodes, values, self._outputs)
            for name, output in zip(self._outputs, outputs, strict=True):
                np.copyto(output, values[name])

        return call
