"""What is seen of kernels, conversions and crossings in place, and what it makes of predictions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from chain_placements import OK, TARGET, in_turn, key_of

from collage_core import Variant, plain_variant
from collage_core.costs.record import CostRecord
from collage_core.formats import channels_last, plain
from collage_core.ir import Graph, Subgraph, TensorType, from_model
from collage_core.measuring.costing import Costs
from collage_core.measuring.in_place import InPlace, Sightings, crossings
from collage_core.placement import VIEW, Conversion, Group, Placement
from collage_core.search.formulate import terms_ms
from collage_core.search.transitions import Transitions

if TYPE_CHECKING:
    from tests.pipeline.conftest import Parse


def test_constants_of_groups_and_crossings_are_not_counted_twice(graph: Graph) -> None:
    """A kernel's time in place has them in it; the search adds them again."""
    transitions = Transitions({"left": 0.25}, {"left": 0.5, "right": 0.5})
    sightings = Sightings(graph, transitions)
    placement = in_turn(graph, "left", "right", "left")
    sightings.add(placement, [2.0, 3.0, 0.6], 1.0, fair=False)
    found = sightings.in_place()
    assert found.kernels_ms == pytest.approx(
        {key_of(graph, "a", "left"): 1.75, key_of(graph, "b", "right"): 2.5, key_of(graph, "c", "left"): 0.0}
    )
    assert found.pace == {}
    costs = Costs(dict.fromkeys(found.kernels_ms, OK), {}, in_place=found, transitions=transitions)
    priced = costs.priced(graph, placement)
    assert priced.terms_ms == {"kernels": 4.25, "conversions": 0.0, "groups": 0.5, "crossings": 1.0}
    assert priced.predicted_ms == 5.75, "what it took, and what could not be less than nothing"


def test_of_a_crossing_each_side_has_its_share(graph: Graph) -> None:
    """Entering the slow one takes 0.5, leaving it 0.5: what runs behind it is no faster for that."""
    transitions = Transitions({}, {"slow": 1.0})
    sightings = Sightings(graph, transitions)
    sightings.add(in_turn(graph, "quick", "slow", "quick"), [2.0, 3.5, 0.75], 1.0, fair=False)
    assert sightings.in_place().kernels_ms == pytest.approx(
        {key_of(graph, "a", "quick"): 2.0, key_of(graph, "b", "slow"): 3.0, key_of(graph, "c", "quick"): 0.25}
    )


def test_a_value_crosses_once_however_many_read_it(parse: Parse) -> None:
    text = """(float[2, 3] x) => (float[2, 3] y)
    { [a] p = Relu(x)  [b] q = Reshape(p, s)  [c] r = Sigmoid(q)  [d] t = Tanh(p)  [e] u = Reshape(r, z)
      [f] v = Add(u, t) [g] y = Mul(v, t) }"""
    graph = from_model(parse(text, s=np.array([6]), z=np.array([2, 3])))
    placement = in_turn(graph, "one", VIEW, "two", "two", VIEW, "one", "one")
    left = {part.nodes: left for part, left in crossings(graph, placement) if isinstance(part, Group)}
    assert left == {
        (graph.nodes[0].id,): (),
        (graph.nodes[2].id,): (),  # through a view
        (graph.nodes[3].id,): ("one",),
        (graph.nodes[5].id,): ("two",),  # one operand comes through a view
        (graph.nodes[6].id,): (),  # has crossed before
    }
    found_ms = terms_ms(graph, placement, Transitions({"one": 0.25}, {"one": 1.0, "two": 3.0}))
    assert found_ms == {"kernels": 7.0, "conversions": 0.0, "groups": 0.75, "crossings": 4.0}


def test_where_a_part_has_no_cost_nothing_is_predicted(graph: Graph) -> None:
    placement = replace(in_turn(graph, "left", "left", "left"), predicted_ms=3.0)
    keys = [key_of(graph, name, "left") for name in "abc"]
    known = {keys[0]: OK, keys[1]: CostRecord("crashed", reason="it fell")}
    priced = Costs(known, {}).priced(graph, placement)
    assert [g.cost_ms for g in priced.groups] == [2.0, None, None]
    assert priced.predicted_ms is None
    known |= {keys[1]: OK, keys[2]: OK}
    assert Costs(known, {}).priced(graph, priced).predicted_ms == 6.0


def test_what_was_not_seen_goes_by_its_backends_pace(graph: Graph) -> None:
    sightings = Sightings(graph, Transitions())
    alone = Placement(
        tuple(
            Group("left", (n.id,), plain_variant(Subgraph(graph, [n.id])), ms)
            for n, ms in zip(graph.nodes, (1.0, 2.0, 1.0), strict=True)
        ),
        (),
        TARGET,
    )
    sightings.add(alone, [1.5, 2.0, 1.5], 1.0, fair=True)
    sightings.add(alone, [1.7, 2.0, 1.5], 1.0, fair=False)
    found = sightings.in_place()
    assert found.pace == {"left": 1.25}
    seen, unseen = key_of(graph, "a", "left"), ("something else", "", "left")
    assert found.kernel(seen, OK).median_ms == pytest.approx(1.6)
    assert found.kernel(seen, OK).spread_ms is None
    assert found.kernel(unseen, OK).median_ms == pytest.approx(2.5)
    assert found.kernel(("something else", "", "right"), OK).median_ms == pytest.approx(2.5)
    wrong = CostRecord("wrong", reason="7 is not 8")
    assert found.kernel(seen, wrong) is wrong
    assert InPlace().kernel(seen, OK) is OK


def test_conversions_are_seen_too(parse: Parse) -> None:
    graph = from_model(parse("(float[1,2,4,4] x) => (float y) { [a] p = Relu(x) [b] y = Neg(p) }"))
    flat, turned = plain("float32", (1, 2, 4, 4)), channels_last("float32", (1, 2, 4, 4))
    placement = Placement(
        (
            Group("left", (graph.nodes[0].id,), Variant((flat,), (turned,)), 1.0),
            Group("left", (graph.nodes[1].id,), Variant((flat,), (flat,)), 1.0),
        ),
        (Conversion("p", turned, flat, "right", 0.5),),
        TARGET,
    )
    sightings = Sightings(graph, Transitions())
    sightings.add(placement, [1.0, 1.0, 0.75], 2.0, fair=True)
    found = sightings.in_place()
    key = TensorType("float32", (1, 2, 4, 4)), turned, flat
    assert found.conversions_ms == {(key, "right"): 1.5}
    assert found.pace == {"left": 2.0, "right": 3.0}
    costs = Costs({}, {key: {"right": CostRecord("ok", 0.5, 0.0, 9), "left": CostRecord("ok", 0.7, 0.0, 9)}})
    assert costs.converters() == {key: ("right", 0.5)}
    costs.in_place = found
    assert costs.converters() == {key: ("left", 1.4)}
