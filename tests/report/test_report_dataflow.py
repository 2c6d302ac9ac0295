"""What flows through a placement: counted by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from converted_placement import PEAKS, converted, report_of
from onnx import helper

from collage_core import Conversion, Group, Placement, Target, Variant
from collage_core.costs.roofline import Peaks
from collage_core.formats import plain
from collage_core.ir import from_model
from collage_core.placement import transfers_name
from collage_core.report.dataflow import Hop, hops, peaks_json
from collage_core.report.movement import dataflow_parts, quantity
from collage_core.report.text import explain_text
from collage_core.testing import make_model


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
    told = [(g["flops"], g["bytes"], g["at_peaks_ms"], g["limit"]) for g in flow["groups"]]
    assert told == [
        (256, 320, None, None),
        (32, 128 + 64, None, None),
        (32, 384, None, None),
        (0, 0, None, None),
    ]
    assert (flow["flops"], flow["peaks"]) == (320, None)
    assert flow["bytes"] == {
        "groups": 320 + 192 + 384,
        "conversions": 256 + (64 + 128) + 256,
        "transfers": 0,
    }


def test_edges_go_by_way_of_conversions() -> None:
    flow = report_of(*converted())["dataflow"]
    told = {
        (e["value"], e["from"], e["to"]): ([m["bytes"] for m in e["moved"]], e["conversions"])
        for e in flow["edges"]
    }
    assert told == {
        ("x", None, 0): ([64], []),
        ("c", 0, 1): ([128], []),
        ("c", 0, 2): ([128, 128], [0]),
        ("r", 1, 2): ([64, 128, 128], [1, 2]),  # bfloat16 as it is made, float32 from then on
        ("s", 2, 3): ([128], []),
        ("f", 3, None): ([128], []),
        ("c", 0, None): ([128, 128], [0]),
    }
    assert {e["type"] for e in flow["edges"] if e["value"] == "c"} == {"float32[1,8,2,2]"}
    (rounded,) = [e for e in flow["edges"] if e["value"] == "r"]
    assert [m["format"] for m in rounded["moved"]] == ["bfloat16:0231", "float32:0231", "float32:plain"]


def test_what_stays_within_a_group_moves_nothing() -> None:
    graph, placement = converted()
    first, _, *others = placement.groups
    last = first.variant.outputs[0]
    one = replace(first, nodes=(0, 1), variant=replace(first.variant, outputs=(last, last)))
    there, _, back = placement.conversions
    report = report_of(graph, replace(placement, groups=(one, *others), conversions=(there, back)))
    (within,) = [e for e in report["dataflow"]["edges"] if (e["value"], e["to"]) == ("c", 1)]
    assert (within["moved"], within["conversions"]) == ([], [])
    assert Hop("n0", "n1", "c", "float32[1,8,2,2]", None, None, "within") in list(hops(report))


def test_hops_are_pieces_of_the_way() -> None:
    told = [(h.source, h.target, h.value, h.bytes, h.kind) for h in hops(report_of(*converted()))]
    assert told == [
        ("in x", "n0", "x", 64, "moved"),
        ("n0", "n1", "c", 128, "moved"),
        ("n0", "c0", "c", 128, "converted"),
        ("c0", "n2", "c", 128, "converted"),
        ("n1", "c1", "r", 64, "converted"),
        ("c1", "c2", "r", 128, "converted"),
        ("c2", "n2", "r", 128, "converted"),
        ("n2", "n3", "s", 128, "moved"),
        ("n3", "out f", "f", 128, "moved"),
        ("c0", "out c", "c", 128, "converted"),  # once to the conversion, for both who read it
    ]


def test_the_largest_values_that_leave_their_group() -> None:
    largest = report_of(*converted())["dataflow"]["largest"]
    assert [v["value"] for v in largest] == ["c", "f", "r", "x"], "by bytes, then by name; none to a view"
    assert largest[0] == {"value": "c", "bytes": 128, "from": 0, "to": [1, 2, None], "conversions": [0]}
    assert largest[2]["conversions"] == [1, 2]
    assert largest[-1] == {"value": "x", "bytes": 64, "from": None, "to": [0], "conversions": []}


def test_a_conversion_that_is_missing_is_not_looked_for_twice() -> None:
    graph, placement = converted()
    there, back, _ = placement.conversions
    loop = replace(there, value="r", source=there.destination), replace(back, source=back.destination)
    flow = report_of(graph, replace(placement, conversions=loop))["dataflow"]
    assert [e["conversions"] for e in flow["edges"] if e["value"] == "r"] == [[0]]


def _transferred() -> dict[str, Any]:
    """A Relu on another device, and its value back."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("Neg", ["r"], ["y"], name="neg"),
    ]
    graph = from_model(make_model(nodes, {"x": np.zeros((4, 8), np.float32)}, {}, ["y"]))
    here = plain("float32", (4, 8))
    there = here.on("far")
    groups = (
        Group("swift", (0,), Variant((there,), (there,)), 1e-9, 0.0),
        Group("swift", (1,), Variant((here,), (here,)), 1.0, 0.0),
    )
    # Whoever brings a value to another device, transfers it.
    there_by, back_by = transfers_name("far"), "swift"
    conversions = Conversion("x", here, there, there_by, 0.1), Conversion("r", there, here, back_by, 0.2)
    return report_of(graph, Placement(groups, conversions, Target("cpu", 2)), peaks=PEAKS)


def test_what_goes_to_another_device_and_back() -> None:
    report = _transferred()
    assert report["dataflow"]["bytes"] == {"groups": 512, "conversions": 0, "transfers": 256}
    assert [h.kind for h in hops(report)] == ["transfer"] * 4 + ["moved"]
    assert sum(t["bytes"] for t in report["transfers"]) == 256, "told the same everywhere"


def test_peaks_are_the_targets_alone() -> None:
    far, near = _transferred()["dataflow"]["groups"]
    assert (far["at_peaks_ms"], far["limit"]) == (None, None)
    # A million bytes a second from memory, two from the cache; what the other device reaches says nothing.
    assert near["at_peaks_ms"] == pytest.approx(256 / 2e6 * 1e3)
    assert near["limit"] == "memory"


def test_least_times_are_those_of_the_roofline() -> None:
    groups = report_of(*converted(), peaks=PEAKS)["dataflow"]["groups"]
    # A million flops a second, and two million bytes from the cache.
    assert [g["at_peaks_ms"] for g in groups] == [pytest.approx(t) for t in (0.256, 0.096, 0.192, 0.0)]
    assert [g["limit"] for g in groups] == ["arithmetic", "memory", "memory", None]


def test_a_group_that_is_faster_than_the_peaks_raises_them() -> None:
    graph, placement = converted()
    *others, slow, flat = placement.groups
    swift = replace(placement, groups=(*others, replace(slow, cost_ms=0.064), flat))
    flow = report_of(graph, swift, peaks=PEAKS)["dataflow"]
    assert flow["groups"][2]["at_peaks_ms"] == pytest.approx(0.064)
    assert flow["groups"][1]["at_peaks_ms"] == pytest.approx(192 / 6e6 * 1e3), "the same cache"
    assert flow["peaks"]["copy_gb_per_s"] == {"1000": pytest.approx(6e-3), "100000": 1e-3}


@pytest.mark.parametrize("index", [0, 1])
def test_not_a_convolution_and_not_what_rounds(index: int) -> None:
    graph, placement = converted()
    groups = list(placement.groups)
    groups[index] = replace(groups[index], cost_ms=1e-6)
    flow = report_of(graph, replace(placement, groups=tuple(groups)), peaks=PEAKS)["dataflow"]
    assert flow["peaks"] == PEAKS


def test_arithmetic_that_nobody_has_counted() -> None:
    nodes = [helper.make_node("Softmax", ["x"], ["s"], name="softmax")]
    graph = from_model(make_model(nodes, {"x": np.zeros((4, 8), np.float32)}, {}, ["s"]))
    format = plain("float32", (4, 8))
    group = Group("swift", (0,), Variant((format,), (format,)), 1.0, 0.0)
    report = report_of(graph, Placement((group,), (), Target("cpu", 2)), peaks=PEAKS)
    (told,) = report["dataflow"]["groups"]
    assert (told["flops"], told["limit"], told["bytes"]) == (None, None, 256)
    row, moved, _ = map(str, dataflow_parts(report))
    assert row.splitlines()[2].split()[3:6] == ["-", "256", "B"]
    assert "at least: of 1 group it is not known" in moved


def test_what_only_copies_computes_nothing() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("Transpose", ["r"], ["t"], name="turn", perm=[1, 0]),
        helper.make_node("Concat", ["t", "t"], ["c"], name="join", axis=0),
        helper.make_node("Cast", ["c"], ["y"], name="cast", to=11),
    ]
    graph = from_model(make_model(nodes, {"x": np.zeros((4, 8), np.float32)}, {}, ["y"]))
    variant = Variant((plain("float32", (4, 8)),), (plain("float64", (16, 4)),))
    group = Group("swift", tuple(n.id for n in graph.nodes), variant, 1.0, 0.0)
    report = report_of(graph, Placement((group,), (), Target("cpu", 2)))
    assert report["dataflow"]["groups"][0]["flops"] == 32


def test_a_value_whose_size_depends_on_data() -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["n"], name="where"),
        helper.make_node("Size", ["n"], ["s"], name="count"),
    ]
    graph = from_model(make_model(nodes, {"x": np.zeros((4, 4), np.float32)}, {}, ["s"]))
    variant = Variant((plain("float32", (4, 4)),), (plain("int64", ()),))
    placement = Placement((Group("swift", (0, 1), variant, 1.0, 0.0),), (), Target("cpu", 2))
    report = report_of(graph, placement, peaks=PEAKS)
    assert report["dataflow"]["groups"][0]["flops"] is None
    assert explain_text(report)


def test_peaks_as_they_are_kept() -> None:
    assert peaks_json(Peaks(10.0, {1000: 50.0, 9000: 20.0})) == {
        "gflops": 10.0,
        "memory_gb_per_s": 20.0,
        "copy_gb_per_s": {"1000": 50.0, "9000": 20.0},
    }


def test_told_for_reading() -> None:
    report = report_of(*converted(), peaks=PEAKS)
    reached, moved, largest = map(str, dataflow_parts(report))
    rows = [" ".join(line.split()) for line in reached.splitlines()]
    assert rows[2] == "2 other 2.0000 32 FLOP 384 B 16 kFLOP/s 192 kB/s 0.0833 0.1920 memory", (
        "the longest first"
    )
    assert len(rows) == 2 + 3, "a view takes no time"
    assert "moved: 896 B by groups and 704 B by conversions, read and written; 0 B by transfers" in moved
    assert "arithmetic intensity: 0.2 FLOP per byte moved\n" in moved
    first = largest.splitlines()[2].split()
    assert " ".join(first) == "c 128 B 0 swift 1 swift, 2 other, the model's outputs 1"
    assert largest in explain_text(report)


def test_a_placement_that_nobody_timed() -> None:
    graph, placement = converted()
    unknown = tuple(replace(g, cost_ms=None) for g in placement.groups)
    moved, _ = map(str, dataflow_parts(report_of(graph, replace(placement, groups=unknown))))
    assert "machine" not in moved


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (None, "-"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (12345, "12.3 kB"),
        (3.2e6, "3.2 MB"),
        (7e10, "70 GB"),
    ],
)
def test_quantities(number: float | None, told: str) -> None:
    assert quantity(number, "B") == told
