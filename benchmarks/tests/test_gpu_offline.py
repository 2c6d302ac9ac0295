"""What libraries are asked without a GPU, and the table of their answers."""

from __future__ import annotations

from typing import Any

import numpy as np
from collage_benchmarks.gpu.asking import ask
from collage_benchmarks.gpu.offline_table import table

from collage_core.backend import Backend, BackendInfo, BackendKind, Kernel, Variant
from collage_core.candidates import Candidate
from collage_core.errors import BackendError, Refusal
from collage_core.formats import plain
from collage_core.ir import Subgraph
from collage_core.patterns import BackendPattern, is_op, wildcard
from collage_core.target import Target
from collage_core.testing import make_graph, node

_TARGET = Target("cpu", 1, (), ("cuda",))


class _Toy(Backend):
    """Products and Relus on the device; it does not offer those of one row."""

    name = "toy"

    def info(self) -> BackendInfo:
        return BackendInfo(self.name, BackendKind.OPERATOR, "1", None, ("cuda",))

    def patterns(self) -> list[BackendPattern]:
        return [BackendPattern(self.name, is_op(op)(*ends)) for op, ends in _ENDS.items()]

    def variants(self, subgraph: Subgraph, target: Target) -> list[Variant] | Refusal:
        shape = subgraph.graph.shape_of
        if shape(subgraph.outputs[0])[0] == 1:
            return Refusal("one row", subgraph.nodes[0].name)
        formats = [plain("float32", shape(v), "cuda") for v in (*subgraph.inputs, *subgraph.outputs)]
        return [Variant(tuple(formats[:-1]), tuple(formats[-1:]))]

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        raise NotImplementedError


_ENDS = {"MatMul": (wildcard(), wildcard()), "Relu": (wildcard(),)}


def _answer() -> dict[str, Any]:
    nodes = [
        node("MatMul", ["x", "w"], "a"),
        node("MatMul", ["a", "w"], "b"),
        node("Relu", ["b"], "c"),
        node("MatMul", ["r", "w"], "d"),
    ]
    inputs = {"x": np.ones((4, 8), np.float32), "r": np.ones((1, 8), np.float32)}
    graph = make_graph(nodes, inputs, {"w": np.ones((8, 8), np.float32)}, ["c", "d"])

    def asked(candidate: Candidate) -> None:
        if candidate.subgraph.nodes[0].op_type == "Relu":
            raise BackendError("no | Relu here")

    return ask(graph, _Toy(), asked, _TARGET)


def test_structures_are_counted_once_and_flops_where_they_lie() -> None:
    answer = _answer()
    assert answer["offered"] == 2  # both products are alike
    assert answer["accepted"] == 1
    assert answer["declined"] == {"no | Relu here": 1}
    assert answer["not_offered"] == {"one row": 1}
    assert answer["flops_share"] == 8 / 9  # two products of four rows, and one of one row
    assert answer["nodes_share"] == 2 / 4


def test_the_table_says_who_declines_what() -> None:
    told = table(
        [{"network": "net", "library": "toy", "precisions": "fp32", "seconds": 1.0, **_answer()}],
        "the command",
    )
    assert "| net | toy | 2 | 1 | 88.9% | 50.0% | 1 |" in told
    assert "| toy | no / Relu here | 1 |" in told
    assert "the command" in told
