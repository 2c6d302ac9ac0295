"""Reports as JSON values, and the texts made from them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from simulated_sittings import details_of_ms, sittings_of_ms

from collage_core import (
    Backend,
    BackendInfo,
    BackendKind,
    Kernel,
    Refusal,
    Registry,
    Subgraph,
    Target,
    Variant,
)
from collage_core.backend import Peer, PeerInfo, PeerSession
from collage_core.costs import CostRecord
from collage_core.costs.check import Difference
from collage_core.costs.ratio import ratio_as_it_came, ratio_of
from collage_core.costs.sittings import SITTINGS, Sitting, Turn, sittings_to_json
from collage_core.measuring.comparison import Comparison
from collage_core.pipeline.proof import COLLAGE
from collage_core.plugins import hookimpl
from collage_core.report.contenders import bench_json
from collage_core.report.summary import backends_json, placement_json, shares
from collage_core.report.text import backends_text, bench_text, explain_text, optimization_text, table
from collage_core.runtime import read

if TYPE_CHECKING:
    from pathlib import Path

    from collage_command import Optimised


class Absent(Backend):
    name = "absent"

    def info(self) -> BackendInfo:
        return BackendInfo(
            self.name, BackendKind.GRAPH, "0.9", None, ("gpu",), "its library is not installed"
        )

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        return Refusal("not here")

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        raise NotImplementedError


class Rival(Peer):
    name = "rival"

    def info(self) -> PeerInfo:
        return PeerInfo(self.name, "1.0", "2.0", settings={"mode": "fast"})

    def load(self, model: Path, target: Target) -> PeerSession:
        raise NotImplementedError


class Plugin:
    @hookimpl
    def collage_backends(self) -> Sequence[Backend]:
        return [Absent()]

    @hookimpl
    def collage_peers(self) -> Sequence[Peer]:
        return [Rival()]


@pytest.fixture
def registry() -> Registry:
    registry = Registry([Plugin()], entry_points=False)
    registry.failures["broken"] = "ImportError: no such module"
    return registry


def test_backends(registry: Registry) -> None:
    report = backends_json(registry)
    assert [(b["name"], b["kind"]) for b in report] == [
        ("reference", "reference"),
        ("absent", "graph"),
        ("rival", "peer"),
        ("broken", "plugin"),
    ]
    assert report[1] == {
        "name": "absent",
        "kind": "graph",
        "version": "0.9",
        "library_version": None,
        "devices": ["gpu"],
        "available": False,
        "reason": "its library is not installed",
    }
    assert (report[2]["available"], report[2]["settings"]) == (True, {"mode": "fast"})
    assert (report[3]["available"], report[3]["version"]) == (False, None)
    lines = backends_text(report).splitlines()
    assert lines[0].split() == ["backend", "kind", "version", "library", "devices", "available"]
    assert lines[2].split() == [
        "absent",
        "graph",
        "0.9",
        "-",
        "gpu",
        *["no:", "its", "library", "is", "not", "installed"],
    ]
    assert lines[3].split() == ["rival", "peer", "1.0", "2.0", "cpu", "yes"]
    assert lines[4].endswith("no: ImportError: no such module")


def _sat(ms: float) -> tuple[Sitting, ...]:
    """Nine times, some slower than others; as often taken again as it takes ms."""
    thrown = (Turn(9.0, waited_s=0.5, moved=True, taken_again=True),) * int(ms)
    first, *others = sittings_of_ms([[ms * (1.0 + 0.01 * (int(ms * i) % 3))] * 2 for i in range(9)])
    return (replace(first, turns=(*thrown, *first.turns)), *others)


def _comparison(**times_ms: float | None) -> Comparison:
    records = {
        name.replace("peer_", "peer:"): CostRecord("failed", reason="it crashed")
        if ms is None
        else CostRecord("ok", ms, ms / 10, 30, details={SITTINGS: sittings_to_json(_sat(ms))})
        for name, ms in times_ms.items()
    }
    return Comparison(records, measured=True)


def test_bench_compares_with_the_fastest_peer() -> None:
    comparison = _comparison(collage=2.0, peer_a=3.0, peer_b=5.0, peer_c=None)
    peers = ["peer:a", "peer:b", "peer:c"]
    differences = {"peer:a": Difference(1e-6, 1e-6, None), "peer:b": Difference(2e-6, 2e-6, "too far")}
    report = bench_json(comparison, peers, differences)
    assert report["disagrees"] == {"peer:b": "too far"}
    told = report["contenders"]
    medians_ms = {name: c["median_ms"] for name, c in told.items()}
    assert medians_ms == {"collage": 2.0, "peer:a": 3.0, "peer:b": 5.0, "peer:c": None}
    assert told["peer:a"]["spread_ms"] == pytest.approx(0.3)
    assert told["peer:c"]["reason"] == "it crashed"
    assert told["peer:c"]["ratio"] is told["peer:c"]["half_interval"] is None
    assert {name: c["retaken"] for name, c in told.items() if c["ratio"]} == {
        "collage": 2,
        "peer:a": 3,
        "peer:b": 5,
    }
    assert told["peer:a"]["waited_s"] == 1.5
    ratio = ratio_of(_sat(3.0), _sat(2.0))
    came = ratio_as_it_came(_sat(3.0), _sat(2.0))
    assert ratio is not None
    assert came is not None
    assert 0.0 < ratio.half_interval < 0.05
    assert (told["peer:a"]["ratio"], told["peer:a"]["half_interval"]) == (ratio.value, ratio.half_interval)
    assert (told["peer:a"]["sittings"], told["peer:a"]["sittings_as_it_came"]) == (9, 3)
    assert told["peer:a"]["ratio_as_it_came"] == came.value
    assert told["peer:a"]["is_slower"]
    assert not told["peer:a"]["is_faster"]
    assert report["ratio_to_best_peer"] == ratio.value
    text = bench_text(report)
    assert f"{ratio.value:.3f} +-{ratio.half_interval:.3f}" in text
    assert f"{came.value:.3f} +-{came.half_interval:.3f}" in text
    assert f"best peer / collage: {ratio.value:.3f}" in text
    assert "it crashed" in text
    assert "largest difference from peer:b: 2.0e-06" in text


def test_a_single_round_tells_nothing_of_what_is_uncertain() -> None:
    records = {
        n: CostRecord("ok", ms, details=details_of_ms([[ms]])) for n, ms in ((COLLAGE, 2.0), ("peer:a", 3.0))
    }
    report = bench_json(Comparison(records, measured=True), ["peer:a"], {})
    told = report["contenders"]["peer:a"]
    assert (told["ratio"], told["half_interval"], told["ratio_as_it_came"]) == (1.5, None, None)
    assert not told["enough_sittings"]
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert "1.500  " in bench_text(report)


@pytest.mark.parametrize(
    "comparison", [_comparison(collage=2.0, peer_a=None), _comparison(collage=None, peer_a=2.0)]
)
def test_bench_without_anything_to_compare(comparison: Comparison) -> None:
    report = bench_json(comparison, ["peer:a"], {})
    assert report["ratio_to_best_peer"] is None
    assert "best peer" not in bench_text(report)


def test_shares_add_up(optimised: Optimised) -> None:
    report = optimised.second
    found = shares(report)
    assert found == report["shares"]
    assert sum(s["share"] for s in found.values()) == pytest.approx(1)
    assert sum(s["ms"] for s in found.values()) == pytest.approx(report["predicted_ms"])
    assert sum(s["groups"] for s in found.values()) == len(report["groups"])
    assert sum(s["nodes"] for s in found.values()) == sum(len(g["nodes"]) for g in report["groups"])
    assert sum(s["conversions"] for s in found.values()) == len(report["conversions"])
    assert shares({"groups": [], "conversions": []}) == {}


def test_a_placement_in_names(optimised: Optimised) -> None:
    bundle = read(optimised.bundle)
    report = placement_json(bundle.graph, bundle.placement)
    for kind in ("groups", "conversions"):
        told = [{k: v for k, v in part.items() if k != "rivals"} for part in optimised.second[kind]]
        assert report[kind] == [{**part, "in_place_ms": None} for part in told]
    names = [name for g in report["groups"] for name in g["nodes"]]
    assert sorted(names) == sorted(n.name for n in bundle.graph.nodes)
    pairs = [pair for g in report["groups"] for pair in zip(g["nodes"], g["ops"], strict=True)]
    assert all(name.endswith(f"/{op}") for name, op in pairs)
    text = explain_text(report)
    assert text.startswith("groups, in order\n")
    assert ("\n\nconversions\n" in text) == bool(report["conversions"])


def test_who_offers_the_same_nodes_and_lost_is_told(optimised: Optimised) -> None:
    groups = optimised.second["groups"]
    assert any(g["rivals"] for g in groups)
    for g in groups:
        costs_ms = [r["cost_ms"] for r in g["rivals"]]
        known_ms = [ms for ms in costs_ms if ms is not None]
        assert costs_ms == sorted(known_ms) + [None] * (len(costs_ms) - len(known_ms))
        assert all((r["reason"] is None) == (r["cost_ms"] is not None) for r in g["rivals"])
        assert g["backend"] not in {r["backend"] for r in g["rivals"]}
    contested = sum(bool(g["rivals"]) for g in groups)
    lines = explain_text(optimised.second).splitlines()
    start = lines.index("the same nodes on others, ms")
    assert lines[start + 1].split()[:4] == ["#", "placed", "on", "ms"]
    assert lines[start + 1 + contested + 1] == ""


def test_reports_from_before_contenders_can_be_read(optimised: Optimised) -> None:
    report = {name: part for name, part in optimised.second.items() if name != "contenders"}
    assert "of collage's" not in explain_text(report)
    assert "predicted" in explain_text(report)


def test_the_prediction_adds_up(optimised: Optimised) -> None:
    report = optimised.second
    prediction = report["prediction"]
    assert sum(prediction["terms_ms"].values()) == pytest.approx(report["predicted_ms"])
    parts = [*report["groups"], *report["conversions"]]
    assert all(p["in_place_ms"] > 0 for p in parts if p["backend"] != "view")
    in_place_ms = sum(p["in_place_ms"] for p in parts)
    assert prediction["in_place_ms"] == pytest.approx(in_place_ms)
    for miss in prediction["misses"]:
        off_ms = abs(miss["predicted_ms"] - miss["in_place_ms"])
        assert off_ms > 0.1 * miss["in_place_ms"]
        assert off_ms > 0.01 * in_place_ms


def test_groups_that_miss_are_named(optimised: Optimised) -> None:
    report = dict(optimised.second)
    prediction = report["prediction"] | {
        "transitions": {"group_ms": {"dnnl": 0.0015}, "crossing_ms": {"dnnl": 0.0025}},
        "misses": [
            {"group": 3, "backend": "dnnl", "what": "Conv+Relu", "predicted_ms": 0.5, "in_place_ms": 0.4},
            {"group": None, "backend": "tvm", "what": "convert y", "predicted_ms": 0.1, "in_place_ms": 0.2},
        ],
    }
    lines = explain_text(report | {"prediction": prediction}).splitlines()
    assert "calibrated: us per group of dnnl 1.5" in lines
    assert "us per value that leaves dnnl 2.5 for another backend" in lines
    start = lines.index("off by more than a tenth and by more than 1 % of the whole")
    assert lines[start + 2].split() == ["3", "dnnl", "Conv+Relu", "0.5000", "0.4000", "+25%"]
    assert lines[start + 3].split() == ["-", "tvm", "convert", "y", "0.1000", "0.2000", "-50%"]
    text = explain_text(report | {"prediction": prediction | {"misses": []}})
    assert "no group misses its prediction by more than a tenth" in text
    never_run = prediction | {"in_place_ms": None, "misses": []}
    assert "in place:" not in explain_text(report | {"prediction": never_run})


def _told(ratio: float, **others: object) -> dict[str, Any]:
    """Of a contender, in JSON."""
    told: dict[str, Any] = {
        "median_ms": ratio,
        "spread_ms": 0.01,
        "ratio": ratio,
        "half_interval": 0.03,
        "sittings": 8,
    }
    told |= {"ratio_as_it_came": ratio, "half_interval_as_it_came": 0.05, "retaken": 1, "reason": None}
    return told | {"is_slower": ratio > 1.05, "is_faster": False, "enough_sittings": True, **others}


@pytest.mark.parametrize(
    ("others", "beaten_by", "says"),
    [
        ([_told(1.1), _told(1.2)], [], "faster than everything else that was measured, beyond what is"),
        ([_told(1.1), _told(0.99)], [], "as fast, as far as can be told: b"),
        ([_told(1.03, enough_sittings=False), _told(1.2)], [], "too few sittings to tell: a"),
        (
            [_told(3.4, enough_sittings=False, sittings=1, is_slower=False)],
            [],
            "left out when it was behind: a",
        ),
        ([_told(1.02, enough_sittings=False, is_slower=False)], [], "too few sittings to tell: a"),
        ([_told(0.995, is_faster=True)], [], "faster, by less than a simpler placement is worth: a"),
        (
            [_told(0.9, is_faster=True, ratio_as_it_came=1.3)],
            [],
            "faster while the processors were as usual, slower as it came: a",
        ),
        ([_told(0.99), _told(0.99)], ["b"], "as fast, as far as can be told: a"),
        ([_told(1.1), _told(0.99)], ["b"], "b: faster when this was confirmed, not known to be slower"),
    ],
)
def test_what_is_proven_is_said(
    report: dict[str, Any], others: list[dict[str, Any]], beaten_by: list[str], says: str
) -> None:
    contenders = {"collage": _told(1.0), **dict(zip("ab", others, strict=False))}
    text = optimization_text(report | {"chosen": "mix", "contenders": contenders, "beaten_by": beaten_by})
    assert says in text
    assert ("faster than everything" in text) == ("everything" in says)


@pytest.fixture
def report(optimised: Optimised) -> dict[str, Any]:
    return dict(optimised.second)


def test_the_text_tells_what_the_json_tells(report: dict[str, Any]) -> None:
    text, explained = optimization_text(report), explain_text(report)
    for name, c in report["contenders"].items():
        for lines in (text.splitlines(), explained.splitlines()):
            assert any(line.startswith(name) and f"{c['median_ms']:.4f}" in line for line in lines)
    assert f"{report['contenders']['collage']['median_ms']:.4f} ms, " in text
    assert ("optimal for the measured costs" in text) == report["search"]["optimal"]
    assert ("is what you get" in text) == (report["chosen"] != "mix")
    for name, share in report["shares"].items():
        assert (f"{name} {share['share']:.1%} (" in text) == (name != "view")
    assert f"predicted {report['predicted_ms']:.3f} ms" in explained
    assert explained.count("of that)") == len(report["search"]["in_place"]) >= 1
    for turn in report["search"]["in_place"]:
        assert f"{turn['predicted_ms']:.4f} predicted, {turn['took_ms']:.4f} taken" in explained
    for name, share in report["shares"].items():
        assert re.search(rf"^{name} +{share['groups']} +{share['nodes']} ", explained, re.MULTILINE)
    assert "on the reference" not in explained


def _lines(report: dict[str, Any]) -> list[str]:
    """What follows the table."""
    return optimization_text(report).rpartition("\n\n")[2].splitlines()


def test_ten_lines_say_what_a_person_wants_to_know(report: dict[str, Any]) -> None:
    """All that there can be something to say of, in the order in which it is asked for."""
    shares = {
        "dnnl": {"groups": 2, "nodes": 5, "conversions": 1, "ms": 3.0, "share": 0.75},
        "tvm": {"groups": 1, "nodes": 1, "conversions": 0, "ms": 1.0, "share": 0.25},
        "mkl": {"groups": 0, "nodes": 0, "conversions": 2, "ms": 0.0, "share": 0.0},
        "view": {"groups": 1, "nodes": 1, "conversions": 0, "ms": 0.0, "share": 0.0},
    }
    report |= {
        "chosen": "mix",
        "shares": shares,
        "contenders": {
            "collage": _told(1.0, median_ms=4.5),
            "dnnl": _told(1.25),
            "tvm": _told(1.125, half_interval=0.0625, sittings=9),
            "mkl": _told(0.99),
            "mix of another search": _told(0.5, is_faster=True),
        },
        "singles": [
            {"backend": n, "alone": True, "predicted_ms": 1.0, "reason": None} for n in ("dnnl", "tvm")
        ],
        "beaten_by": ["mkl"],
        "search": {
            **report["search"],
            "optimal": False,
            "total_ms": 1.05,
            "lower_bound_ms": 1.0,
            "method": "dp",
        },
        "second_level": {"stopped_by": "budget"},
        "rejected": [f"tvm: {'it crashed ' * 20}", "mkl: wrong", "dnnl: wrong"],
        "errors": ["the pass p was left out: wrong", "the pass q was left out: wrong"],
        "max_rel_error": 3e-6,
        "original": {"max_rel_error": 0.0, "unchecked": None},
        "second_opinion": {"peer": "rival", "error": 1e-7},
        "output": "my models/m.collage",
    }
    assert _lines(report) == [
        "the mix: dnnl 75.0% (5 nodes), tvm 25.0% (1 node), mkl 0.0% (2 conversions) of the predicted time",
        "4.5000 ms, 1.125 times as fast as tvm, the fastest single library (+-0.062 at 95 %, 9 sittings)",
        "mkl: faster when this was confirmed, not known to be slower after all; "
        "faster, by less than a simpler placement is worth: mix of another search",
        "not proven optimal, at most 5.0% above the best (method dp); second level: stopped, budget",
        f"not chosen, {('tvm: ' + 'it crashed ' * 20)[:99]}…; nor 2 more",
        "error: the pass p was left out: wrong; error: the pass q was left out: wrong",
        "answers checked: against the reference, within 3.0e-06; the reference against the model as it was "
        "given, exactly; the reference against rival, within 1.0e-07",
        "saved as 'my models/m.collage'; to run it: collage run 'my models/m.collage' --input NAME=FILE.npy",
        "why it is so: collage explain 'my models/m.collage'; "
        "whether it still is, later: collage check 'my models/m.collage'",
    ]
    explained = explain_text(report)
    for whole in (*report["rejected"], *report["errors"]):
        assert whole in explained
    assert "4.5000 ms, 1.125 times as fast as tvm" in explained
    assert "saved" not in explained


def test_the_text_where_little_is_known(report: dict[str, Any]) -> None:
    """Nothing was run end to end, and no cost is known."""
    shares = {"dnnl": {"groups": 1, "nodes": 5, "conversions": 0, "ms": 0.0, "share": 0.0}}
    unknown = report | {"contenders": {}, "chosen": "mix", "shares": shares, "max_rel_error": None}
    unknown |= {"original": None, "output": None, "predicted_ms": 2.0, "rejected": [], "errors": []}
    unknown["search"] = report["search"] | {"optimal": True, "method": "dp"}
    assert _lines(unknown) == [
        "the mix: dnnl (5 nodes)",
        "predicted 2.0000 ms; not run end to end",
        "optimal for the measured costs (method dp)",
        "answers checked: not run end to end",
        "not saved: -o FILE.collage keeps it, and what was measured is not measured again",
    ]
    assert _lines(unknown | {"predicted_ms": None})[1] == "not run end to end"
    alone = report | {"contenders": {"collage": _told(1.0), "dnnl": _told(1.0)}, "chosen": "dnnl"}
    assert _lines(alone)[1] == "1.0000 ms; no other single library was run beside it"
    once = {"collage": _told(1.0), "tvm": _told(1.5, half_interval=None, sittings=1)}
    assert _lines(report | {"contenders": once, "chosen": "dnnl"})[1] == (
        "1.0000 ms, 1.500 times as fast as tvm, the next single library "
        "(how sure that is cannot be told, 1 sitting)"
    )


def test_where_the_seconds_went_is_explained(report: dict[str, Any]) -> None:
    counts = {"offered": 1461, "known": 40, "bounded_out": 900, "raced_out": 60, "measured": 461}
    seconds = {"measuring kernels": 30.0, "choosing": 10.0}
    search = {k: v for k, v in report["search"].items() if k not in ("counts", "seconds")}
    text = explain_text(report | {"search": search | {"counts": counts, "seconds": seconds}})
    assert "candidates: 1461 offered, 40 known, 900 bounded out, 60 raced out, 461 measured" in text
    expected = [
        "phase              seconds  share",
        "measuring kernels     30.0  75.0%",
        "choosing              10.0  25.0%",
        "all                   40.0",
    ]
    assert "\n".join(expected) in text
    before = explain_text(report | {"search": search})
    assert "candidates:" not in before
    assert "phase  " not in before
    assert "-" in explain_text(report | {"search": search | {"seconds": {"searching": 0.0}}})


def test_the_text_of_rarer_outcomes(report: dict[str, Any]) -> None:
    report |= {
        "chosen": "dnnl",
        "contenders": {"collage": _told(1.0), "tvm": _told(0.98), "mkl": _told(1.1)},
        "fallback": [
            {"node": "n1", "op": "CumSum", "cost_ms": 0.5, "declined": {"a": "too odd"}},
            {"node": "n2", "op": "CumSum", "cost_ms": 0.5, "declined": {}},
        ],
        "singles": [
            {"backend": "x", "alone": True, "predicted_ms": 123.0, "reason": None},
            {
                "backend": "y",
                "alone": False,
                "predicted_ms": None,
                "reason": "no backend can run node 'q' (Q)",
            },
        ],
        "search": report["search"] | {"optimal": False, "total_ms": 1.05, "lower_bound_ms": 1.0},
    }
    text = explain_text(report)
    assert "\ndnnl is what you get\n" in text
    assert "\nas fast, as far as can be told: tvm\n" in text
    assert "n1 (CumSum), 0.5000 ms: a: too odd" in text
    assert "n2 (CumSum), 0.5000 ms: no backend has a pattern for it" in text
    assert "not run: predicted 123 ms" in text
    assert "not run: no backend can run node 'q' (Q)" in text
    assert "not proven optimal, at most 5.0% above the best" in text
    unknown = report | {"search": report["search"] | {"optimal": False, "lower_bound_ms": None}}
    assert "not proven optimal)" in explain_text(unknown)
    assert "not proven optimal (method" in optimization_text(unknown)


def test_names_in_a_report_keep_to_their_lines(report: dict[str, Any]) -> None:
    name = "m\n\x1b[2J[red]"
    report |= {"model": name, "output": name, "rejected": [name], "chosen": name}
    text = optimization_text(report)
    assert "\x1b" not in text
    assert text.count("m\\n\\x1b[2J[red]") >= 4


def test_tables_are_aligned() -> None:
    text = table(("name", "ms"), [("a", "1.5"), ("longer", "10.25")], right=[1])
    assert text.splitlines() == ["name       ms", "a         1.5", "longer  10.25"]


def test_a_row_of_a_table_is_a_line_however_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    monkeypatch.setenv("FORCE_COLOR", "1")
    rows = [("[red]a[/red] :smile:", "1", "x" * 1000 + " " + "y" * 1000), ("b\n\x1b[31mc\t", "", "")]
    header, first, second = table(("name", "ms", ""), rows, right=[1]).splitlines()
    assert header == "name                  ms"
    assert first == f"[red]a[/red] :smile:   1  {'x' * 1000} {'y' * 1000}"
    assert second == r"b\n\x1b[31mc\t"
    assert table(("name", "ms"), []) == "name  ms"


def test_columns_are_as_wide_as_they_look() -> None:
    assert table(("name", "ms"), [("日本", "1"), ("a", "2")]).splitlines()[1:] == ["日本  1", "a     2"]
