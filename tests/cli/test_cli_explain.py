"""`collage explain`: what it writes, beside what it prints."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import pytest

from collage_core.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

    from collage_command import Optimised

pytestmark = pytest.mark.ci


def test_text_json_and_pictures_tell_the_same(optimised: Optimised, tmp_path: Path) -> None:
    html, dot = tmp_path / "report.html", tmp_path / "report.dot"
    collage, bundle = optimised.collage, optimised.bundle
    report = collage.json("explain", bundle, "--html", html, "--dot", dot)
    flow = report["dataflow"]
    names = [n for g in report["groups"] for n in g["nodes"]]
    assert sorted(o["name"] for o in flow["operators"]) == sorted(names)
    assert all(o["name"] in report["groups"][o["group"]]["nodes"] for o in flow["operators"])
    assert len(flow["groups"]) == len(report["groups"])
    assert report["peaks"]["gflops"] > 0
    page, drawn, text = html.read_text(), dot.read_text(), collage.run("explain", bundle)
    assert page.startswith("<!doctype html>")
    assert drawn.startswith("// collage explain\ndigraph ")
    for name in names:
        assert f'"{name}"' in page
        assert f'\\n{name}"]' in drawn
    for value in flow["largest"]:
        assert value["value"] in page
        assert value["value"] in text
    assert f"{flow['flops'] / sum(flow['bytes'].values()):.1f} FLOP per byte moved" in text
    assert f"{report['peaks']['gflops']:.0f} GFLOP/s" in text


def test_it_is_written_anew_and_nothing_else_is_lost(optimised: Optimised, tmp_path: Path) -> None:
    collage, bundle = optimised.collage, optimised.bundle
    page = tmp_path / "report.html"
    for _ in range(2):
        collage.run("explain", bundle, "--html", page)
    letter = tmp_path / "letter.html"
    letter.write_text("<!doctype html>\n<p>Dear reader</p>")
    process = collage.start("explain", bundle, "--html", letter)
    _, err = process.communicate()
    assert process.returncode == 1
    assert err == f"collage: cannot write {letter}: there is a file that is no page of ours\n"
    assert "Dear reader" in letter.read_text()


def test_two_files_under_one_name(optimised: Optimised, tmp_path: Path) -> None:
    file = tmp_path / "report"
    process = optimised.collage.start("explain", optimised.bundle, "--html", file, "--dot", file)
    _, err = process.communicate()
    assert process.returncode == 1
    assert err == f"collage: cannot write {file}: it is the file of --html\n"
    assert not file.exists()


def test_beside_another_bundle(optimised: Optimised, tmp_path: Path) -> None:
    collage, bundle = optimised.collage, optimised.bundle
    other = tmp_path / "before.collage"
    shutil.copy(bundle, other)
    page = tmp_path / "report.html"
    report = collage.json("explain", bundle, "--beside", other, "--html", page)
    assert report["beside"]["moved"] == []
    assert report["beside"]["totals"]["here"] == report["beside"]["totals"]["there"]
    assert 'id="graph-1"' in page.read_text()
    assert f"beside {other}: no nodes moved" in collage.run("explain", bundle, "--beside", other)


@pytest.mark.parametrize("option", ["--html", "--dot", "--placement"])
def test_not_over_the_other_bundle(optimised: Optimised, tmp_path: Path, option: str) -> None:
    other = tmp_path / "before.collage"
    shutil.copy(optimised.bundle, other)
    process = optimised.collage.start("explain", optimised.bundle, "--beside", other, option, other)
    _, err = process.communicate()
    assert process.returncode == 1
    assert err == f"collage: cannot write {other}: it is the other bundle\n"


def test_the_page_is_a_package_of_its_own(
    optimised: Optimised, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("collage_core.report.page.entry_points", lambda group: ())
    assert main(["explain", str(optimised.bundle), "--html", str(tmp_path / "report.html")]) == 1
    told = capsys.readouterr()
    assert told.err == "collage: --html needs the package collage-page: pip install collage-page\n"
    assert not told.out
    assert not (tmp_path / "report.html").exists()


def test_what_was_changed_in_a_placement_is_not_lost(optimised: Optimised, tmp_path: Path) -> None:
    collage, file = optimised.collage, tmp_path / "p.yaml"
    for _ in range(2):
        collage.run("explain", optimised.bundle, "--placement", file)
    changed = file.read_text().replace("version: 1", "version: 1  # mine")
    file.write_text(changed)
    process = collage.start("explain", optimised.bundle, "--placement", file, "--dot", tmp_path / "p.dot")
    out, err = process.communicate()
    assert (process.returncode, out) == (1, "")
    what = "it says something else, maybe what you have changed; remove it first"
    assert err == f"collage: cannot write {file}: {what}\n"
    assert file.read_text() == changed
    assert not (tmp_path / "p.dot").exists()


def _edited(optimised: Optimised, file: Path, edit: Callable[[dict[str, Any]], None]) -> Path:
    with ZipFile(optimised.bundle) as archive, ZipFile(file, "w") as edited:
        for name in archive.namelist():
            content = archive.read(name)
            if name == "placement.json":
                placement = json.loads(content)
                edit(placement)
                content = json.dumps(placement).encode()
            edited.writestr(name, content)
    return file


def _with_no_nodes(placement: dict[str, Any]) -> None:
    placement["groups"][0]["nodes"] = []


def _with_one_format_less(placement: dict[str, Any]) -> None:
    placement["groups"][0]["outputs"] = []


def _without_a_group(placement: dict[str, Any]) -> None:
    del placement["groups"][0]


def _of_an_unknown_value(placement: dict[str, Any]) -> None:
    placement["conversions"].append(
        {"value": "nope", "from": ["float32", [0], "cpu"], "to": ["float32", [0], "cpu"], "backend": "tvm"}
    )


@pytest.mark.parametrize(
    "edit",
    [_with_no_nodes, _with_one_format_less, _without_a_group, _of_an_unknown_value],
    ids=lambda e: e.__name__,
)
def test_a_placement_that_does_not_fit_its_model(
    optimised: Optimised,
    tmp_path: Path,
    edit: Callable[[dict[str, Any]], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = _edited(optimised, tmp_path / "edited.collage", edit)
    for arguments in (["explain", str(file)], ["explain", str(optimised.bundle), "--beside", str(file)]):
        assert main(arguments) == 1
        told = capsys.readouterr()
        assert not told.out
        (line,) = told.err.splitlines()
        assert line.startswith(f"collage: {file}")
        assert "placement" in line
        assert "report" not in line
