"""A plugin: backends of single operators, of pairs of them, and of whatever it is asked about."""

from __future__ import annotations

from collections.abc import Sequence

import numpy_backend

from collage_core.backend import Backend, BackendInfo, BackendKind, Variant, plain_variant
from collage_core.errors import Refusal
from collage_core.formats import channels_last
from collage_core.ir import Subgraph
from collage_core.patterns import BackendPattern, is_op, wildcard
from collage_core.plugins import hookimpl
from collage_core.target import Target


class Pairs(numpy_backend.NumpyBackend):
    """Relu and Neg alone, and Neg behind Relu; row by row, and channels last."""

    name = "pairs"

    def patterns(self) -> Sequence[BackendPattern]:
        relu, neg = is_op("relu"), is_op("neg")
        return [
            BackendPattern(self.name, pattern, name)
            for name, pattern in (
                ("relu", relu(wildcard())),
                ("neg", neg(wildcard())),
                ("relu_neg", neg(relu(wildcard()))),
            )
        ]

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        if len(subgraph.nodes) > 2:
            return Refusal("two nodes at most", subgraph.nodes[0].name)
        plain = plain_variant(subgraph)
        shape = subgraph.graph.shape_of(subgraph.outputs[0])
        last = channels_last("float32", shape)
        return [plain, Variant((last,), (last,))]


class Singles(numpy_backend.NumpyBackend):
    """Any operator alone, row by row."""

    name = "singles"

    def patterns(self) -> Sequence[BackendPattern]:
        return [BackendPattern(self.name, is_op(op)(wildcard()), op) for op in ("relu", "neg", "abs")]

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        if len(subgraph.nodes) > 1:
            return Refusal("one node at most", subgraph.nodes[0].name)
        return [plain_variant(subgraph)]


class Whole(numpy_backend.NumpyBackend):
    """A graph library: any nodes as one group."""

    name = "whole"

    def info(self) -> BackendInfo:
        return BackendInfo(self.name, BackendKind.GRAPH, "1", "1")

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        return [plain_variant(subgraph)]


@hookimpl
def collage_backends() -> list[Backend]:
    """All three."""
    return [Pairs(), Singles(), Whole()]
