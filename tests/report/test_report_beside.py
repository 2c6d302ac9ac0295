"""Two placements of one model side by side."""

from __future__ import annotations

from dataclasses import replace

import pytest
from converted_placement import converted, report_of

from collage_core import Placement, Variant
from collage_core.report.beside import beside_json, beside_parts
from collage_core.report.text import explain_text


def _differing(placement: Placement, what: str) -> Placement:
    """The second group otherwise."""
    first, second, *others = placement.groups
    (read,), (made,) = second.variant.inputs, second.variant.outputs
    other = {
        "backend": replace(second, backend="other"),
        "device": replace(second, variant=Variant((read.on("far"),), (made.on("far"),))),
        "formats": replace(second, variant=Variant((read,), (read,))),
    }[what]
    return replace(placement, groups=(first, replace(other, cost_ms=1.0), *others))


def test_what_moved() -> None:
    graph, placement = converted()
    before = replace(_differing(placement, "backend"), conversions=placement.conversions[:1])
    contenders = {"collage": {"median_ms": 2.0}}
    here = report_of(graph, placement, contenders=contenders, predicted_ms=1.5)
    there = report_of(graph, before, contenders={"collage": {"median_ms": 3.0}}, predicted_ms=None)
    beside = beside_json(here, there, "before.collage")
    assert beside == {
        "other": "before.collage",
        "is_same_model": True,
        "totals": {
            "here": {"measured_ms": 2.0, "predicted_ms": 1.5, "conversions": 3, "conversions_ms": 0.5},
            "there": {"measured_ms": 3.0, "predicted_ms": None, "conversions": 1, "conversions_ms": 0.125},
        },
        "moved": [
            {
                "nodes": ['re"lu\\'],
                "what": ["backend"],
                "here": {"group": 1, "where": "1 swift", "ms": 0.25},
                "there": {"group": 1, "where": "1 other", "ms": 1.0},
            }
        ],
        "only_here": [],
        "only_there": [],
    }
    text, table = map(str, beside_parts(beside))
    assert text.splitlines() == [
        "beside before.collage: 1 node moved",
        "measured: 3.0000 ms there, 2.0000 ms here (1.500 times as fast)",
        "predicted: - ms there, 1.5000 ms here",
        "conversions: 1 there, 0.1250 ms; 3 here, 0.5000 ms",
        "each was measured when it was made; `collage check` compares on the machine as it is now",
    ]
    assert " ".join(table.splitlines()[-1].split()) == 're"lu\\ backend 1 other 1.0000 1 swift 0.2500'
    assert table in explain_text({**here, "beside": beside})


@pytest.mark.parametrize("what", ["device", "formats"])
def test_a_group_that_stays_where_it_is_otherwise(what: str) -> None:
    graph, placement = converted()
    there = report_of(graph, _differing(placement, what))
    (moved,) = beside_json(report_of(graph, placement), there, "b")["moved"]
    assert moved["nodes"] == ['re"lu\\']
    assert what in moved["what"]
    assert moved["there"]["where"] == ("1 swift on far" if what == "device" else "1 swift")


def test_the_same_backend_with_others_beside_it() -> None:
    graph, placement = converted()
    first, _, *others = placement.groups
    last = first.variant.outputs[0]
    both = replace(first, nodes=(0, 1), variant=replace(first.variant, outputs=(last, last)))
    fused = report_of(graph, replace(placement, groups=(both, *others)))
    told = beside_json(fused, report_of(graph, placement), "apart")["moved"]
    assert [m["nodes"] for m in told] == [["conv"], ['re"lu\\']]
    assert all("nodes" in m["what"] for m in told)


def test_nothing_moved() -> None:
    report = report_of(*converted())
    (text,) = beside_parts(beside_json(report, report, "b"))
    assert str(text).startswith("beside b: no nodes moved\n")


def test_of_another_model_it_says_so() -> None:
    graph, placement = converted()
    here = report_of(graph, placement)
    there = report_of(graph, placement)
    there["dataflow"]["operators"][0]["name"] = "other"
    beside = beside_json(here, there, "b")
    assert (beside["only_here"], beside["only_there"]) == (["conv"], ["other"])
    text = str(beside_parts(beside)[0])
    assert text.startswith("b is of another model: times do not compare\n")
    assert "1 only here, conv first" in text
