"""Runs that are collected: what is recorded of commands that succeed, fail or are interrupted, and what else
the machine did meanwhile.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from collage_benchmarks.evidence import machine
from collage_benchmarks.evidence.collecting import collect_run
from collage_benchmarks.evidence.running import Tools
from collage_benchmarks.evidence.tables import all_runs, figures
from fake_collage import BACKENDS, BENCHED, COMMIT, OPTIMIZED, calls

from collage_core.errors import CollageError

_ROOT = Path(__file__).parents[2]


def test_a_run_is_what_a_person_would_type(
    tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLAGE_SETTLING_LIMIT_S", "0")
    monkeypatch.setenv("COLLAGE_CALIBRATION", "off")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("COLLAGE_LOCK", "kept")
    record = collect_run("tiny_conv", COMMIT, tools)
    assert record["commands"] == [
        "python -m collage_benchmarks.networks tiny_conv -o tiny_conv.onnx",
        "collage optimize tiny_conv.onnx -o tiny_conv.collage --json",
        "collage bench tiny_conv.collage --against onnxruntime,openvino --original tiny_conv.onnx --json",
    ]
    homes = set()
    for _, variables in calls(tmp_path):
        homes.add(variables.pop("COLLAGE_HOME"))
        assert variables == {"COLLAGE_LOCK": "kept"}
    assert len(homes) == 1
    assert not Path(homes.pop()).exists()


def test_a_record_holds_what_an_audit_asks_for(tools: Tools) -> None:
    record = collect_run("tiny_conv", COMMIT, tools)
    assert record["failed"] is None
    assert record["optimize"] == {k: v for k, v in OPTIMIZED.items() if k not in ("groups", "threads")}
    assert record["bench"] == {k: v for k, v in BENCHED.items() if k != "latency_ms"}
    assert record["commit"]["id"] == COMMIT.id
    assert record["settings"] == {"effort": "normal", "threads": 2}
    assert record["exit_codes"] == {"build": 0, "optimize": 0, "bench": 0}
    assert record["software"]["backends"] == BACKENDS
    assert len(record["model_sha256"]) == 64
    assert record["notes"]["optimize"] == ["confirming (15)"]
    # Two contenders of each comparison; what failed has no turns.
    as_it_came = {"as_it_comes": True, "kept": 2, "kept_moved": 2, "thrown_away": 0, "waited_s": 0.0}
    waited = {"as_it_comes": False, "kept": 4, "kept_moved": 0, "thrown_away": 2, "waited_s": 3.0}
    assert record["sittings"] == [
        {"comparison": title, **sitting}
        for title in ("confirming", "benchmark")
        for sitting in (as_it_came, waited)
    ]
    json.dumps(record)


@pytest.mark.parametrize("step", ["optimize", "bench"])
def test_a_failing_run_is_recorded(step: str, told: dict[str, Any], tools: Tools, tmp_path: Path) -> None:
    told["failing"] = step
    if step == "optimize":
        del told["print"]["optimize"]
    (tmp_path / "told.json").write_text(json.dumps(told))
    record = {**collect_run("tiny_conv", COMMIT, tools), "others_cpu_s": 0.0}
    assert record["failed"] == {
        "step": step,
        "exit_code": 1,
        "last_lines": ["confirming (15)", "collage: model went wrong"],
    }
    assert (record["bench"] is None) == (step == "optimize")
    assert "failed (1): collage: model went wrong" in all_runs([record])
    assert "none without a failure" in figures([record])


def test_a_report_of_another_form_is_no_record(told: dict[str, Any], tools: Tools, tmp_path: Path) -> None:
    del told["print"]["optimize"]["contenders"]
    (tmp_path / "told.json").write_text(json.dumps(told))
    with pytest.raises(CollageError, match="has no contenders"):
        collect_run("tiny_conv", COMMIT, tools)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_leaves_nothing(
    number: signal.Signals, code: int, told: dict[str, Any], tools: Tools, tmp_path: Path
) -> None:
    (tmp_path / "told.json").write_text(json.dumps({**told, "slow": "optimize"}))
    temporary, out = tmp_path / "tmp", tmp_path / "runs"
    temporary.mkdir()
    script = tmp_path / "main.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import signal
            from collage_benchmarks.evidence import __main__ as command, running
            signal.signal(signal.SIGINT, signal.default_int_handler)
            running.Tools.__init__.__defaults__ = ({tools.collage!r}, {tools.python!r})
            command.require_idle = command.require_packages_of = lambda *_: None
            raise SystemExit(command.main({["collect", "--networks", "tiny_conv", "--allow-dirty"]!r}
                + ["--out", {str(out)!r}]))
            """
        )
    )
    environment = {**os.environ, "TMPDIR": str(temporary)}
    process = subprocess.Popen(
        [sys.executable, str(script)], cwd=_ROOT, env=environment, stderr=subprocess.PIPE, text=True
    )
    end_s = time.monotonic() + 120
    while not (tmp_path / "begun").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end_s
        time.sleep(0.05)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    assert "Traceback" not in said
    assert not list(temporary.iterdir())
    assert not out.exists()


def test_a_busy_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_LOOK_S", 1.0)
    loop = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]
    with ExitStack() as stack:
        for _ in range(os.cpu_count() or 1):
            process = stack.enter_context(subprocess.Popen(loop, stdout=subprocess.PIPE))
            stack.callback(process.kill)
            assert process.stdout
            process.stdout.readline()
        with pytest.raises(CollageError, match=r"busy: \d+% of its processors are in use"):
            machine.require_idle()


@pytest.mark.parametrize("known", [True, False])
def test_ours_are_no_others(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that computes is found among others only where nobody says that it is one."""
    if not known:
        monkeypatch.setattr(psutil.Process, "children", lambda self, recursive: [])
    name = "collage-child"
    loop = f"open('/proc/self/comm', 'w').write({name!r})\nprint(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", loop], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout
            child.stdout.readline()
            with machine.watching() as others:
                end_s = time.monotonic() + 60
                begun_s = psutil.Process(child.pid).cpu_times().user
                while psutil.Process(child.pid).cpu_times().user < begun_s + 0.1:
                    assert time.monotonic() < end_s
                    time.sleep(0.05)
        finally:
            child.kill()
    assert (name in others.spent_s) != known


def test_defaults_run_the_installed_command() -> None:
    assert Path(Tools().collage[0]).is_file()
