"""A backend that is right passes; one with a fault fails in the check of that fault, and in no other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from broken_backends import FAULTY, Threads
from collage_conformance.results import has_block, write_block

_SUPPORT = Path(__file__).parent / "support"
_ASKED = "not (test_declines or test_operator) or Neg or Conv"
"""What these take or decline: all operators would take minutes."""


def _kit(
    folder: Path,
    *options: str,
    variables: dict[str, str] | None = None,
    tests: Sequence[str] = ("--pyargs", "collage_conformance"),
) -> subprocess.CompletedProcess[str]:
    # This repository's own way of running tests waits for the test that calls this one.
    command = [*(sys.executable, "-m", "pytest", "--noconftest", "-p", "no:cacheprovider"), "-q"]
    return subprocess.run(
        [*command, *tests, *options],
        env=variables,
        cwd=folder,
        capture_output=True,
        text=True,
    )


def _path(*folders: Path) -> str:
    return os.pathsep.join(filter(None, [*map(str, folders), os.environ.get("PYTHONPATH", "")]))


def _checked(name: str, folder: Path, *options: str, path: Path | None = None) -> dict[str, Any]:
    report = folder / "report.json"
    variables = {**os.environ, "COLLAGE_PLUGINS": "broken_backends", "COLLAGE_HOME": str(folder)}
    if path is not None:
        variables["COLLAGE_PLUGINS"] = ""
    variables["PYTHONPATH"] = _path(*filter(None, [path]), _SUPPORT)
    told = ["--collage-backend", name, "--collage-cases", "1", "--collage-json", str(report)]
    done = _kit(folder, *told, "-k", _ASKED, *options, variables=variables)
    assert report.exists(), done.stdout + done.stderr
    told_of = json.loads(report.read_text())
    assert list(told_of) == [name]
    found: dict[str, Any] = told_of[name]
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
@pytest.mark.parametrize(("name", "call"), [("remembers", "call 3"), ("onecontext", "bound twice")])
def test_what_is_right_for_the_first_inputs_only(name: str, call: str, tmp_path: Path) -> None:
    found = _checked(name, tmp_path, "-k", "test_operator and Neg")
    assert found["failed"] == ["operator"]
    assert all(f": {call}: output 'y'" in fault for fault in found["checks"]["operator"]["faults"])


@pytest.mark.ci
def test_what_is_wrong_for_ones_only(tmp_path: Path) -> None:
    found = _checked("onesalone", tmp_path, "-k", "test_operator and Neg", "--collage-cases", "9")
    assert found["failed"] == ["operator"]


@pytest.mark.ci
def test_files_that_are_left_open_are_seen(tmp_path: Path) -> None:
    found = _checked("opensfiles", tmp_path, "-k", "test_growth")
    assert found["failed"] == ["growth"]
    (fault,) = found["checks"]["growth"]["faults"]
    assert all(line.endswith("each build leaves 1 open file(s) behind") for line in fault.splitlines())


@pytest.mark.ci
def test_what_it_has_changed_before_is_seen(tmp_path: Path) -> None:
    """In the process of the kit, whose children would have it from the start."""
    found = _checked("setsvariables", tmp_path, "-k", "(test_operator and Neg) or test_manners")
    assert found["failed"] == ["manners"]
    (fault,) = found["checks"]["manners"]["faults"]
    assert fault.splitlines() == [
        "it changes the processors that may be used",
        "it sets the variable BROKEN_BY_C",
        "it sets the variable BROKEN_BY_PYTHON",
    ]


@pytest.mark.ci
def test_whatever_it_changes_is_seen(tmp_path: Path) -> None:
    found = _checked("meddles", tmp_path, "-k", "test_manners")
    assert found["failed"] == ["manners"]
    told = "\n".join(found["checks"]["manners"]["faults"]).splitlines()
    assert told[:5] == [
        "it changes a timer that will send a signal",
        "it changes how warnings are shown",
        "it changes where Python looks for modules",
        "it changes Python's logging",
        "it changes what is done with exceptions that nobody catches",
    ]
    assert told[5] == "and 4 more"


@pytest.mark.ci
def test_processes_that_are_left_are_seen_and_ended(tmp_path: Path) -> None:
    found = _checked("startsprocesses", tmp_path, "-k", "test_manners")
    assert found["checks"]["manners"]["faults"] == ["it leaves processes running"]


@pytest.mark.ci
def test_threads_that_are_left_are_seen(tmp_path: Path) -> None:
    found = _checked("startsthreads", tmp_path, "-k", "test_growth")
    assert found["failed"] == ["growth"]
    assert all("each build leaves 1 thread(s) behind" in f for f in found["checks"]["growth"]["faults"])


@pytest.mark.slow
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
def test_a_crash_in_a_process_of_pytest_is_a_fault(tmp_path: Path) -> None:
    found = _checked("crashing", tmp_path, "-n", "1", "-k", "test_declarations or (test_operator and Neg)")
    assert found["failed"] == ["operator"]
    assert "crashed while running" in found["checks"]["operator"]["faults"][0]
    assert found["checks"]["declarations"]["passed"] == 1


@pytest.mark.ci
def test_each_backend_of_a_run_has_its_own_table(tmp_path: Path) -> None:
    source = "from collage_conformance import Conformance\n"
    for number, backend in enumerate(("sound", "Rare", "sound")):
        source += (
            f"class Test{number}(Conformance):\n    backend = {backend!r}\n    cases = {number or None}\n"
        )
    source += "    def test_mine(self):\n        assert not 'mine'\n"
    (tmp_path / "test_several.py").write_text(source)
    report, asked = tmp_path / "report.json", "test_declarations or test_mine or (test_operator and Neg)"
    variables = {**os.environ, "COLLAGE_PLUGINS": "broken_backends", "PYTHONPATH": _path(_SUPPORT)}
    told = ("-k", asked, "--collage-json", str(report))
    _kit(tmp_path, *told, variables=variables, tests=["test_several.py"])
    found = json.loads(report.read_text())
    assert {name: told["failed"] for name, told in found.items()} == {"sound": ["mine"], "rare": []}
    assert [found["sound"]["checks"]["declarations"]["passed"], found["sound"]["cases"]] == [2, 2]
    assert (found["sound"]["operators"], found["rare"]["operators"]) == (["Neg"], [])


@pytest.mark.slow
def test_the_table_is_written_into_a_readme(tmp_path: Path) -> None:
    readme, begin, end = tmp_path / "README.md", "<!-- conformance: sound -->", "<!-- /conformance -->"
    readme.write_text(f"# Sound\n\n{begin}\nold\n{end}\n\nAnd more.\n")
    found = _checked("sound", tmp_path, "--collage-readme", str(readme), "-k", "", "-n", "2")
    text = readme.read_text()
    assert text.startswith(f"# Sound\n\n{begin}\n| check |")
    assert text.endswith(f"\n{end}\n\nAnd more.\n")
    for check, ended in found["checks"].items():
        mark = "passed" if ended["passed"] else "skipped"
        assert f"| `{check}` | {mark} |" in text
    assert "Operators that it takes (9): Abs, Ceil, Cos, Exp, Floor, Neg, Relu, Sign, Sin.\n" in text
    assert "at most 1 from each source" in text


@pytest.mark.slow
def test_a_table_of_some_checks_is_not_written(tmp_path: Path) -> None:
    readme, text = tmp_path / "README.md", "<!-- conformance: sound -->\n<!-- /conformance -->\n"
    readme.write_text(text)
    _checked("sound", tmp_path, "--collage-readme", str(readme), "-k", _ASKED)
    assert readme.read_text() == text


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"# Reference\n", "has no lines <!-- conformance: reference -->"),
        (b"\xff\xfe", "cannot be read: 'utf-8' codec"),
        (None, "cannot be read: [Errno 2]"),
    ],
)
def test_a_readme_without_a_place_for_the_table_is_refused(
    content: bytes | None, reason: str, tmp_path: Path
) -> None:
    readme = tmp_path / "README.md"
    if content is not None:
        readme.write_bytes(content)
    done = _kit(tmp_path, "--collage-backend", "Reference", "--collage-readme", str(readme))
    assert reason in done.stderr
    assert done.returncode == 4


def test_a_block_is_written_and_nothing_else(tmp_path: Path) -> None:
    readme, end = tmp_path / "README.md", "<!-- /conformance -->"
    blocks = f"<!-- conformance: a.b -->\r\nold\r\n{end}\r\n<!-- conformance: axb -->\r\nother\r\n{end}\r\n"
    readme.write_bytes(blocks.encode())
    write_block(readme, "a.b", "new\n")
    assert readme.read_bytes() == blocks.replace("old\r\n", "new\n").encode()
    readme.write_text(f"<!-- conformance: a -->\nleft open\n<!-- conformance: b -->\n{end}\n")
    assert [has_block(readme, name) for name in "ab"] == [False, True]


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
