"""What the search is offered, beside what backends say."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from onnx import TensorProto, helper

from collage_core.backend import Backend, BackendInfo, BackendKind, Kernel, Variant
from collage_core.candidates import generate_candidates
from collage_core.errors import Refusal
from collage_core.formats import Format, plain
from collage_core.ir import Subgraph, from_model
from collage_core.patterns import BackendPattern, is_op, wildcard
from collage_core.placement import VIEW
from collage_core.target import Target

_SHAPE = (2, 3, 4, 5)
_EVERY = [Format.of("float32", _SHAPE, layout) for layout in permutations(range(4))]


class _AnyLayout(Backend):
    """Runs a Relu from plain to any of the 24 layouts."""

    name = "any"

    def info(self) -> BackendInfo:
        return BackendInfo(self.name, BackendKind.OPERATOR, "1", None)

    def patterns(self) -> Sequence[BackendPattern]:
        return [BackendPattern(self.name, is_op("Relu")(wildcard()))]

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        return [Variant((plain("float32", _SHAPE),), (written,)) for written in _EVERY]

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        raise NotImplementedError


def test_a_view_passes_on_every_format_that_somebody_writes() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "relu"),
        helper.make_node("Transpose", ["r"], ["y"], "turn", perm=[3, 1, 0, 2]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, _SHAPE)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, 3, 2, 4])
    graph = from_model(helper.make_model(helper.make_graph(nodes, "g", [x], [y])))
    offered = generate_candidates(graph, [_AnyLayout()], Target("cpu", 1)).candidates
    assert {c.variant.inputs[0] for c in offered if c.backend == VIEW} == set(_EVERY)
