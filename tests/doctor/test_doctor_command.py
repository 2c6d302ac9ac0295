"""`collage doctor` as it is run: beside a busy process, in a group of half a processor, without /sys."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from collage_core.cli.main import main
from collage_core.doctor import Finding, Level
from collage_core.report.doctor import doctor_json, doctor_text

if TYPE_CHECKING:
    from collage_command import Collage

_COMMAND = [sys.executable, "-m", "collage_core.cli.main", "doctor", "--json"]
_GROUPS = (
    ("/sys/fs/cgroup", "cpu.max", "50000 100000"),
    ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "50000"),
)
"""Where control groups of version 2 and 1 usually are, and what gives one half a processor."""
_OWN_MOUNTS = ("unshare", "--mount", *(("--map-root-user",) if os.geteuid() else ()))
_WITHOUT_SYS = (*_OWN_MOUNTS, "sh", "-c", 'mount -t tmpfs none /sys && exec "$@"', "sh")


def findings(report: dict[str, Any], check: str) -> list[tuple[str, str, str]]:
    return [(f["level"], f["what"], f["advice"]) for f in report["findings"] if f["check"] == check]


def examined(collage: Collage, *before: str) -> tuple[int, dict[str, Any]]:
    """Exit code and report of a process of its own, started by the command `before`."""
    process = subprocess.run(
        [*before, *_COMMAND], capture_output=True, text=True, env=collage.environment, timeout=300
    )
    assert "Traceback" not in process.stderr
    report = json.loads(process.stdout)
    assert (process.returncode == 1) == (not report["fit"])
    if process.returncode:
        assert process.stderr.splitlines()[-1].startswith("collage: this machine is not fit to measure on: ")
    return process.returncode, report


def test_beside_a_busy_process(collage: Collage) -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            code, report = examined(collage)
        finally:
            busy.kill()
    assert code == 1
    found = [f for f in findings(report, "processes") if f"(process {busy.pid}) uses" in f[1]]
    assert [(level, advice) for level, _, advice in found] == [
        ("problem", "Wait until it is done, or end it.")
    ]


@pytest.fixture
def half_a_processor() -> Iterator[Path]:
    """A control group; whoever writes 0 into its cgroup.procs is in it."""
    refused = []
    for parent, file, quota in _GROUPS:
        group = Path(parent, f"collage-test-{uuid.uuid4().hex}")
        try:
            group.mkdir()
        except OSError as error:
            refused.append(str(error))
            continue
        try:
            if (group / file).exists():
                (group / file).write_text(quota)
                yield group
                return
            refused.append(f"{parent} does not divide processors")
        finally:
            group.rmdir()
    pytest.skip(f"no control group can be made: {'; '.join(refused)}")


def test_in_a_group_of_half_a_processor(collage: Collage, half_a_processor: Path) -> None:
    join = 'echo 0 > "$1" && shift && exec "$@"'
    code, report = examined(collage, "sh", "-c", join, "sh", str(half_a_processor / "cgroup.procs"))
    assert code == 1
    ((level, what, advice),) = findings(report, "threads")
    assert level == "problem"
    assert "The control group may use 0.5 of a processor" in what
    assert "Raise its limit" in advice


def test_in_a_container_without_sys(collage: Collage) -> None:
    try:
        tried = subprocess.run([*_WITHOUT_SYS, "true"], capture_output=True, text=True)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    if tried.returncode:
        pytest.skip(f"no mounts of one's own: {tried.stderr.strip()}")
    _, report = examined(collage, *_WITHOUT_SYS)
    for check in ("threads", "memory", "huge pages", "frequency"):
        ((level, what, advice),) = findings(report, check)
        assert level == "unknown"
        assert what.startswith("This could not be looked at: /sys/")
        assert advice == "Look on the host."
    assert [level for level, _, _ in findings(report, "disk")] == ["ok"]


def _many() -> list[Finding]:
    busy = [Finding(Level.PROBLEM, f"p{n} is busy.", "Wait.", "processes") for n in range(40)]
    return [*busy, Finding(Level.WARNING, "It is slow,\nvery.", "Hurry.", "load")]


def test_the_text_is_short_and_the_worst_comes_first() -> None:
    assert doctor_text(doctor_json(_many())).splitlines() == [
        "problem  processes: p0 is busy. Wait.",
        "problem  processes: p1 is busy. Wait.",
        "problem  processes: p2 is busy. Wait.",
        "problem  processes: p3 is busy. Wait. And 36 more, which --json lists.",
        "warning  load: It is slow, very. Hurry.",
    ]
    fit = [Finding(Level.WARNING, "It is slow.", "Hurry.", "load"), Finding(Level.OK, "Good.", "", "disk")]
    assert doctor_text(doctor_json(fit)).splitlines() == [
        "warning  load: It is slow. Hurry.",
        "ok       disk: Good.",
        "",
        "this machine is fit to measure on: 1 warning",
    ]


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_exit_codes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    found = _many()
    monkeypatch.setattr("collage_core.cli.commands.doctor.examine", lambda registry: found)
    assert main(["doctor", *options]) == 1
    captured = capsys.readouterr()
    assert captured.err == "collage: this machine is not fit to measure on: 40 problems, 1 warning\n"
    assert "p0 is busy" in captured.out
    found = found[40:]
    assert main(["doctor", *options]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert not options or json.loads(captured.out)["fit"] is True
