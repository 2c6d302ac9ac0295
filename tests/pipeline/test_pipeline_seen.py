"""The search among what was seen in place."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import pytest
from bounded_problems import KINDS, TARGET, Problem, record_of

from collage_core import plain_variant
from collage_core.candidates import Candidate, CandidateSet
from collage_core.errors import PlacementError
from collage_core.ir import Subgraph, from_model
from collage_core.measuring.costing import Costs
from collage_core.measuring.in_place import InPlace

_TWO_NODES = """<ir_version: 10, opset_import: ["": 20]>
g (float[8] x) => (float[8] y) { [heavy] z = Relu(x)  [light] y = Neg(z) }"""


def _seen(costs_ms: Mapping[tuple[str, str], float], unseen: tuple[str, str]) -> list[str]:
    """Who runs the two nodes in the best of what was seen in place: all but one kernel. Costs are by backend
    and nodes.
    """
    graph = from_model(onnx.parser.parse_model(_TWO_NODES))
    nodes = {n.name: [n.id] for n in graph.nodes} | {"whole": list(graph.all_nodes)}
    alone = {name: Subgraph(graph, ids) for name, ids in nodes.items()}
    offered = {(b, n): Candidate(alone[n], b, plain_variant(alone[n]), "pattern") for b, n in costs_ms}
    truth = Costs({offered[c].kernel_key: record_of(ms) for c, ms in costs_ms.items()}, {})
    problem = Problem(CandidateSet(graph, TARGET, tuple(offered.values()), {}, KINDS), truth, lambda: 1.0)
    with problem.known() as known:
        known.ledger.measure_all()
        known.costs.in_place = InPlace(
            {offered[c].kernel_key: ms for c, ms in costs_ms.items() if c != unseen}
        )
        return [g.backend for g in known.search_seen().placement.groups]


_SEEN_MS = {("red", "heavy"): 1.0, ("green", "heavy"): 2.0, ("red", "light"): 0.1}


def test_of_what_was_seen_in_place_the_best_is_no_whole() -> None:
    """Red's light kernel was not seen. Blue takes the whole graph, and the least of all that was."""
    costs_ms = {**_SEEN_MS, ("green", "light"): 3.0, ("blue", "whole"): 1.5}
    assert _seen(costs_ms, ("red", "light")) == ["red", "green"]


def test_the_reference_is_no_stopgap_for_what_was_not_seen() -> None:
    with pytest.raises(PlacementError):
        _seen({**_SEEN_MS, ("ref", "light"): 3.0}, ("red", "light"))
