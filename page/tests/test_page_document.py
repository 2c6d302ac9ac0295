"""The page as a file: it needs nothing else, says what is known, and obeys no name."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from importlib import resources
from typing import Any

from collage_page import page
from collage_page.drawing import graph
from drawn_report import HOSTILE, residual_report

from collage_core.report.beside import beside_json
from collage_core.report.dot import colours_of


class _Reader(HTMLParser):
    """Elements by name, with their attributes and the text within."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self._in = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._in = tag

    def handle_data(self, data: str) -> None:
        (self.scripts if self._in in ("script", "style") else self.texts).append(data)

    def handle_endtag(self, tag: str) -> None:
        self._in = ""


def _details(text: str) -> dict[str, str]:
    """What is shown of each group, by its id."""
    found = re.findall(r'<section class="detail" id="([^"]*)" hidden>(.*?)</section>', text)
    return {id: " ".join(_Reader(content).texts) for id, content in found}


def test_it_fetches_nothing() -> None:
    read = _Reader(page(residual_report(2)))
    assert not [
        (tag, name)
        for tag, attributes in read.elements
        for name in attributes
        if name in ("src", "href", "action")
    ]
    assert not [tag for tag, _ in read.elements if tag in ("link", "iframe", "img", "object", "form")]
    (policy,) = [a["content"] for tag, a in read.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy


def test_the_library_is_within_and_ours_asks_nobody() -> None:
    package = resources.files("collage_page")
    text = page(residual_report(1))
    assert package.joinpath("cytoscape.min.js").read_text() in text
    for name in ("page.js", "page.css", "page.html"):
        assert not re.search(
            r"https?:|fetch\(|XMLHttpRequest|import\s*\(|innerHTML|eval\(", package.joinpath(name).read_text()
        )


def test_names_are_shown_and_not_obeyed() -> None:
    text = page({**residual_report(2, hostile=True), "model": HOSTILE})
    read = _Reader(text)
    assert [tag for tag, _ in read.elements].count("script") == 3
    assert not [tag for tag, _ in read.elements if tag == "b"]
    assert HOSTILE in _details(text)["detail-0-g1"]
    assert "".join(read.texts).count(HOSTILE) > 2, "the title, the heading, the group"


def test_what_is_drawn_is_the_graph() -> None:
    report = residual_report(11)
    drawn = graph(report, colours_of(report), 0.5)["elements"]
    nodes = {e["data"]["id"]: e for e in drawn if "source" not in e["data"]}
    edges = [e["data"] for e in drawn if "source" in e["data"]]
    assert [nodes[f"n{i}"]["data"]["name"] for i in range(4)] == ["conv0", "relu0", "sigmoid0", "sum0"]
    assert [nodes[f"n{i}"]["data"]["group"] for i in range(4)] == [0, 0, 1, 2]
    for i in range(4):
        node, group = nodes[f"n{i}"], nodes[f"g{nodes[f'n{i}']['data']['group']}"]
        for axis, size, own in (("x", "width", 104), ("y", "height", 26)):
            room = (group["data"][size] - own) / 2
            assert abs(node["position"][axis] - group["position"][axis]) < room, "within its group"
    assert {e["source"] for e in edges} | {e["target"] for e in edges} <= nodes.keys()
    assert ("c0", "n3") in {(e["source"], e["target"]) for e in edges}
    assert len({e["id"] for e in edges}) == len(edges)
    assert nodes["n1"]["position"]["y"] > nodes["n0"]["position"]["y"]
    assert nodes["g0"]["data"]["heat"] == 1.0
    assert nodes["g1"]["data"]["heat"] == 0.5
    assert [e["kind"] for e in edges if (e["source"], e["target"]) == ("n0", "n1")] == ["within"]
    assert {e["kind"] for e in edges if "c0" in (e["source"], e["target"])} == {"converted"}


def test_a_skipping_edge_goes_around() -> None:
    report = residual_report(3)
    drawn = graph(report, colours_of(report))["elements"]
    (skip,) = [
        e["data"] for e in drawn if (e["data"].get("source"), e["data"].get("target")) == ("n7", "n11")
    ]
    assert len(skip["weights"]) == len(skip["distances"]) > 0
    assert skip["weights"] == sorted(skip["weights"])
    assert any(abs(d) > 20 for d in skip["distances"])


def test_a_group_says_what_it_costs_and_who_lost() -> None:
    told = _details(page(residual_report(1)))["detail-0-g0"]
    assert "conv0 (Conv), relu0 (Relu)" in told
    assert "cost 0.5000 ms IQR of the kernel alone 0.0100 ms" in told
    # 256 elements, four products each and a Relu; as many read and written, and 16 weights.
    assert "2.3 kFLOP" in told
    assert "2.11 kB, weights once; 1.09 FLOP per byte" in told
    assert "4.61 MFLOP/s, 4.22 MB/s" in told
    assert "0.0002 ms, limited by memory" in told
    assert "100 GFLOP/s in float32, 10 GB/s from memory" in told
    assert "rival 0.7500" in told
    assert "failed: it <crashed>" in told
    assert "The fastest of these is predicted to take 0.2500 ms more" in told


def test_a_group_says_how_else_its_backend_could() -> None:
    told = _details(page(residual_report(1)))["detail-0-g0"]
    assert "other kernels of swift formats cost ms" in told
    assert "(<plain>) -> (last) 0.6250" in told


def test_what_is_told_with_a_backends_constant_is_called_predicted() -> None:
    report = residual_report(1)
    for part in (*report["groups"], *report["conversions"]):
        part["predicted_ms"] = part["cost_ms"] + 1.0
        for other in (*part.get("rivals", ()), *part.get("ways", ())):
            other["predicted_ms"] = other["cost_ms"] and other["cost_ms"] + 1.0
    details = _details(page(report))
    told = details["detail-0-g0"]
    assert "predicted 1.5000 ms IQR of the kernel alone 0.0100 ms" in told
    assert "the same nodes on others backend predicted ms" in told
    assert "formats predicted ms" in told
    assert "cost" not in told
    assert "predicted 1.0100 ms" in details["detail-0-c0"]


def test_two_side_by_side() -> None:
    here, there = residual_report(2), residual_report(2, swift="careful")
    here["beside"] = beside_json(here, there, "before.collage")
    text = page(here, there)
    (data,) = [json.loads(s) for s in _Reader(text).scripts if s.startswith('{"graphs"')]
    assert len(data["graphs"]) == 2
    moved = [
        e["data"]["name"]
        for e in data["graphs"][0]["elements"]
        if e["data"].get("kind") == "operator" and e["data"]["moved"]
    ]
    assert moved == ["conv0", "relu0", "conv1", "relu1"]
    assert {id[:9] for id in _details(text)} == {"detail-0-", "detail-1-"}
    assert "what moved, and what its groups take" in " ".join(_Reader(text).texts)


def test_of_a_placement_that_nobody_measured() -> None:
    report: dict[str, Any] = residual_report(1)
    for group in report["groups"]:
        del group["rivals"], group["ways"]
        group["cost_ms"] = group["predicted_ms"] = group["spread_ms"] = None
    for work in report["dataflow"]["groups"]:
        work["at_peaks_ms"] = work["limit"] = None
    told = _details(page(report))["detail-0-g0"]
    assert "predicted - ms" in told
    assert "limited by" not in told
