"""Reports as JSON values: backends, contenders, shares, and what was predicted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

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
from collage_core.costs import CostRecord
from collage_core.costs.check import Difference
from collage_core.costs.ratio import ratio_as_it_came, ratio_of
from collage_core.costs.sittings import SITTINGS, Sitting, Turn, sittings_to_json
from collage_core.measuring.comparison import Comparison
from collage_core.peer import Peer, PeerInfo, PeerSession
from collage_core.pipeline.proof import COLLAGE
from collage_core.plugins import hookimpl
from collage_core.report.backends import backends_json
from collage_core.report.contenders import bench_json
from collage_core.report.summary import placement_json, shares
from collage_core.report.text import backends_text, bench_text, explain_text
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
    whole = [{"backend": name, "nodes": ["n", "m"], "cost_ms": None} for name in ("a", "view")]
    told = shares({"groups": whole, "conversions": []})
    assert (told["a"]["share"], told["view"]["share"]) == (1.0, 0.0), "run, not timed by itself"


def test_a_placement_in_names(optimised: Optimised) -> None:
    bundle = read(optimised.bundle)
    report = placement_json(bundle.graph, bundle.placement)
    for kind in ("groups", "conversions"):
        told = [
            {k: v for k, v in part.items() if k not in ("predicted_ms", "rivals", "ways")}
            for part in optimised.second[kind]
        ]
        assert report[kind] == [{**part, "in_place_ms": None} for part in told]
    names = [name for g in report["groups"] for name in g["nodes"]]
    assert sorted(names) == sorted(n.name for n in bundle.graph.nodes)
    pairs = [pair for g in report["groups"] for pair in zip(g["nodes"], g["ops"], strict=True)]
    assert all(name.endswith(f"/{op}") for name, op in pairs)
    text = explain_text(report)
    assert text.startswith("groups in order, ms\n")
    assert "predicted" not in text, "no constant is known"
    assert ("\n\nconversions, ms\n" in text) == bool(report["conversions"])


def test_who_offers_the_same_nodes_and_lost_is_told(optimised: Optimised) -> None:
    # Which groups have rivals and ways is measured: that there are some is asked of the golden files' report.
    groups = optimised.second["groups"]
    for g in groups:
        told_ms = [r["predicted_ms"] for r in g["rivals"]]
        known_ms = [ms for ms in told_ms if ms is not None]
        assert told_ms == sorted(known_ms) + [None] * (len(told_ms) - len(known_ms))
        assert all((r["reason"] is None) == (r["cost_ms"] is not None) for r in g["rivals"])
        assert g["backend"] not in {r["backend"] for r in g["rivals"]}
    declined = [r["reason"] for g in groups for r in g["rivals"] if str(r["reason"]).startswith("declined: ")]
    assert all(any(f" {name}: " in reason for g in groups for name in g["nodes"]) for reason in declined)
    contested = sum(bool(g["rivals"]) for g in groups)
    lines = explain_text(optimised.second).splitlines()
    if contested:
        start = lines.index("the same nodes on others, predicted ms")
        assert lines[start + 1].split()[:4] == ["#", "placed", "on", "predicted"]
        assert lines[start + 1 + contested + 1] == ""


def test_what_else_its_backend_could_is_told(optimised: Optimised) -> None:
    ways = [(g, w) for g in optimised.second["groups"] for w in g["ways"]]
    for group, way in ways:
        chosen = [", ".join(group["formats"][end]) for end in ("inputs", "outputs")]
        assert way["variant"] != "({}) -> ({})".format(*chosen)
        assert (way["reason"] is None) == (way["cost_ms"] is not None)


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
