"""What flows through a placement: counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from converted_placement import PEAKS, converted, report_of

from collage_core.costs.roofline import Peaks
from collage_core.report.dataflow import dataflow_parts, peaks_json
from collage_core.report.text import explain_text


def test_operators_know_their_group() -> None:
    flow = report_of(*converted())["dataflow"]
    assert flow["operators"] == [
        {"name": "conv", "op": "Conv", "group": 0},
        {"name": 're"lu\\', "op": "Relu", "group": 1},
        {"name": "sum", "op": "Add", "group": 2},
        {"name": "flat", "op": "Flatten", "group": 3},
    ]


def test_work_of_groups() -> None:
    flow = report_of(*converted())["dataflow"]
    # 32 elements, four products each; 16 + 32 weights + 32 elements of 4 bytes. A view does nothing.
    told = [(g["flops"], g["bytes"], g["least_ms"]) for g in flow["groups"]]
    assert told == [(256, 320, None), (32, 128 + 64, None), (32, 384, None), (0, 0, None)]
    assert flow["flops"] == 320
    assert flow["bytes"] == {
        "groups": 320 + 192 + 384,
        "conversions": 256 + (64 + 128) + 256,
        "transfers": 0,
    }


def test_edges_go_by_way_of_conversions() -> None:
    flow = report_of(*converted())["dataflow"]
    told = {(e["value"], e["from"], e["to"]): (e["bytes"], e["conversions"]) for e in flow["edges"]}
    assert told == {
        ("x", None, 0): (64, []),
        ("c", 0, 1): (128, []),
        ("c", 0, 2): (128, [0]),
        ("r", 1, 2): (128, [1, 2]),
        ("s", 2, 3): (128, []),
        ("f", 3, None): (128, []),
        ("c", 0, None): (128, [0]),
    }
    assert {e["type"] for e in flow["edges"] if e["value"] == "c"} == {"float32[1,8,2,2]"}


def test_what_stays_within_a_group_has_no_format() -> None:
    graph, placement = converted()
    first, second, *others = placement.groups
    one = replace(
        first, nodes=(0, 1), variant=replace(first.variant, outputs=(first.variant.outputs[0],) * 2)
    )
    conversions = tuple(
        replace(c, source=first.variant.outputs[0]) for i, c in enumerate(placement.conversions) if i != 1
    )
    flow = report_of(graph, replace(placement, groups=(one, *others), conversions=conversions))["dataflow"]
    (within,) = [e for e in flow["edges"] if (e["value"], e["to"]) == ("c", 1)]
    assert (within["format"], within["conversions"]) == (None, [])
    assert [v["value"] for v in flow["largest"]].count("c") == 1
    assert second not in (one, *others)


def test_the_largest_values_that_leave_their_group() -> None:
    largest = report_of(*converted())["dataflow"]["largest"]
    assert [v["value"] for v in largest] == ["c", "f", "r", "s", "x"], "by bytes, then by name"
    assert largest[0] == {"value": "c", "bytes": 128, "from": 0, "to": [1, 2, None], "conversions": [0]}
    assert largest[2]["conversions"] == [1, 2]
    assert largest[-1] == {"value": "x", "bytes": 64, "from": None, "to": [0], "conversions": []}


def test_a_conversion_that_is_missing_is_not_looked_for_twice() -> None:
    graph, placement = converted()
    there, back, _ = placement.conversions
    loop = replace(there, value="r", source=there.destination), replace(back, source=back.destination)
    flow = report_of(graph, replace(placement, conversions=loop))["dataflow"]
    assert [e["conversions"] for e in flow["edges"] if e["value"] == "r"] == [[0]]


def test_least_times_are_those_of_the_roofline() -> None:
    groups = report_of(*converted(), peaks=PEAKS)["dataflow"]["groups"]
    # A million flops a second, and two million bytes from the cache.
    assert [g["least_ms"] for g in groups] == [pytest.approx(t) for t in (0.256, 0.096, 0.192, 0.0)]


def test_a_group_that_is_faster_than_the_peaks_raises_them() -> None:
    graph, placement = converted()
    first, *others = placement.groups
    swift = replace(placement, groups=(replace(first, cost_ms=0.064), *others))
    groups = report_of(graph, swift, peaks=PEAKS)["dataflow"]["groups"]
    assert groups[0]["least_ms"] == pytest.approx(0.064)
    assert groups[1]["least_ms"] == pytest.approx(192 / 5e6 * 1e3), "the same cache"


def test_peaks_as_they_are_kept() -> None:
    assert peaks_json(Peaks(10.0, {1000: 50.0, 9000: 20.0})) == {
        "gflops": 10.0,
        "memory_gb_per_s": 20.0,
        "copy_gb_per_s": {"1000": 50.0, "9000": 20.0},
    }


def test_told_for_reading() -> None:
    report = report_of(*converted(), peaks=PEAKS)
    reached, moved, largest = map(str, dataflow_parts(report))
    rows = [line.split() for line in reached.splitlines()]
    assert rows[2][:3] == ["2", "other", "2.0000"], "the longest first"
    assert rows[2][-2:] == ["0.1920", "10%"]
    assert len(rows) == 2 + 3, "a view takes no time"
    assert "0.0 MB read and written by groups" in moved
    assert "arithmetic intensity: 0.2 FLOP per byte" in moved
    assert (
        " ".join(largest.splitlines()[2].split()) == "c 0.000 0 swift 1 swift, 2 other, the model's outputs 1"
    )
    assert str(largest) in explain_text(report)


def test_a_placement_that_nobody_timed() -> None:
    graph, placement = converted()
    unknown = tuple(replace(g, cost_ms=None) for g in placement.groups)
    moved, _ = map(str, dataflow_parts(report_of(graph, replace(placement, groups=unknown))))
    assert "this machine" not in moved
