"""The rules and patterns of the installed backends on real networks."""

from __future__ import annotations

import pytest
from collage_benchmarks.networks import NETWORKS

from collage_core import default_registry
from collage_core.ir import Graph, Operator, OpKind, Subgraph, from_model
from collage_core.ir.passes import normalise
from collage_core.patterns import find_matches
from collage_core.rules import generate


@pytest.fixture(scope="module", params=["tiny_conv", "tiny_encoder", "mnist", "mobilenet_v2"])
def graph(request: pytest.FixtureRequest) -> Graph:
    return normalise(from_model(NETWORKS[request.param].build()))


def test_groups_are_convex_and_leak_nothing(graph: Graph) -> None:
    """Only the last operator's results are read outside a group that a rule has grown."""
    groups = 0
    for backend in default_registry().available():
        for rule in backend.rules():
            for group in generate(graph, rule).groups:
                subgraph = Subgraph(graph, group)
                groups += len(group) > 1
                assert subgraph.is_convex
                for node in subgraph.nodes[:-1]:
                    for value in node.outputs:
                        assert value not in graph.outputs
                        assert all(r.id in group for r in graph.nodes if value in r.inputs)
        for pattern in backend.patterns():
            for m in find_matches(graph, pattern.pattern):
                assert m.subgraph.is_convex
                assert not Subgraph(graph, m.subgraph.node_set, m.root.node.outputs).leaks
    assert groups > 3


def test_elementwise_operators_are_fused_into_reductions() -> None:
    graph = normalise(from_model(NETWORKS["tiny_encoder"].build()))
    found = set()
    for rule in default_registry().backend("tvm").rules():
        for group in generate(graph, rule).groups:
            nodes = Subgraph(graph, group).nodes
            kinds = [Operator(graph, n).kind for n in nodes]
            if kinds[-1] == OpKind.REDUCTION and max(kinds[:-1], default=OpKind.OPAQUE) <= OpKind.BROADCAST:
                found.add("+".join(n.op_type for n in nodes))
    assert {"Div+Softmax", "Add+LayerNormalization", "Add+Add+LayerNormalization"} <= found
