"""Placements that somebody edits: nothing is told of them that is of what they were."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from collage_core import Conversion, Group, Placement, Target, Variant
from collage_core.errors import PlacementError
from collage_core.formats import channels_last, plain

_SHAPE = (1, 3, 4, 4)
_ROWS, _LAST = plain("float32", _SHAPE), channels_last("float32", _SHAPE)
_FIRST = Group("swift", (0, 1), Variant((_ROWS,), (_ROWS,)), 0.5, 0.01)
_SECOND = Group("slow", (2,), Variant((_LAST,), (_LAST,)), 0.25, 0.02)
_BETWEEN = Conversion("v", _ROWS, _LAST, "swift", 0.125)
_PLACEMENT = Placement(
    (_FIRST, _SECOND), (_BETWEEN,), Target("cpu", 2), 0.875, True, "dp", {"kernels": 0.75}, "abc"
)


def _stored(placement: Placement = _PLACEMENT) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(json.dumps(placement.to_json()))
    return data


def test_what_nobody_edited_comes_back_as_it_was() -> None:
    assert Placement.from_json(_stored()) == _PLACEMENT


def test_before_it_was_told_of_what_things_are() -> None:
    data = _stored()
    for part in (data, *data["groups"], *data["conversions"]):
        del part["of"]
    assert Placement.from_json(data) == _PLACEMENT


def _is_unclaimed(placement: Placement) -> bool:
    claims = placement.predicted_ms, placement.optimal, placement.method, placement.terms_ms
    return claims == (None, False, "manual", {})


def test_a_group_that_was_moved_has_no_cost() -> None:
    data = _stored()
    data["groups"][1]["backend"] = "other"
    found = Placement.from_json(data)
    assert _is_unclaimed(found)
    assert found.groups == (_FIRST, Group("other", (2,), _SECOND.variant))
    assert (found.conversions, found.target, found.graph) == ((_BETWEEN,), _PLACEMENT.target, "abc")


@pytest.mark.parametrize("key", ["value", "backend"])
def test_nor_has_a_conversion(key: str) -> None:
    data = _stored()
    data["conversions"][0][key] = "w"
    found = Placement.from_json(data)
    assert _is_unclaimed(found)
    assert [c.cost_ms for c in found.conversions] == [None]
    assert found.groups == _PLACEMENT.groups


def test_a_group_that_was_taken_out_leaves_the_others_costs() -> None:
    data = _stored()
    del data["groups"][1]
    found = Placement.from_json(data)
    assert _is_unclaimed(found)
    assert found.groups == (_FIRST,)


def test_another_number_of_threads_is_another_placement() -> None:
    assert _is_unclaimed(Placement.from_json(_stored() | {"threads": 1}))


def test_of_is_a_text() -> None:
    with pytest.raises(PlacementError, match="'of' of the placement is 7"):
        Placement.from_json(_stored() | {"of": 7})


def test_edited_in_python() -> None:
    moved = replace(_SECOND, backend="other")
    found = _PLACEMENT.edited([_FIRST, moved])
    assert _is_unclaimed(found)
    assert found.groups == (_FIRST, Group("other", (2,), _SECOND.variant))
    assert found.conversions == (_BETWEEN,)
    assert _PLACEMENT.edited([_FIRST], []).conversions == ()
    assert _PLACEMENT.edited(_PLACEMENT.groups).digest == _PLACEMENT.digest
