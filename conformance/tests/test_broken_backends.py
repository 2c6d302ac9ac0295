"""A backend that is right passes; one with a fault fails in the check of that fault, and in no other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from broken_backends import FAULTY, Threads

_SUPPORT = Path(__file__).parent / "support"
_ASKED = "not (test_declines or test_operator) or Neg or Conv"
"""What these take or decline: all operators would take minutes."""


def _kit(
    folder: Path, *options: str, variables: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    # This repository's own way of running tests waits for the test that calls this one.
    command = [*(sys.executable, "-m", "pytest", "--noconftest", "-p", "no:cacheprovider"), "-q", "--pyargs"]
    return subprocess.run(
        [*command, "collage_conformance", *options],
        env=variables,
        cwd=folder,
        capture_output=True,
        text=True,
    )


def _checked(name: str, folder: Path, *options: str, path: Path | None = None) -> dict[str, Any]:
    report = folder / "report.json"
    variables = {**os.environ, "COLLAGE_PLUGINS": "broken_backends", "COLLAGE_HOME": str(folder)}
    if path is not None:
        variables["COLLAGE_PLUGINS"] = ""
    known = [str(path or ""), str(_SUPPORT), os.environ.get("PYTHONPATH", "")]
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, known))
    told = ["--collage-backend", name, "--collage-cases", "1", "--collage-json", str(report)]
    done = _kit(folder, *told, "-k", _ASKED, *options, variables=variables)
    assert report.exists(), done.stdout + done.stderr
    (told_of,) = json.loads(report.read_text()).items()
    assert told_of[0] == name
    found: dict[str, Any] = told_of[1]
    assert (done.returncode != 0) == bool(found["failed"]), done.stdout
    return found


@pytest.mark.slow
def test_what_is_right_passes(tmp_path: Path) -> None:
    found = _checked("sound", tmp_path)
    assert found["failed"] == [], found["checks"]
    assert found["operators"] == ["Neg"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(k.name, marks=pytest.mark.alone if k is Threads else ()) for k in FAULTY]
)
def test_each_fails_just_where_its_fault_is(name: str, tmp_path: Path) -> None:
    found = _checked(name, tmp_path)
    assert found["failed"] == [name], found["checks"]


@pytest.mark.ci
@pytest.mark.parametrize(("name", "failed"), [("rare", []), ("raremanners", ["manners"])])
def test_one_that_takes_nothing_common_is_looked_at(name: str, failed: list[str], tmp_path: Path) -> None:
    found = _checked(name, tmp_path, "-k", "test_manners or test_end_to_end or (test_operator and Ceil)")
    assert found["failed"] == failed, found["checks"]
    assert found["checks"]["end_to_end"]["passed"] == 1
    assert found["operators"] == ["Ceil"]


@pytest.mark.ci
def test_what_looked_at_nothing_has_not_passed(tmp_path: Path) -> None:
    asked = "test_manners or test_quiet or (test_operator and Neg)"
    found = _checked("unable", tmp_path, "-k", asked, "--require-delegated", "Neg")
    assert found["failed"] == ["operator"]
    assert found["checks"]["operator"]["faults"] == ["it takes no Neg"]
    assert [found["checks"][c]["skipped"] for c in ("manners", "quiet")] == [1, 1]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("version", "requirement", "fault"),
    [
        ("0.1.0", "collage-run==0.1.0", ""),
        ("0.2.0", "collage-run==0.1.0", "info() tells version '0.1.0', broken is 0.2.0"),
        ("0.1.0", "collage-core", "broken works with any later collage-core"),
        ("0.1.0", "collage_core>=0.1", "broken works with any later collage_core"),
        ("0.1.0", "collage_core~=0.1.0", ""),
        ("0.1.0", "numpy", "broken requires neither collage-core nor collage-run"),
    ],
)
def test_a_package_is_looked_at(version: str, requirement: str, fault: str, tmp_path: Path) -> None:
    site = tmp_path / "site"
    facts = site / f"broken-{version}.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: broken\nVersion: {version}\nRequires-Dist: {requirement}\n"
    )
    (facts / "entry_points.txt").write_text("[collage]\nbroken = broken_backends\n")
    found = _checked("sound", tmp_path, "-k", "test_package", path=site)
    assert found["failed"] == (["package"] if fault else [])
    assert all(fault in told for told in found["checks"]["package"]["faults"])


@pytest.mark.ci
def test_the_table_is_written_into_a_readme(tmp_path: Path) -> None:
    readme, begin, end = tmp_path / "README.md", "<!-- conformance: sound -->", "<!-- /conformance -->"
    readme.write_text(f"# Sound\n\n{begin}\nold\n{end}\n\nAnd more.\n")
    found = _checked("sound", tmp_path, "--collage-readme", str(readme), "-k", _ASKED)
    text = readme.read_text()
    assert text.startswith(f"# Sound\n\n{begin}\n| check |")
    assert text.endswith(f"\n{end}\n\nAnd more.\n")
    for check, ended in found["checks"].items():
        mark = "passed" if ended["passed"] else "skipped"
        assert f"| `{check}` | {mark} |" in text
    assert "Operators that it takes (1): Neg.\n" in text
    assert "at most 1 from each source" in text


@pytest.mark.ci
def test_a_table_of_some_checks_is_not_written(tmp_path: Path) -> None:
    readme, text = tmp_path / "README.md", "<!-- conformance: sound -->\n<!-- /conformance -->\n"
    readme.write_text(text)
    _checked("sound", tmp_path, "--collage-readme", str(readme), "-k", "test_declarations")
    assert readme.read_text() == text


def test_a_readme_without_a_place_for_the_table_is_refused(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("# Reference\n")
    done = _kit(tmp_path, "--collage-backend", "reference", "--collage-readme", str(readme))
    assert "has no lines <!-- conformance: reference -->" in done.stderr
    assert done.returncode == 4


@pytest.mark.ci
def test_what_must_be_taken_is_asked_for(tmp_path: Path) -> None:
    found = _checked(
        "sound", tmp_path, "-k", "test_operator and (Neg or Conv)", "--require-delegated", "Conv,Neg"
    )
    assert found["failed"] == ["operator"]
    assert found["checks"]["operator"]["faults"] == ["it takes no Conv"]


def test_what_must_be_taken_is_an_operator(tmp_path: Path) -> None:
    done = _kit(tmp_path, "--require-delegated", "Conv, Matmul,Convolution")
    assert "--require-delegated: no operators of ONNX: Convolution, Matmul" in done.stderr
    assert done.returncode == 4


def test_without_a_name_nothing_is_looked_at(tmp_path: Path) -> None:
    done = _kit(tmp_path, "-rs", "-k", "test_package")
    assert "name a backend" in done.stdout
    assert done.returncode == 0


def test_it_says_once_whom_it_does_not_know(tmp_path: Path) -> None:
    done = _kit(tmp_path, "--collage-backend", "nobody")
    assert done.stderr.startswith("ERROR: --collage-backend: unknown backend 'nobody'; installed: ")
    assert done.returncode == 4
