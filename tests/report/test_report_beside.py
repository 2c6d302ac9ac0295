"""Two placements of one model side by side."""

from __future__ import annotations

from dataclasses import replace

from converted_placement import converted, report_of

from collage_core.report.beside import beside_json, beside_parts


def test_what_moved() -> None:
    graph, placement = converted()
    first, second, *others = placement.groups
    before = replace(placement, groups=(first, replace(second, backend="other", cost_ms=1.0), *others))
    contenders = {"collage": {"median_ms": 2.0}}
    here = report_of(graph, placement, contenders=contenders, predicted_ms=1.5)
    there = report_of(graph, before, contenders={"collage": {"median_ms": 3.0}}, predicted_ms=None)
    beside = beside_json(here, there, "before.collage")
    assert beside == {
        "other": "before.collage",
        "ms": {"here": {"measured": 2.0, "predicted": 1.5}, "there": {"measured": 3.0, "predicted": None}},
        "moved": [
            {
                "node": 're"lu\\',
                "op": "Relu",
                "here": {"group": 1, "backend": "swift", "ms": 0.25},
                "there": {"group": 1, "backend": "other", "ms": 1.0},
            }
        ],
        "regrouped": 0,
        "only_here": [],
        "only_there": [],
    }
    text, table = beside_parts(beside)
    assert str(text).splitlines() == [
        "beside before.collage: 1 nodes moved, 0 regrouped",
        "measured: 3.0000 ms there, 2.0000 ms here (1.500 times as fast)",
        "predicted: - ms there, 1.5000 ms here",
        "each was measured when it was made; `collage check` compares on the machine as it is now",
    ]
    assert " ".join(str(table).splitlines()[-1].split()) == 're"lu\\ Relu 1 other 1.0000 1 swift 0.2500'


def test_the_same_backend_with_others_beside_it() -> None:
    graph, placement = converted()
    first, _, *others = placement.groups
    both = replace(
        first, nodes=(0, 1), variant=replace(first.variant, outputs=(first.variant.outputs[0],) * 2)
    )
    fused = replace(placement, groups=(both, *others))
    beside = beside_json(report_of(graph, placement), report_of(graph, fused), "fused")
    assert (beside["moved"], beside["regrouped"]) == ([], 2)
    assert beside_parts(beside)[1:] == [], "no table of nothing"


def test_of_another_model_it_says_so() -> None:
    graph, placement = converted()
    here = report_of(graph, placement)
    there = report_of(graph, placement)
    there["dataflow"]["operators"][0]["name"] = "other"
    beside = beside_json(here, there, "b")
    assert (beside["only_here"], beside["only_there"]) == (["conv"], ["other"])
    assert "1 nodes are here only, conv first" in str(beside_parts(beside)[0])
