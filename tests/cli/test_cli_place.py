"""`collage place`: what a file says is what is built; what it leaves open is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml

from collage_core import load, read
from collage_core.cli.main import main

if TYPE_CHECKING:
    from collage_command import Optimised

    from tests.cli.conftest import Mistake

Report = dict[str, Any]


class Placing:
    """`collage place` on the shared model and its costs."""

    def __init__(self, optimised: Optimised, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.model, self.bundle = optimised.model, optimised.bundle
        self.file, self.output = folder / "p.yaml", folder / "placed.collage"
        self.options = ["--costs", str(optimised.collage.home / "costs.sqlite"), "--rounds", "4"]
        self._capsys = capsys
        assert main(["explain", str(self.bundle), "--placement", str(self.file)]) == 0
        capsys.readouterr()

    @property
    def asked(self) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load(self.file.read_text(encoding="utf-8"))
        return found

    def place(self, asked: dict[str, Any] | None = None, *options: str) -> Report:
        """The report. asked: instead of what the file says."""
        if asked is not None:
            self.file.write_text(yaml.safe_dump(asked), encoding="utf-8")
        given = ["--placement", str(self.file), "-o", str(self.output), "--json"]
        assert main(["place", str(self.model), *given, *self.options, *options]) == 0
        found: Report = json.loads(self._capsys.readouterr().out)
        return found


@pytest.fixture
def placing(optimised: Optimised, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Placing:
    return Placing(optimised, tmp_path, capsys)


def _answers(bundle: Path) -> dict[str, Any]:
    executable = load(bundle)
    graph = read(bundle).graph
    draws = np.random.default_rng(0)
    inputs = {v: draws.standard_normal(graph.shape_of(v)).astype(np.float32) for v in graph.inputs}
    return dict(executable(inputs))


def _assert_same_answers(one: Path, other: Path) -> None:
    ours, theirs = _answers(one), _answers(other)
    for name, expected in theirs.items():
        np.testing.assert_allclose(ours[name], expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


@pytest.mark.ci
def test_a_bundle_is_placed_again_as_it_was(placing: Placing) -> None:
    report = placing.place()
    before, after = read(placing.bundle).placement, read(placing.output).placement
    assert after.digest == before.digest
    assert report["chosen"] == "given"
    assert report["contenders"]["collage"]["median_ms"] > 0
    assert report["max_rel_error"] < 1e-4
    assert len(before.groups) <= 16
    assert len(report["prices"]) == len(before.groups) + 1
    assert "all of these" in report["prices"]
    assert not any(str(placing.file) in what for what in report["prices"])
    assert report["search"]["measured"] == 1, "the placement as a whole, and nothing else"
    saved = placing.output.read_bytes()
    assert placing.place()["search"]["measured"] == 0
    assert placing.output.read_bytes() == saved, "what is known is not written again"
    _assert_same_answers(placing.output, placing.bundle)
    assert main(["explain", str(placing.output)]) == 0
    assert main(["check", str(placing.output), *placing.options[:2]]) in (0, 3)


@pytest.mark.ci
def test_a_group_is_moved_to_another_backend(placing: Placing) -> None:
    asked = placing.asked
    (group,) = [g for g in asked["groups"] if "/maxpool/MaxPool" in g["nodes"]]
    assert group["backend"] in ("dnnl", "tvm")
    elsewhere = "tvm" if group["backend"] == "dnnl" else "dnnl"
    asked["groups"].remove(group)
    nodes = [n for n in group["nodes"] if n != "/maxpool/MaxPool"]
    asked["groups"] = [
        *({"backend": g["backend"], "nodes": g["nodes"]} for g in asked["groups"]),
        {"backend": elsewhere, "nodes": ["/maxpool/MaxPool"]},
        *({"backend": group["backend"], "nodes": [n]} for n in nodes),
    ]
    del asked["conversions"]
    report = placing.place(asked, "--backends", "dnnl,tvm")
    (moved,) = [g for g in report["groups"] if g["nodes"] == ["/maxpool/MaxPool"]]
    assert moved["backend"] == elsewhere
    assert report["contenders"]["collage"]["median_ms"] > 0
    _assert_same_answers(placing.output, placing.bundle)


@pytest.mark.slow
def test_what_is_left_open_is_found(placing: Placing) -> None:
    node = "/maxpool/MaxPool"
    pin = {"nodes": [node], "backend": "reference"}
    report = placing.place({"version": 1, "threads": 1, "pins": [pin]}, "--backends", "dnnl,tvm")
    (group,) = [g for g in report["groups"] if node in g["nodes"]]
    assert group["backend"] == "reference"
    price = report["prices"][f"{node} on reference"]
    assert price["ms"] > 0
    assert not price["is_least"], "all that it rules out was measured before"
    placing.place({"version": 1}, "--pin", f"{node}=reference", "--backends", "dnnl,tvm")
    assert main(["explain", str(placing.output)]) == 0
    assert f"{node} on reference: " in placing._capsys.readouterr().out


@pytest.mark.ci
def test_of_what_was_never_measured_the_price_is_not_known(
    placing: Placing, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    costs = ["--costs", str(tmp_path / "empty.sqlite"), "--rounds", "2", "--threads", "1"]
    pin = ["--pin", "/maxpool/MaxPool=reference", "--backends", "dnnl"]
    assert main(["optimize", str(placing.model), *costs, *pin, "--json"]) == 0
    (price,) = json.loads(capsys.readouterr().out)["prices"].values()
    assert price["is_least"]
    assert main(["optimize", str(placing.model), *costs, *pin]) == 0
    said = capsys.readouterr().out
    assert "/maxpool/MaxPool on reference: at least " in said or "on reference: not known" in said


@pytest.mark.ci
def test_a_pin_whose_globs_disagree_without_it(placing: Placing) -> None:
    asked = {"version": 1, "threads": 1}
    node = "/maxpool/MaxPool"
    pins = ("--pin", "*MaxPool=dnnl", "--pin", "MaxPool=tvm", "--pin", f"{node}=reference")
    report = placing.place(asked, "--backends", "dnnl,tvm", *pins)
    assert report["prices"][f"{node} on reference"] == {"ms": None, "is_least": False}


@pytest.mark.slow
def test_kept_together(placing: Placing) -> None:
    first, second, *_ = [n.name for n in read(placing.bundle).graph.nodes]
    report = placing.place({"version": 1}, "--keep-together", f"{first},{second}")
    (group,) = [g for g in report["groups"] if first in g["nodes"]]
    assert second in group["nodes"]


@pytest.mark.ci
def test_mistakes(
    optimised: Optimised, mistake: Mistake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.yaml"

    def said(text: str, *options: str) -> str:
        file.write_text(text, encoding="utf-8")
        return mistake("place", optimised.model, "--placement", file, *options)

    assert f"{file}:2: the file has no 'grups'; did you mean 'groups'?" in said("version: 1\ngrups: []")
    fixed = "version: 1\ngroups:\n- {backend: tvm, nodes: %s}"
    assert f"{file}:3: /conv1/Conv as one group of tvm, which does not take part" in said(
        fixed % "/conv1/Conv", "--backends", "dnnl"
    )
    assert f"{file}:3: /Flatten as one group of dnnl: " in said(
        "version: 1\ngroups:\n- {backend: dnnl, nodes: /Flatten}"
    )
    assert f"{file}:3: no node is named 'conv1'" in said(fixed % "conv1")
    whole = tmp_path / "whole.yaml"
    assert main(["explain", str(optimised.bundle), "--placement", str(whole)]) == 0
    capsys.readouterr()
    assert f"{whole} leaves nothing open" in mistake(
        "place", optimised.model, "--placement", whole, "--max-error", "1e-2"
    )
    asked = yaml.safe_load(whole.read_text(encoding="utf-8"))
    (value,) = read(optimised.bundle).graph.inputs
    unread = {"value": value, "from": "float32:plain", "to": "float32:0321", "backend": "dnnl"}
    asked["conversions"].append(unread)
    whole.write_text(yaml.safe_dump(asked), encoding="utf-8")
    said_of_it = mistake("place", optimised.model, "--placement", whole)
    assert f"{whole}: the conversion of {value!r} to float32:0321 by dnnl is read by nobody" in said_of_it
    for file in (optimised.bundle, optimised.model):
        what = "it is the bundle" if file == optimised.bundle else "there is a file that is no placement"
        assert what in mistake("explain", optimised.bundle, "--placement", file)
    assert "cannot read" in mistake("place", optimised.model, "--placement", tmp_path / "none.yaml")
    assert "expected names separated by commas" in mistake(
        "optimize", optimised.model, "--keep-together", ","
    )
    assert "cannot write" in mistake("explain", optimised.bundle, "--placement", tmp_path / "no" / "p.yaml")
